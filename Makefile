# Everything that a fresh machine needs: `make demo` shows it working, `make test` proves it. See README.md.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.test-tools
PORT   ?= 8000
# Tests: processes at a time (some wait for others), and the best instruction set that they use (amx, avx512_bf16, avx512, avx2, generic; empty: all).
JOBS   ?= $(shell expr $$(nproc) + 1)
CAP    ?=
# make nightly: where its random choices begin. Another value on each call; the same value, the same run. SLICE: words of pytest.
SEED   := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
SEEDS  ?= 20000
COUNT  ?= 60
PYTEST  = $(if $(CAP),BLOCKWRIGHT_CAP=$(CAP) )$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal

# The torch release lies in constraints.txt alone. It goes in first, from TORCH_INDEX_URL if that is set; every later
# pip call gets the same constraint, so no dependency can replace it.
TORCH  := $(shell sed -n 's/^\(torch==.*\)$$/\1/p' constraints.txt)
export TORCH_INDEX_URL ?=
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# make wheel: the Pythons for which the policies are compiled, where they are found; every other one runs their sources.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
BUILD   := build/wheel

.PHONY: help install setup looks demo serve wheel test suite sources quick caps capped nightly mutants lint types equality compat bench clean

help:
	@echo "make demo      install, then show it: 9 models on 2 workers, a pipeline, shared fine-tunes, a family of tiers, a kill, a burst"
	@echo "make serve     install, then leave the demo running (PORT=8000)"
	@echo "make wheel     dist/*.whl, for every Python (PYTHONS='python3.12 ...': those for which the policies are compiled, too)"
	@echo "make test      set up, then format, lint, types and all tests"
	@echo "               (CAP=avx2: as on a processor with no more than AVX2; JOBS=1: one test at a time)"
	@echo "make quick     ruff and the fast tests, in less than a minute"
	@echo "make caps      the tests of everything that computes, with each instruction set in turn"
	@echo "make nightly   all tests in their long forms, with new seeds (SEED=... repeats, SEEDS=20000,"
	@echo "               SLICE='-m nightly tests/serving' only these: any arguments of pytest)"
	@echo "make mutants   60 small wrong changes of policies, actors and kernels in a copy, and those that no test notices"
	@echo "               (less than half an hour; SEED=... repeats, COUNT=60, ONLY=policies/sweep just files that begin so)"
	@echo "make equality  every combination of the comparison with transformers"
	@echo "make compat    unmodified clients and load tools against a server; each in an environment under .compat"
	@echo "make looks     the web page in a headless Chromium, with new pictures in docs/pictures"
	@echo "make bench     benchmarks in less than half an hour, and what changed since the stored results"
	@echo "               (STORE=1 replaces them and docs/performance.md, ONLY='forecast simulation on_demand tenants' just these: 45 more,"
	@echo "               BESIDE=CHECKOUT measures another checkout in turn)"

# What serves, and what tests it besides: a first look needs the first alone.
install: $(STAMP)

setup: $(TOOLS)

