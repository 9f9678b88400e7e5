# The commands of the README and of CONTRIBUTING.md. All set everything up in $(VENV) first; nothing else on the machine is
# touched.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo deploy-demo test test-fast test-slow test-instructions lint docs wheel matrix

demo: $(VENV)/installed
	$(BIN)/kinfed compare fedavg fedper fedshibu fedkin local --data digits --train-images 600 --public 64 \
	    --clients 20 --partition iid --shift permute_labels:4 --rounds 30 --local-epochs 3 --batch-size 8 --seeds 3 --workers 2 \
	    --out runs/demo --overwrite

test: $(VENV)/installed
	$(BIN)/pytest -n 2 -m "not slow"

# For the inner loop: rules of the code, measures, configs, golden traces and exact reductions, in under a minute.
FAST = tests/test_floors.py tests/test_docs.py tests/test_registry.py tests/test_files.py tests/similarity/test_similarity_values.py \
    tests/experiment/test_config.py tests/methods/test_golden.py tests/methods/test_reductions.py tests/data/test_partition_recipes.py
test-fast: $(VENV)/installed
	$(BIN)/pytest -n 2 -m "not slow" $(FAST)

# What takes long: processes that die, fuzzing, many runs. PART=2/3 runs the second third of it.
PART ?= 1/1
test-slow: $(VENV)/installed
	$(BIN)/pytest -n 2 -m slow --part $(PART)

# The tests of numbers with the instructions of other processors: a machine of another kind shall find nothing new.
# A processor without AVX-512 has only its own and older ones: `make test` has tried its own.
NUMBERS = $(filter-out tests/similarity/test_similarity_inputs.py,$(wildcard tests/similarity/test_*.py)) \
    tests/methods/test_golden.py tests/methods/test_reductions.py tests/methods/test_crsm.py
LIMITS = ATEN_CPU_CAPABILITY=default \
    $(shell [ -r /proc/cpuinfo ] && ! grep -q avx512f /proc/cpuinfo || echo ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2)
test-instructions: $(VENV)/installed
	for limit in $(LIMITS); do \
	    echo "with $$limit"; env $$limit $(BIN)/pytest -n 2 -m "not slow" $(NUMBERS) || exit 1; \
	done

# The commands of docs/deploy.md as they are written: a server and three sites on this machine.
deploy-demo: $(VENV)/installed
	$(BIN)/python benchmarks/deploy_demo.py

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/site. Broken links and programs of the tutorial that fail are errors.
docs: $(VENV)/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --conf-dir docs/site --fresh-env docs build/site
	@echo "open build/site/index.html"

$(VENV)/docs: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

wheel: $(VENV)/installed
	$(BIN)/python -m build --outdir dist .

# The tests of the core with the lowest versions of its dependencies, and with the newest on every Python that uv or pyenv has.
# For each, the index must have wheels of all dependencies, also for a Python that this machine lacks. MATRIX=index asks only that,
# in a minute; a test of one version downloads gigabytes, most of them PyTorch.
PYTHONS ?= 3.11 3.12 3.13 3.14
MATRIX ?= tests
matrix: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	@export UV_PYTHON_DOWNLOADS=never PYENV_VERSION="$$(pyenv versions --bare 2>/dev/null | paste -sd: -)"; \
	try() { \
	    echo "Python $$1, $$2 versions: the index"; \
	    $(BIN)/uv pip compile --quiet --only-binary :all: --python-version $$1 --resolution $$2 $$3 pyproject.toml >/dev/null || exit 1; \
	    if [ $(MATRIX) = index ]; then return; fi; \
	    if ! $(BIN)/uv python find --quiet $$1 >/dev/null 2>&1; then echo "no Python $$1 here"; return; fi; \
	    echo "Python $$1, $$2 versions: the tests"; \
	    $(BIN)/uv run --quiet --isolated --no-project --python $$1 --resolution $$2 \
	        --with '.[tensorboard,privacy]' --with 'pytest>=8' --with 'pytest-xdist>=3' --with 'hypothesis>=6.100' \
	        pytest -n 2 -m "not slow" $(FAST) || exit 1; \
	}; \
	try 3.11 lowest-direct; \
	for version in $(PYTHONS); do try $$version highest '--extra all'; done

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "kinfed needs Python 3.11 or newer; name one with: make PYTHON=python3.12"; exit 1; }
	@echo "Setting up $(VENV), which takes some minutes, most of them for PyTorch"
	@$(PYTHON) -m venv $(VENV)
	@# A terminal shows pip's progress, which pip has for downloads and, since 25.1, for installing; a log shows errors only.
	@if [ -t 1 ]; then quiet=; else quiet=--quiet; fi; export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	    $(BIN)/pip install --quiet 'pip>=25.1' && $(BIN)/pip install $$quiet --editable '.[dev]'
	@touch $@
