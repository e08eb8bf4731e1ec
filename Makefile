# `make help` lists what there is to make. Every target sets up .venv first where that is needed.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_OUT ?= demo
CODE := src tests examples benchmarks docs
DOCS_INSTALLED := $(VENV)/.docs_installed

# The first Python that is new enough; `make PYTHON=...` overrules.
PYTHON ?= $(shell for name in python3.11 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
# For example --extra-index-url with the address of PyTorch's CPU builds
PIP_OPTIONS ?=
# Tests in two processes; -n 0 for one
PYTEST_OPTIONS ?= -n 2

.PHONY: help demo test lint format docs dist clean

help:
	@echo "make demo    learn four phantom datasets, segment, score; writes $(DEMO_OUT)/report.html (DEMO_OUT=FOLDER)"
	@echo "make test    lint, then all tests"
	@echo "make lint    ruff (rules and format) and mypy"
	@echo "make format  let ruff fix what it can"
	@echo "make docs    build the documentation site: build/site/index.html"
	@echo "make dist    build the wheel and the source archive: build/dist/"
	@echo "make clean   remove .venv and caches; demos and your models stay"

# One pip call: the constraints must hold for torch too, or pip picks another build of it.
$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found: give one with make PYTHON=..."; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON): a few minutes, once."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_OPTIONS) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED)
	@if [ -e "$(DEMO_OUT)/report.html" ]; then \
		echo "$(DEMO_OUT)/report.html is there from an earlier demo. For a new one: make demo DEMO_OUT=FOLDER"; \
	else \
		$(BIN)/conseg demo --out "$(DEMO_OUT)"; \
	fi

test: lint
	$(BIN)/pytest $(PYTEST_OPTIONS)

lint: $(INSTALLED)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

# Into the same environment: the command reference is made from our own parser, so the package is needed too.
$(DOCS_INSTALLED): $(INSTALLED)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_OPTIONS) -c constraints.txt -e '.[docs]'
	@touch $@

# mkdocs-material prints an advertisement for its successor, in which a warning of ours would be missed.
docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The build tool makes an environment of its own, in which setuptools runs.
dist: $(INSTALLED)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_OPTIONS) -c constraints.txt build
	@mkdir -p build && rm -rf build/dist build/lib src/*.egg-info/SOURCES.txt
	$(BIN)/python -m build --outdir build/dist > build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@ls -l build/dist

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
