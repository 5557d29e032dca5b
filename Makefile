# Every target sets up what it needs on a machine that has only Python 3.10 to 3.13 and make.
# Each name is tried by running it: a version manager has names for versions that are not active.
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3.10 python3; do \
	$$each -c "" 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A file of exact versions, such as requirements.lock, which is made on Python 3.11; unused if it is absent or on another.
LOCK ?=
LOCKED = $(if $(wildcard $(LOCK)),$(shell $(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] != (3, 11))" && \
	echo --constraint $(LOCK)))
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: demo test test-all test-tpu test-engines engines lint bench browser clean
.DEFAULT_GOAL := test

$(STAMP): setup.py tpugraphs_polynormer/__init__.py
	$(or $(PYTHON),$(error found no python3.10 to python3.13; install one, or run make PYTHON=/path/to/it)) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(LOCKED) --editable ".[test,dask]"
	touch $@

demo: $(STAMP)
	$(BIN)/tpugraphs demo --output demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -m "not slow and not tpu_compiler and not engines" -n 2 --dist loadfile

test-all: $(STAMP) lint
	$(BIN)/python -m pytest -m "not tpu_compiler and not engines" -n 2 --dist loadfile

# The real TPU compiler, which needs no TPU, in the tests that use it.
test-tpu: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check $(LOCKED) --editable ".[test,dask,tpu-compiler]"
	$(BIN)/python -m pytest -m tpu_compiler -n 2

# The jars of Flink, Spark and Beam's job servers, about 400 MB, in .engines/.
engines:
	for each in flink spark; do mvn --batch-mode --quiet --file pipelines/engines/$$each.xml \
		dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.engines/$$each/jars || exit 1; done

# Flink and Spark clusters, an object store and Dataflow's package; what is not installed is skipped, with the reason.
test-engines: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check $(LOCKED) --editable ".[test,dask,s3,engines,tpu-compiler]"
	$(MAKE) engines || echo 'no jars: the tests of Flink and Spark are skipped'
	$(BIN)/python -m pytest -m engines

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Debian's chromium, for the tests of the report in a real browser; without it they are skipped.
browser:
	command -v chromium || { apt-get update && apt-get install --yes --no-install-recommends chromium; }

bench: $(STAMP)
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .engines demo build *.egg-info
