# The two commands of the README. Both set everything up in $(VENV) first; nothing else on the machine is touched.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint

demo: $(VENV)/installed
	$(BIN)/kinfed compare fedavg fedper fedbabu fedshibu local --data digits --clients 20 --partition shards --shards 2 \
	    --rounds 30 --batch-size 16 --lr 0.1 --probe 128 --seeds 3 --out runs/demo --overwrite

test: $(VENV)/installed
	$(BIN)/pytest -n 2 -m "not slow"

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "kinfed needs Python 3.11 or newer; name one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
