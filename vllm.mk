# vLLM's CPU build in a virtual environment of its own, and the tests against a server that runs there.
# The tests of the in-process engine run in that environment too, on this checkout.

VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_PINS := requirements-vllm-cpu.txt

.PHONY: vllm-cpu test-vllm bench

vllm-cpu: $(VLLM_VENV)/.installed    ## build vLLM's CPU environment, for scripts/serve.py on a machine without a GPU

test-vllm: $(VENV)/.installed-dev $(VENV)/.installed-llm $(VLLM_VENV)/.installed   ## serve a real small model with vLLM on CPU and test against it
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/vllm -m vllm -v $(ARGS)

bench: $(VENV)/.installed-dev $(VENV)/.installed-llm $(VLLM_VENV)/.installed   ## the performance table; ARGS=reduced=true: in minutes
	@$(BIN)/python scripts/bench.py $(ARGS)

$(VLLM_BIN)/pip:
	@sh scripts/make_venv.sh $(PYTHON) $(VLLM_VENV)

$(VLLM_VENV)/.installed: $(VLLM_BIN)/pip $(VLLM_PINS)
	@CONSTRAINTS=$(VLLM_PINS) sh scripts/install.sh $(VLLM_BIN) torch==2.13.0 setuptools
	@CONSTRAINTS=$(VLLM_PINS) sh scripts/install.sh $(VLLM_BIN) --no-deps -r $(VLLM_PINS)
	@CONSTRAINTS=$(VLLM_PINS) sh scripts/install.sh $(VLLM_BIN) --no-deps -e .
	@touch $@
