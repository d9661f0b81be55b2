# Sweeps on a real Slurm of one node, started and ended by the tests; needs root.
.PHONY: test-slurm

test-slurm: $(VENV)/.installed-dev   ## sweeps on a real Slurm of one node (root; Debian: apt install munge slurmctld slurmd slurm-client)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slurm tests/slurm $(ARGS)
