# `make demo` trains a language model with a cell of your own on the CPU.
# `make test` checks everything; of cases that are much alike it runs some, and it leaves out long programs.
# `make test-all` runs all of them, compiles every kernel that is looked at, draws twenty times as many random examples, and
# others than `make test`, then runs `make kernels`: long.
# `make clients` installs other people's libraries, and tests layers in them (docs/clients.md).
# `make kernels` compiles every shipped cell's GPU kernels and checks what NVRTC made of them: long.
# `make dist` builds rnncc's own wheel and source distribution into dist/, and checks them.
# `make site` builds the pages of docs/, the API and a gallery of the cells as a site in build/site/html.
# `make site-version` also commits it to the branch gh-pages, beside the sites of other versions.
# All first set up the virtual environment $(VENV), once: a second run starts at once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Used where the environment has no PyTorch yet. To use another build, install it into $(VENV) first.
TORCH ?= torch==2.13.0

.PHONY: demo test tests test-all lint clients kernels dist site site-version setup clean

demo: setup
	$(BIN)/python examples/char_lm.py

# The linters and the tests run side by side.
test: setup
	@$(MAKE) --no-print-directory -j2 lint tests

tests: setup
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore=tests/clients

# Each run says its seed: `make test-all FRESH=12345` draws the same again.
FRESH ?= new

test-all: lint
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore=tests/clients --all --fresh $(FRESH)
	$(BIN)/python -m tests.cuda.kernels

lint: setup
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

clients: setup
	$(BIN)/python -m pip install --quiet -e ".[dev,clients]"
	$(BIN)/python -m pytest -m clients tests/clients

kernels: setup
	$(BIN)/python -m tests.cuda.kernels

dist: setup
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

site: setup
	$(BIN)/python -c "import material, mkdocstrings" 2>/dev/null || $(BIN)/python -m pip install --quiet -e ".[docs]"
	PYTHONPATH=benchmarks $(BIN)/python docs/site/make.py

site-version: setup
	$(BIN)/python -c "import material, mkdocstrings, mike" 2>/dev/null || $(BIN)/python -m pip install --quiet -e ".[docs]"
	PYTHONPATH=benchmarks $(BIN)/python docs/site/make.py --keep gh-pages

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
