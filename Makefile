# `make demo` and `make test` set up all they need in .venv on a machine with Python and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Files that other implementations wrote; tests that use them say so when the folder is not there.
export MODCRYPT_SHARED_VECTORS ?= $(abspath $(wildcard ../shared/vectors))

.PHONY: demo test lint bench pipeline vectors clean

demo: $(VENV)/demo
	$(BIN)/python tools/demo.py

test: $(VENV)/dev lint
	$(BIN)/python tools/vectors.py check
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/dev
	$(BIN)/python tools/bench.py

pipeline: $(VENV)/dev
	$(BIN)/python tools/pipeline.py

vectors: $(VENV)/dev
	$(BIN)/python tools/vectors.py build

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	touch $@

$(VENV)/demo: $(VENV)/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[cli]" --group demo
	touch $@

$(VENV)/dev: $(VENV)/pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[cli,fsspec]" --group dev
	touch $@ $(VENV)/demo

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
