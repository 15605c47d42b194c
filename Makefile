# Every target sets up .venv by itself, is quick when nothing changed, and works again
# after an interrupted install: a stamp is written only when an install has finished.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PORT ?= 7860
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.ready-run
TEST_STAMP := $(VENV)/.ready-test
PYTEST_ARGS ?=
# Test files are dealt out to this many processes; 0 runs them one after the other in this one.
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint notebooks figures docs clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

$(BIN)/.works:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "KDALab needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@touch $@

$(RUN_STAMP): $(BIN)/.works pyproject.toml constraints.txt
	@echo "Installing KDALab into $(VENV) (the first time takes a few minutes) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e .
	@touch $@

$(TEST_STAMP): $(RUN_STAMP)
	@echo "Installing what the tests need into $(VENV) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[test]'
	@touch $@

setup: $(TEST_STAMP) ## set up .venv with everything (run, test and bench)

demo: $(RUN_STAMP) ## open the demos on http://127.0.0.1:7860 (PORT=... for another)
	@$(BIN)/kdalab demo --port $(PORT)

test: $(TEST_STAMP) ## run the tests (PYTEST_ARGS="-k radix" to choose)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

lint: $(TEST_STAMP) ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

notebooks: $(TEST_STAMP) ## execute every notebook from start to end
	@$(BIN)/python -m pytest --nbmake --nbmake-timeout=120 -p no:timeout notebooks

figures: $(TEST_STAMP) ## draw every figure into figures/
	@$(BIN)/kdalab plot --all --out figures

docs: $(TEST_STAMP) ## build the book into site/ (open site/index.html)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

clean: ## remove what the other targets made
	rm -rf $(VENV) figures site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
