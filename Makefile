# make demo   install into .venv, train on the built-in dataset, and write a report of what was learned
# make test   install into .venv and run the tests
# make check  format, lint, types, and who may import whom
PYTHON ?= python3
BIN := .venv/bin
PARALLEL := -n auto --maxprocesses 8

.PHONY: demo test test-all check format clean

demo: .venv/installed
	$(BIN)/divconq train demo --analyze

test: .venv/installed
	$(BIN)/python -m pytest $(PARALLEL)

test-all: .venv/installed
	$(BIN)/python -m pytest $(PARALLEL) -m "not gpu"

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("divconq needs Python 3.10 to 3.13, this is " + sys.version.split()[0] + "; name another with PYTHON=...") if not (3, 10) <= sys.version_info[:2] <= (3, 13) else 0'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing divconq and its dependencies into .venv (PyTorch is large: a few minutes)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