# A second call finds the stamp and does nothing. The C sources are compiled here, while torch is installed; and what importing
# torch needs gets its bytecode while the rest is. A first look waits neither for the compiler of the policies nor for bytecode
# of a thousand modules that nothing imports.
$(STAMP): pyproject.toml setup.cfg setup.py constraints.txt $(wildcard gpu/cpu/kernels/*.c gpu/cpu/kernels/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || \
	  { echo "$(PYTHON) cannot make virtual environments; install the venv package of your system"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -c constraints.txt setuptools
	BLOCKWRIGHT_COMPILED=0 $(BIN)/python -W ignore setup.py --quiet build_ext --inplace & \
	  $(PIP) --no-compile $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH); installed=$$?; wait; exit $$installed
	$(BIN)/python -W ignore -c "import torch" & \
	  BLOCKWRIGHT_COMPILED=0 $(PIP) --no-compile --no-build-isolation -c constraints.txt -e .; installed=$$?; wait; exit $$installed
	@touch $@

# Not with the extra of an editable install, which would compile everything once more. The policies are compiled by the mypy of the
# tests; those that change run as sources until the next set-up (policies/compiled.py). Meanwhile the other core makes the
# bytecode of what tests import, which each of their processes would make for itself.
$(TOOLS): $(STAMP) pyproject.toml constraints.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test"], \
	  sep="\n")' > $@.txt
	$(PIP) -c constraints.txt -r $@.txt
	$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & \
	  $(BIN)/python -W ignore setup.py --quiet build_ext --inplace; built=$$?; wait; exit $$built
	@touch $@

demo: install
	$(BIN)/blockwright demo

serve: install
	$(BIN)/blockwright demo --serve --port $(PORT)

# In a folder of its own, for what lies in build/ gets into the wheel. Each Python compiles with the mypy of constraints.txt.
wheel: setup
	rm -rf $(BUILD) dist && mkdir -p $(BUILD)/pythons
	for python in $(PYTHONS); do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "there is no $$python"; continue; }; \
	  place=$(BUILD)/pythons/$$($$python -c 'from sysconfig import get_config_var; print(get_config_var("SOABI"))'); \
	  $$python -m venv $$place && \
	  $$place/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt mypy setuptools || exit 1; done
	{ echo "[build]"; echo "build_base = $(BUILD)/tree"; echo "[egg_info]"; echo "egg_base = $(BUILD)"; \
	  echo "[build_ext]"; echo "pythons = $$(find $(CURDIR)/$(BUILD)/pythons -path '*/bin/python' | tr '\n' ':')"; } > $(BUILD)/steps.cfg
	DIST_EXTRA_CONFIG=$(BUILD)/steps.cfg $(BIN)/python -m pip wheel --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation -w dist .
	@ls -l dist

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The scripts are checked apart from the package: they are run by path and import their neighbors by bare name.
types: setup
	$(BIN)/mypy
	MYPYPATH=examples:benchmarks $(BIN)/mypy examples/*.py benchmarks/*.py

# Types are checked while the tests run: mypy takes one core, and system tests leave some of the others.
test: lint
	@$(MAKE) --no-print-directory -j$(if $(filter 1,$(JOBS)),1,2) types suite sources

suite: setup
	$(PYTEST)

# Where the policies are compiled, tests of the hot ones run once more as the sources: those that look inside, and those of the
# machine and of its memory (make nightly: all of both rooms). One process: the types and the suite have the cores.
sources: setup
	BLOCKWRIGHT_COMPILED=0 $(BIN)/python -m pytest \
	  tests/policies/sweep/test_snapshot.py tests/policies/sweep/test_state.py tests/policies/memory

# Nothing beside transformers, no processes, no thousand seeds, no figures.
quick: lint
	$(PYTEST) -m "not system" tests/policies tests/transport tests/runtime tests/actors tests/api tests/test_architecture.py \
	  --ignore tests/runtime/test_safety.py --ignore tests/runtime/test_planted.py --ignore tests/policies/test_live_cuts.py \
	  --ignore tests/policies/sweep/test_flooding_tenant.py --ignore tests/actors/profiling --ignore tests/actors/test_worker.py \
  --ignore tests/policies/test_growing_leases.py --ignore tests/policies/test_changes.py --ignore tests/policies/test_pressure.py \
  --ignore tests/policies/sweep/test_page_pins.py --ignore tests/policies/cluster/test_placement.py --ignore tests/actors/test_scaling_live.py \
  --ignore tests/actors/test_worker_budget.py --ignore tests/policies/test_compaction.py --ignore tests/api/test_slow_clients.py \
  --ignore tests/policies/overload/test_drop_plan.py --ignore tests/policies/sweep/test_forecast.py

caps: setup
	for cap in amx avx512_bf16 avx512 avx2 generic; do \
	  $(MAKE) --no-print-directory capped CAP=$$cap || exit 1; done

capped: setup
	$(PYTEST) tests/gpu tests/equality tests/actors/test_worker.py tests/system/test_kill.py

nightly: setup
	@echo "make nightly SEED=$(SEED) SEEDS=$(SEEDS) SLICE='$(SLICE)' does the same again"
	$(PYTEST) --nightly --seed $(SEED) --seeds $(SEEDS) --hypothesis-seed $(SEED) $(SLICE)
	$(if $(SLICE),,BLOCKWRIGHT_COMPILED=0 $(PYTEST) tests/policies/sweep tests/policies/memory)
	$(if $(SLICE),,@$(MAKE) --no-print-directory mutants SEED=$(SEED))

# What survives is a report, no failure: some changes alter nothing that anybody could see.
mutants: setup
	@echo "make mutants SEED=$(SEED) COUNT=$(COUNT) ONLY='$(ONLY)' does the same again"
	$(BIN)/python tests/mutants.py --seed $(SEED) --count $(COUNT) $(if $(ONLY),--only $(ONLY))

equality: setup
	$(PYTEST) --nightly -m equality

looks: setup
	BLOCKWRIGHT_PICTURES=$(CURDIR)/docs/pictures $(BIN)/python -m pytest --nightly tests/system/test_page.py

compat: setup
	$(BIN)/python tests/compat/run.py $(foreach suite,$(ONLY),--only $(suite))

bench: setup
	$(BIN)/python benchmarks/all.py $(if $(STORE),--store) $(if $(BESIDE),--beside $(BESIDE)) $(if $(ONLY),--only $(ONLY))

clean:
	rm -rf $(VENV) .compat .peers build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf gpu/cpu/kernels/*.so policies/_compiled
