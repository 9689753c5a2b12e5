# Everything that a fresh machine needs: `make demo` shows it working, `make test` proves it. See README.md.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PORT   ?= 8000

# The torch release lies in constraints.txt alone. It goes in first, from TORCH_INDEX_URL if that is set; every later
# pip call gets the same constraint, so no dependency can replace it.
TORCH  := $(shell sed -n 's/^\(torch==.*\)$$/\1/p' constraints.txt)
export TORCH_INDEX_URL ?=

.PHONY: help setup looks demo serve test lint types equality compat bench clean

help:
	@echo "make demo      set up, then serve the demo checkpoint on 2 workers and stream through them"
	@echo "make serve     set up, then leave the demo running (PORT=8000)"
	@echo "make test      set up, then format, lint, types and all tests"
	@echo "make equality  the full cross product of the comparison with transformers"
	@echo "make compat    unmodified clients and load tools against a server; each in an environment under .compat"
	@echo "make looks     the page in a headless Chromium, with new pictures in docs/pictures"
	@echo "make bench     the benchmarks of serving and failover with --quick, without keeping their results"

setup: $(STAMP)

# A second call finds the stamp and does nothing. C sources are named because the editable install compiles them.
$(STAMP): pyproject.toml setup.cfg constraints.txt $(wildcard gpu/kernels/*.c gpu/kernels/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || \
	  { echo "$(PYTHON) cannot make virtual environments; install the venv package of your system"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: setup
	$(BIN)/blockwright demo

serve: setup
	$(BIN)/blockwright demo --serve --port $(PORT)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The scripts are checked apart from the package: they are run by path and import their neighbours by bare name.
types: setup
	$(BIN)/mypy
	MYPYPATH=examples:benchmarks $(BIN)/mypy examples/*.py benchmarks/*.py

test: lint types
	$(BIN)/python -m pytest

equality: setup
	$(BIN)/python -m pytest -m equality

looks: setup
	BLOCKWRIGHT_PICTURES=$(CURDIR)/docs/pictures $(BIN)/python -m pytest tests/system/test_page.py

compat: setup
	$(BIN)/python tests/compat/run.py $(foreach suite,$(ONLY),--only $(suite))

bench: setup
	for name in serving failover; do $(BIN)/python benchmarks/$$name.py --quick || exit 1; done

clean:
	rm -rf $(VENV) .compat .peers build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f gpu/kernels/*.so
