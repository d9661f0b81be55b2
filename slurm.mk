# Sweeps on a real Slurm of one node, started and ended by the tests. The first run installs Debian's packages (root).
.PHONY: test-slurm

test-slurm: $(VENV)/.installed-dev   ## sweeps on a real single-node Slurm (Debian, root)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slurm tests/slurm $(ARGS)
