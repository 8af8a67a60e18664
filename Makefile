# make demo   install into .venv, train on the built-in dataset, and write a report of what was learned
# make test   install into .venv and run the tests
# make test-oldest  install the lowest versions that pyproject.toml allows into .venv-oldest and run the tests
# make check  format, lint, types, and who may import whom
PYTHON ?= python3
BIN := .venv/bin
OLDEST := .venv-oldest/bin
OLDEST_PYTHON ?= python3.11
PARALLEL := -n auto --maxprocesses 8

.PHONY: demo test test-all test-oldest check format clean

demo: .venv/installed
	$(BIN)/divconq train demo --analyze

test: .venv/installed
	$(BIN)/python -m pytest $(PARALLEL)

test-all: .venv/installed
	$(BIN)/python -m pytest $(PARALLEL) -m "not gpu"

test-oldest: .venv-oldest/installed
	$(OLDEST)/python -m pytest $(PARALLEL)

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("divconq needs Python 3.11 or later, this is " + sys.version.split()[0] + "; name another with PYTHON=...") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing divconq and its dependencies into .venv (PyTorch is large: a few minutes)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $@

# Python 3.11 has wheels of all these versions. The versions of indirect dependencies are the newest that fit.
.venv-oldest/installed: pyproject.toml
	$(OLDEST_PYTHON) -m venv .venv-oldest
	$(OLDEST)/python -m pip install --quiet --upgrade pip uv
	$(OLDEST)/python -m uv pip install --quiet --python $(OLDEST)/python --compile-bytecode --resolution lowest-direct -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv .venv-oldest .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
