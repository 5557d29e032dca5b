# Every target sets up what it needs on a machine that has only Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: demo test test-all lint bench browser clean
.DEFAULT_GOAL := test

$(STAMP): setup.py tpugraphs_polynormer/__init__.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[test,dask]"
	touch $@

demo: $(STAMP)
	$(BIN)/tpugraphs demo --output demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

test-all: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Debian's chromium, for the tests of the report in a real browser; without it they are skipped.
browser:
	command -v chromium || { apt-get update && apt-get install --yes --no-install-recommends chromium; }

bench: $(STAMP)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) demo build *.egg-info
