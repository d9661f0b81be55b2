"""Benchmarks: every figure of the performance table, measured as ratios in one run. Never part of a test."""
