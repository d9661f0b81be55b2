"""Adaptive team building on the toolkit's own engines, records, intervals and controllers."""
