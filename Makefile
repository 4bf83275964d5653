# Every target sets up what it needs; set-up is quick when repeated.
VENV := .venv
PY := $(VENV)/bin/python
BASE_PYTHON ?= python3
WORKERS ?= 2

# Where it is set, every process compiles all of PyTorch anew: ten seconds each.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench gen clean

help:  ## Show this help
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml constraints.txt
	@scripts/setup $(BASE_PYTHON) $(VENV)

setup: $(VENV)/.ready  ## Create .venv with every dependency

demo: setup  ## Train, stream and recommend on a year of real grocery baskets
	@$(PY) -m examples.complete_journey $(ARGS)

test: setup  ## Run every check: lint, types, layers, unit, property, broker and end-to-end tests
	@$(MAKE) --no-print-directory lint
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

lint: setup  ## Check style, types and the layers
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-cache

format: setup  ## Rewrite the code in the project's style
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

bench: setup  ## Measure: make bench NAME=ingest|recommend|compression|soak|training|tokenizer|catalogue|trending|backfill|quality [QUICK=1] [ARGS=...]
	@$(VENV)/bin/uv pip install --quiet --python $(PY) -c constraints.txt --group bench
	@$(PY) -m bench.$(NAME) $(if $(QUICK),--quick) $(ARGS)

gen: setup  ## Compile protos/*.proto into the committed Python code and stubs
	@$(PY) scripts/compile_protos.py

clean:  ## Remove the environment, caches and everything the demo left
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
