PYTHON ?= python3
SEED ?= 0
VARIANT ?= proportional
VENV := .venv
READY := $(VENV)/.ready
# The package alone, which is all that training needs; the rest takes minutes.
INSTALLED := $(VENV)/.installed

.PHONY: train watch can-watch test test-ray test-oldest soak check docs clean

# Train PERDQN on CartPole-v1 and evaluate it. With one thread: networks this small gain nothing from
# more, and lose much where another program runs.
train: $(INSTALLED)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m examples.cartpole --seed $(SEED) --variant $(VARIANT)
	@echo "Next: make watch"

# Show the best policy of `make train` in a window.
watch: can-watch $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet "gymnasium[classic-control]" --constraint constraints.txt
	$(VENV)/bin/python -m examples.cartpole --watch

# Before anything is installed.
can-watch:
	@test -f runs/cartpole/best_model.zip || { echo "There is no policy yet: make train" >&2; exit 1; }
	@test "$$(uname)" != Linux || test -n "$$DISPLAY$$WAYLAND_DISPLAY" || { echo "make watch needs a display" >&2; exit 1; }

# All tests, the slow ones too, on all cores, except for those that start a Ray cluster.
test: $(READY)
	$(VENV)/bin/python -m pytest --numprocesses auto --dist loadgroup

# The tests that start Ray clusters on this machine.
test-ray: $(READY)
	$(VENV)/bin/python -m pytest -m cluster tests/compare/test_ray.py

# The fast tests with the oldest versions that pyproject.toml allows: Python 3.10 or 3.11.
OLDEST := .venv-oldest
# It has its own numba cache: processes that start together while a shared cache changes from one version
# to another may read files of the other version.
test-oldest: $(OLDEST)/.ready
	NUMBA_CACHE_DIR=$(CURDIR)/$(OLDEST)/kernels $(OLDEST)/bin/python -m pytest --numprocesses auto -m "not slow"

$(OLDEST)/.ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --editable ".[test]" --constraint constraints-oldest.txt
	touch $@

# Random operations on the buffers, compared with a slow model: many more than the tests take.
STEPS ?= 1000000
soak: $(READY)
	STATE_MACHINE_STEPS=$(STEPS) $(VENV)/bin/python -m pytest tests/buffers/test_state_machine.py

# Format, lint, types and layers.
check: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# The documentation site, in docs/_build/html; warnings are errors.
docs: $(VENV)/.docs
	$(VENV)/bin/python -m sphinx -W --keep-going --quiet docs docs/_build/html
	@echo "open docs/_build/html/index.html"

$(VENV)/.docs: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --editable ".[docs]" --constraint constraints.txt
	touch $@

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable . --constraint constraints.txt
	touch $(INSTALLED)

$(READY): $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --editable ".[dev]" --constraint constraints.txt
	touch $(READY)

clean:
	rm -rf $(VENV) $(OLDEST) dist
