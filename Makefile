# Everything here builds and uses .venv in this folder. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast test-all mutants faults hostile kaggle-sim platforms bench bench-gpu docs notebooks readme picture gallery lock wheel release clean

# Packages lying on these paths would stand in front of the locked ones.
unexport PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE := 1

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  make TARGET PYTHON=python3.12 chooses the Python that .venv is built with (3.11 or newer)"

# Two stamps: a changed lock rebuilds the environment, a changed pyproject.toml only installs this package anew.
$(VENV)/.lock-installed: requirements-dev.lock
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "spectrakit needs Python 3.11 or newer, and $(PYTHON) is $$("$(PYTHON)" -V 2>&1)." \
	    "Name a newer one: make PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Building $(VENV) with the packages of requirements-dev.lock: once, a minute or two, torch is the large one."
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(PIP) install -r requirements-dev.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.lock-installed pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

demo: $(VENV)/.installed  ## train on real spectra; prints how good it got and where the runs are
	@$(RUN) -m spectrakit.tasks.demo

test: $(VENV)/.installed  ## every check: notebooks in step, their cells, pytest
	@$(RUN) tools/check.py

test-fast: $(VENV)/.installed  ## the same without what is marked slow, for daily work
	@$(RUN) tools/check.py --fast

test-all: $(VENV)/.installed  ## the same with every combination of what `make test` samples
	@$(RUN) tools/check.py --all

mutants: $(VENV)/.installed  ## break what counts, one behaviour at a time: the nearest tests have to notice
	@$(RUN) tools/mutants.py $(MUTANTS)

faults: $(VENV)/.installed  ## kill, hang, fill and break runs in every way, 200 times at random; an hour or two
	@$(RUN) tools/faults.py $(FAULTS)

kaggle-sim: $(VENV)/.installed  ## wheels, data and kernels to submission.csv in a sealed Kaggle, fresh and chained
	@$(RUN) tools/kaggle_sim $(or $(SIM),story)

platforms: $(VENV)/.installed  ## the light tests, launch modes, kernel and simulator on Kaggle's and Colab's own Python and torch
	@$(RUN) tools/platforms.py $(PLATFORMS)

hostile: $(VENV)/.installed  ## open, resume, predict with and report what strangers may bring along: nothing of it runs
	@FUZZ_LINES=860 $(RUN) -m pytest -q tests/hostile $(HOSTILE)

bench: $(VENV)/.installed  ## measure ourselves beside others, and write bench/results.md; BENCH="loop data" runs only these
	@$(RUN) bench/page.py $(BENCH)

docs: $(VENV)/.installed  ## build the documentation site from pages, notebooks and docstrings into build/docs; a broken link is an error
	@$(RUN) -m sphinx --quiet --fail-on-warning --keep-going -j auto -c docs . build/docs
	@echo "build/docs/docs/index.html"

bench-gpu: $(VENV)/.installed  ## check captured steps and measure steps on one GPU in 8 minutes; writes bench/gpu.json
	@$(RUN) bench/gpu.py $(BENCH)

notebooks: $(VENV)/.installed  ## execute all notebooks and keep their outputs
	@$(RUN) tools/notebooks.py run

readme: $(VENV)/.installed  ## render README.md from nbs/index.ipynb
	@$(RUN) tools/readme.py

picture: $(VENV)/.installed  ## photograph the live cell of a real run for README.md, with chromium
	@$(RUN) tools/live_picture.py

gallery: $(VENV)/.installed  ## draw the pictures of docs/gallery.md anew, with chromium
	@$(RUN) tools/gallery.py $(GALLERY)

lock:  ## resolve requirements-dev.in anew into requirements-dev.lock
	@"$(PYTHON)" tools/lock.py

wheel: $(VENV)/.installed  ## build dist/spectrakit-*-py3-none-any.whl
	@rm -rf build/lib build/bdist.*
	@$(RUN) -m build --wheel --no-isolation --outdir dist .
	@rm -rf build/lib build/bdist.*

release: $(VENV)/.installed  ## wheel, source archive, wheelhouse and SHA256SUMS of the last commit, in dist/, reproducibly
	@$(RUN) tools/release.py $(RELEASE)

clean:  ## remove .venv and everything built; runs/ stays
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache
	@find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +
