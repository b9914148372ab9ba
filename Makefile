# `make demo` and `make test` do everything on a fresh machine. Both use a virtual environment of their own.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-matrix torture figures benchmark lint clean

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
	$(BIN)/python -m pytest -n 2

# The suite under other instruction sets, threads, seeds and kernels; resumable, its last result in results/test_matrix.md.
test-matrix: $(VENV)/installed
	$(BIN)/python tests/matrix.py

torture: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 tests/torture -o python_files='torture_*.py'

figures: $(VENV)/installed
	$(BIN)/liebayes reproduce figure1 --results docs

benchmark: $(VENV)/installed
	$(BIN)/python benchmarks/fit.py
	$(BIN)/python benchmarks/speed
	$(BIN)/python benchmarks/speed --parts
	$(BIN)/python benchmarks/speed --scaling
	$(BIN)/python benchmarks/readme_tables.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
