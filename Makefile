# Two commands do everything: `make demo` and `make test`. Each sets up what it needs from nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
CORE   := $(VENV)/.core
READY  := $(VENV)/.ready

.PHONY: demo test lint format bench clean

demo: $(CORE)
	$(BIN)/python -m divulge.demo --out demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --durations=10

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) demo results .pytest_cache .mypy_cache .ruff_cache .coverage* src/*.egg-info

# what the demo needs; modules are compiled when first imported, not all at once
$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) --editable ".[privacy]"
	touch $(CORE)

# and what tests, checks and benchmarks need
$(READY): $(CORE)
	$(PIP) --editable ".[dev]"
	touch $(READY)
