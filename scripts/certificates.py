"""Does each calibration mode keep its promise at every round? Replicated coverage with cognitive agents."""

from __future__ import annotations

from sim.launch import launch
from sim.studies.certificate_study import run_certificates

if __name__ == "__main__":
    launch(run_certificates, "certificates")
