# `make demo` and `make test` do everything on a fresh machine. Both use a virtual environment of their own.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo docs test test-matrix torture figures benchmark lint clean

$(VENV)/installed: pyproject.toml constraints.txt setup.py $(wildcard src/liebayes/native/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	PATH="$(abspath $(BIN)):$$PATH" pyright --verifytypes liebayes --ignoreexternal  # takes its Python from the path only

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal  # neighbours stay together: their fixtures are made once

# The suite under other instruction sets, threads, seeds and kernels; resumable, its last result in results/test_matrix.md.
test-matrix: $(VENV)/installed
	$(BIN)/python tests/matrix.py

# Takes hours, in as many invocations as it takes: counts and failures are in results/torture.
torture: $(VENV)/installed
	$(BIN)/python tests/torture

# The site, in site/: open site/index.html, or serve it (searching needs a server): python -m http.server -d site
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

figures: $(VENV)/installed
	$(BIN)/liebayes reproduce figure1 --results docs
	$(BIN)/python examples/dale_rnn.py docs/dale-rnn.png
	$(BIN)/python benchmarks/free_energy.py --picture

benchmark: $(VENV)/installed
	$(BIN)/python benchmarks/fit.py
	$(BIN)/python benchmarks/speed
	$(BIN)/python benchmarks/speed --parts
	$(BIN)/python benchmarks/speed --scaling
	$(BIN)/python benchmarks/readme_tables.py

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .ruff_cache .hypothesis
