# Every target sets up its own virtual environment when it is missing or older than its inputs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test files in one process more than there are cores, each with one thread: some wait. Two for each core take a fourth
# more CPU time than one, measured on four files that never wait: they share its caches.
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(4, os.cpu_count() + 1))')
SIDE_BY_SIDE := -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
PIP_QUIET := --quiet --disable-pip-version-check
# Where torch comes from: the options of the line that PyTorch's install page gives for your machine, e.g. for CPUs.
TORCH_FROM ?=

.PHONY: help demo test tests check check-report check-loggers check-flower check-proxies check-timm check-install release-check screenshots bench bench-gpu results docs soak format clean

help:
	@echo "make demo    federated training with FedEMA on non-IID CIFAR-10, a few minutes"
	@echo "make test    every check and test"
	@echo "make check   lint, format, types, layers, spelling (no tests)"
	@echo "make check-report  look at a report in headless Chromium (needs Chromium or Chrome)"
	@echo "make check-loggers  install Weights & Biases and MLflow and try them offline"
	@echo "make check-flower  Flower: simulations on Ray, a deployment with TLS whose parts are killed (some minutes)"
	@echo "make check-proxies  a deployment through a real nginx and tinyproxy (needs both: apt install nginx tinyproxy)"
	@echo "make check-timm  the newest torch, torchvision, timm and huggingface_hub: networks, weights and exports (some GB)"
	@echo "make check-install  install into a fresh environment, run every line of the README there (some minutes)"
	@echo "make release-check  build, twine check, and check-install with the wheel that was built"
	@echo "make screenshots  the pictures of the documentation anew: make screenshots RUN=runs/demo (needs Chromium)"
	@echo "make bench   every speed target side by side with a baseline: a table, JSON and a plot (20 to 35 minutes)"
	@echo "make bench-gpu  for machines with a GPU: an epoch of the paper's network beside its bare steps"
	@echo "make results  the tables and the picture of the documentation from the records in results/"
	@echo "make docs    the website into site/, no dead link, no missing reference; nothing is fetched"
	@echo "make soak    kills at random instants, a full disk, damage, ten thousand rounds, made-up replies (half an hour)"
	@echo "make format  rewrite the code in the project's format"
	@echo "make clean   remove the environment and caches (runs/ stays)"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 14)))' || \
	  { echo "fedssl needs Python 3.11 to 3.14; choose one with: make PYTHON=python3.12 ..."; exit 1; }
	@echo "setting up $(VENV) (once; PyTorch is the large part, with CUDA some GB: see TORCH_FROM in the README)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP_QUIET) --constraint constraints.txt $(TORCH_FROM) torch
	@$(BIN)/python -m pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/fedssl demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/*.py
	$(BIN)/lint-imports
	$(BIN)/codespell

# Checks take one core for a minute: beside the tests that is half a minute.
test: $(STAMP)
	@$(MAKE) --no-print-directory -j2 check tests

# Bytecode is kept even where it is not wanted: every process would compile all tests anew.
tests: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE) --cov --cov-report=term --cov-fail-under=90 -m 'not browser and not loggers and not flower and not proxies and not timm and not install'

check-loggers: $(STAMP)
	$(BIN)/python -m pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[wandb,mlflow]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m loggers

check-flower: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m flower

check-proxies: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m proxies

# Its own environment, several GB: the newest of each, whatever constraints.txt says.
check-timm:
	@test -x .venv-timm/bin/python || $(PYTHON) -m venv .venv-timm
	.venv-timm/bin/python -m pip install $(PIP_QUIET) --upgrade torch torchvision timm huggingface_hub pytest --editable .
	OMP_NUM_THREADS=1 .venv-timm/bin/python -m pytest -m timm tests/encoders/export/test_real_libraries.py

check-install: $(STAMP)
	TORCH_FROM='$(TORCH_FROM)' $(BIN)/python -m pytest -m install

release-check: $(STAMP)
	$(BIN)/python -m pip install $(PIP_QUIET) --constraint constraints.txt build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	TORCH_FROM='$(TORCH_FROM)' WHEEL=$$(ls dist/*.whl) $(BIN)/python -m pytest -m install

screenshots: $(STAMP)
	$(BIN)/python -m scripts.screenshots $(RUN)

check-report: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser

bench: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.bench

bench-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu

results: $(STAMP)
	$(BIN)/python -m scripts.trials tables
	$(BIN)/python -m scripts.frontier
	$(BIN)/python -m scripts.levers
	$(BIN)/python -m scripts.rules
	$(BIN)/python -m scripts.autoscaler
	$(BIN)/python -m scripts.methods
	$(BIN)/python -m scripts.paper_records tables
	$(BIN)/python -m scripts.tutorial tables
	$(BIN)/python -m scripts.reference
	$(BIN)/python -m scripts.performance

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "open site/index.html, or with search: $(BIN)/python -m http.server --directory site"

soak: $(STAMP)
	SECURE_SUMS=1000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/federation/secure/test_sums.py -k any_dropouts
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.soak

format: $(STAMP)
	$(BIN)/python -m fedssl.cli.registries
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage dist build site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
