# Two commands do everything: `make demo` and `make test`. Each sets up what it needs from nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
CORE   := $(VENV)/.core
READY  := $(VENV)/.ready

EXTRAS := .venv-extras
HEAVY  := $(EXTRAS)/.ready

# every worker and command that the tests start loads torch: keep compiled modules, also where the environment says not to
export PYTHONDONTWRITEBYTECODE :=

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test test-extras coverage quick lint format docs bench dependencies clean

demo: $(CORE)
	$(BIN)/python examples/demo.py --out demo

test: $(READY)
	$(PYTEST) --durations=10

# the same with the share of lines that the tests run, which takes a third longer
coverage: $(READY)
	$(PYTEST) --cov --cov-report=term

# the heaviest families (transformers, Keras, CatBoost, OR-Tools), in an environment of their own
test-extras: $(HEAVY)
	OMP_NUM_THREADS=1 KERAS_BACKEND=torch $(EXTRAS)/bin/python -m pytest -n 2 --dist worksteal -q tests/extras

# between edits: all tests but the slow ones, in under 90 s on two free cores
quick: $(READY)
	$(PYTEST) -q -m "not slow" --maxfail 5

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	$(BIN)/python -m pytest -q tests/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(READY)
	$(BIN)/python -m experiments

# known vulnerabilities (needs PyPI; says so where it cannot be asked) and licences of everything that is installed
dependencies: $(READY)
	test -x $(VENV)/pip-audit/bin/pip-audit || ($(PYTHON) -m venv $(VENV)/pip-audit && \
	    $(VENV)/pip-audit/bin/python -m pip install --quiet pip-audit)
	$(BIN)/python .github/dependencies.py licences --out licences.md
	$(BIN)/python .github/dependencies.py advisories --pip-audit $(VENV)/pip-audit/bin/pip-audit

clean:
	rm -rf $(VENV) $(EXTRAS) demo results licences.md .pytest_cache .mypy_cache .ruff_cache .coverage* build dist src/*.egg-info

# what the demo needs; modules are compiled when first imported, not all at once
$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --editable ".[privacy,pdf]"
	touch $(CORE)

# and what tests, checks and benchmarks need
$(READY): $(CORE)
	$(PIP) --editable ".[dev]"
	touch $(READY)

# what the heaviest families need beyond that; it finds everything else in the other environment
$(HEAVY): $(READY)
	test -x $(EXTRAS)/bin/python || $(PYTHON) -m venv $(EXTRAS)
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > \
	  "$$($(EXTRAS)/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth"
	$(EXTRAS)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[heavy]"
	touch $(HEAVY)
