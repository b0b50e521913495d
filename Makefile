# The commands of this project. They need only make and Python 3.11 or newer.

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check --quiet
CODE := $(wildcard src tests bench)
ARGS ?=

# Tests start many processes: each would compile the whole project again.
unexport PYTHONDONTWRITEBYTECODE

# The first of these that runs and is new enough; looked for only when .venv is made.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev run kafka postgres check quick test test-long bench-check lint style types fmt docs bench \
	lock clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.run  ## make .venv with the command .venv/bin/tidings

setup-dev: $(VENV)/.dev  ## the same, with the tools for tests and style

run: setup  ## start Tidings; flags in ARGS="--port 8461"
	$(BIN)/tidings serve $(ARGS)

kafka: setup  ## start a real Kafka on localhost:9092 (needs Java 17 and Maven); flags in ARGS="--port 9093"
	@$(BIN)/python -m tests.servers kafka $(ARGS)

postgres: setup  ## start a PostgreSQL on localhost:5432 (it must be installed); flags in ARGS="--port 5433"
	@$(BIN)/python -m tests.servers postgres $(ARGS)

# Types are checked beside the tests. Errors are printed again at the end, where they are seen.
check: style  ## style, types, layers and the quick tests: about two minutes
	@$(MAKE) --no-print-directory -j 2 types quick || { $(MAKE) --no-print-directory types; exit 1; }

# Three processes keep two cores busy. Each more would collect all tests again, which takes 5 s of a core.
quick: setup-dev
	$(BIN)/pytest -m "not slow and not kill and not bench" -n 3 --dist loadfile $(ARGS)

# Two processes share the slow tests, in their order: files of few tests are the long ones. What takes the time between
# two events comes when all others are done.
test: check  ## slow tests and kill loops too
	$(BIN)/pytest -m "slow and not kill and not timed and not bench and not long" -n 2 --dist loadfile \
		--no-loadscope-reorder $(ARGS)
	$(BIN)/pytest -m kill -n 2 --dist worksteal $(ARGS)
	$(BIN)/pytest -m timed -n 2 --dist worksteal $(ARGS)

test-long: lint  ## what takes too long for every run: more lives, more cuts
	$(BIN)/pytest -m long -n 2 $(ARGS)

bench-check: lint  ## see that the benchmarks of servers run, on tiny sizes
	$(BIN)/pytest -m bench $(ARGS)

lint: style types

style: setup-dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/lint-imports --no-logo

types: setup-dev
	$(BIN)/mypy $(CODE)

fmt: setup-dev  ## format the code and apply the safe fixes
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

docs: setup-dev  ## write the tables of docs/reference that are derived from the code
	$(BIN)/python -m tests.docs.tables

bench: $(VENV)/.peers  ## list the benchmarks; run one: ARGS="burst --json", all: ARGS=--all
	$(BIN)/python -m bench $(ARGS)

clean:  ## remove .venv and what the tools left behind
	rm -rf $(VENV) build dist .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- .venv: each stamp says that its lock is installed; a second call does nothing -----------------------------------

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Tidings needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a venv: install its venv module (Debian, Ubuntu: python3-venv)" >&2; exit 1; }

$(VENV)/.run: requirements/run.txt pyproject.toml | $(BIN)/python
	@echo "installing $< (this may take a minute or two)"
	@$(PIP) install --require-hashes -r $<
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "installing $< (this may take a minute or two)"
	@$(PIP) install --require-hashes -r $<
	@touch $@

$(VENV)/.peers: requirements/peers.txt $(VENV)/.dev
	@echo "installing $<"
	@$(PIP) install --require-hashes -r $<
	@touch $@

# --- locks: `make lock` keeps what is pinned, `make lock ARGS=--upgrade` takes the newest; needs uv ------------------

COMPILE = uv pip compile pyproject.toml --quiet --universal --fork-strategy fewest --python-version 3.11 \
	--generate-hashes --custom-compile-command "make lock" --extra kafka --extra postgres $(ARGS)

lock:  ## write requirements/*.txt again from pyproject.toml (needs uv)
	$(COMPILE) --extra build -o requirements/run.txt
	$(COMPILE) --extra dev -c requirements/run.txt -o requirements/dev.txt
	$(COMPILE) --extra peers -c requirements/dev.txt -o requirements/peers.txt
