# `make demo` and `make test` set up everything they need; only a Python >= 3.11 (SGLang's own
# requirement), make and a network are assumed.

PYTHON ?= $(firstword $(foreach p,python3 python3.11 python3.12 python3.13,\
    $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))

# The environment is 11 GB, so clones with the same lock share one, kept under the lock's hash. It
# holds the dependencies only, never the project.
CACHE := $(or $(SPEC_TOGGLE_VENV_CACHE),$(HOME)/.cache/spec-toggle)
TAG := $(shell $(PYTHON) -c 'import sys; print("py%d%d" % sys.version_info[:2])' 2>/dev/null)
HASH := $(shell sha256sum requirements.lock | cut -c1-12)
VENV := $(CACHE)/venv-$(HASH)-$(TAG)
STAMP := $(VENV)/.complete
PY := $(VENV)/bin/python

# SGLang finds the plugin by entry-point metadata. An editable install would write this clone's path
# into the shared environment; metadata beside the sources, with this folder on PYTHONPATH, is found
# in the same way and stays in this clone. Processes that SGLang spawns inherit the variable.
METADATA := spec_toggle.egg-info/PKG-INFO
export PYTHONPATH := $(CURDIR)
export PATH := $(VENV)/bin:$(PATH)
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := check
.PHONY: venv demo test test-gpu test-0512 lint check clean

venv: $(METADATA)

$(STAMP): requirements.lock
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found: set PYTHON=..." >&2; exit 1; }
	@mkdir -p $(CACHE)
	@# Another clone may be at it: the second one waits, then finds the stamp.
	flock $(VENV).lock sh -ec 'test -f $@ || { \
	    $(PYTHON) -m venv --clear $(VENV); \
	    $(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock; }; touch $@'

$(METADATA): pyproject.toml $(STAMP)
	$(PY) -c 'from setuptools import setup; setup()' -q egg_info
	@touch $@
	@# For people and editors; nothing here goes through the link.
	@if test -L .venv || test ! -e .venv; then ln -sfn $(VENV) .venv; fi

demo: venv
	$(PY) -m spec_toggle.demo

# No GPU: these run on the reference CPU engine, on a GPU machine too. Each worker takes about 4 GB.
WORKERS ?= 2
test: venv
	CUDA_VISIBLE_DEVICES= $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile -m "not alone"
	CUDA_VISIBLE_DEVICES= $(PY) -m pytest -m alone tests/engine

test-gpu: venv
	$(PY) -m pytest tests/gpu tests/engine/test_sampling.py

# The older supported generation, on its own pins: 10 GB in an environment of its own. The suites
# that speak of the scheduler's worker, not of one release's HTTP server or profiler.
VENV_0512 := $(CACHE)/venv-0.5.12.post1-$(TAG)

$(VENV_0512)/.complete:
	@mkdir -p $(CACHE)
	$(PYTHON) -m venv --clear $(VENV_0512)
	$(VENV_0512)/bin/python -m pip install --quiet --disable-pip-version-check \
	    'sglang==0.5.12.post1' 'kernels<0.15' 'rich>=13' 'pytest>=8' 'pytest-timeout>=2.3'
	@touch $@

test-0512: venv $(VENV_0512)/.complete
	CUDA_VISIBLE_DEVICES= PATH=$(VENV_0512)/bin:$$PATH $(VENV_0512)/bin/python -m pytest \
	    tests/engine/test_equality.py tests/engine/test_draft_sync.py tests/engine/test_traps.py \
	    tests/engine/test_worker_batch.py

lint: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

check: lint test

# The shared environment and the trained model pair stay in the cache.
clean:
	rm -rf build dist spec_toggle.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
	if test -L .venv; then rm .venv; fi
