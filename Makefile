# Every target works on a fresh clone with Python 3.11, pip, git and make. `make` alone lists them.
#   make lab LAB_ARGS="--no-browser --port 8890"     options for JupyterLab
#   make test TEST_ARGS="-k cluster"                 options for pytest
#   make bench BENCH_ARGS="startup"                one benchmark, not all
#   make next NEXT_ARGS="-m quick"                 options for pytest, with the newest versions
#   make lab VENV="$CONDA_PREFIX"                    an environment that exists already
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV ?= .venv
LAB_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?= all
SITE_ARGS ?=
BUNDLE_ARGS ?=
NEXT_ARGS ?=
ifeq ($(strip $(VENV)),)
$(error VENV is empty; is the environment active?)
endif
PY := $(VENV)/bin/python
STAMP := $(VENV)/.labkit-installed
# The first of these that is a Python which pyproject.toml allows.
PYTHONS := $(PYTHON) python3.11 python3.12 python3.13 python3 python3.14
# JupyterLab refuses to run as root, which one is in most containers. It stays on loopback, behind its token.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help setup lab test test-all test-touched notebooks site examples slides bundle learners lint bench clean constraints next

help:
	@echo "make lab          open the lessons in JupyterLab (sets up first)"
	@echo "make test         lint, unit tests, every lesson, a kill of each kind, a browser"
	@echo "make test-all     everything: all faults, recipes, scripts, Spark, the site; for a night"
	@echo "make setup        make $(VENV) with everything in it; again only when the pins change"
	@echo "make notebooks    build the notebooks from lessons/"
	@echo "make site         the lessons with the outputs of the last make test, as web pages in build/site"
	@echo "make slides       a reveal.js deck for each lesson, with the teacher's notes, in build/slides"
	@echo "make bundle       one archive that installs and opens the lessons without a network, in build/bundle"
	@echo "make learners     the lessons without solutions, build/lab-learners.zip"
	@echo "make lint         ruff, check and format; the layers; types; spelling and prose; the size of the code"
	@echo "make bench        all benchmarks, hours; BENCH_ARGS=startup runs one"
	@echo "make clean        remove caches and artefacts; keeps $(VENV), runs and solved exercises"
	@echo "make constraints  write the installed versions into constraints.txt"
	@echo "make next         the tests with the newest Ray, torch, TensorFlow, Spark, Jupyter, in .venv-next"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt | $(PY)
	@echo "installing the lab into $(VENV): once, several minutes, about 5 GB"
	@$(PY) tools/install.py
	@touch $@

$(PY):
	@for python in $(PYTHONS); do \
		if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; \
		then chosen="$$python"; break; fi; \
	done; \
	if [ -z "$$chosen" ] && command -v uv >/dev/null; then \
		uv venv --seed --python 3.12 "$(VENV)"; exit; \
	fi; \
	if [ -z "$$chosen" ]; then \
		echo "could not make $(VENV): the lab needs Python 3.11 to 3.14, and python3 is $$(python3 -V 2>&1)"; \
		echo "  fix: install uv (pip install uv), which fetches a Python for the lab, and run this again;"; \
		echo "       or install python3.12; or say where one is: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; \
		exit 1; \
	fi; \
	if [ -e "$(VENV)" ]; then ours=; else ours="$(VENV)"; fi; \
	"$$chosen" -m venv "$(VENV)" || { \
		[ -z "$$ours" ] || rm -rf "$$ours"; \
		echo "could not make $(VENV): $$chosen lacks venv"; \
		echo "  fix: on Debian and Ubuntu, apt-get install $$("$$chosen" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')-venv"; \
		exit 1; \
	}

# PATH: a terminal inside JupyterLab finds `ray` and `python -m labkit`.
# JUPYTER_CONFIG_PATH: no question about news at the first start, no look for updates.
# JUPYTERLAB_WORKSPACES_DIR: the tabs of other projects stay in other projects. It lies in the lab's home, since
# a checkout that several people share is read-only.
lab: export PATH := $(abspath $(VENV)/bin):$(PATH)
lab: export JUPYTER_CONFIG_PATH := $(CURDIR)/.jupyter$(if $(JUPYTER_CONFIG_PATH),:$(JUPYTER_CONFIG_PATH))
lab: setup
	@$(PY) tools/build.py --stale
	@home="$$($(PY) -m labkit home)" && JUPYTERLAB_WORKSPACES_DIR="$$home/workspaces" $(PY) -m jupyterlab $(AS_ROOT) --Application.log_level=WARN \
		--LabApp.default_url=/lab/tree/notebooks/tour.ipynb $(LAB_ARGS)

# What is tested (tests/tiers.py): `test` for each change, `all` for each night, `touched` by .ci/run.
test: TIER := test
test-all: TIER := all
test-touched: TIER := touched
# Images of Python often forbid it; then each process compiles the lab anew, and pytest all tests in both lanes.
test test-all test-touched: export PYTHONDONTWRITEBYTECODE :=
# Whatever happens in between, Ctrl-C too: what the tests started is stopped, and pytest's status is kept.
test test-all test-touched: export LABKIT_HOME := $(CURDIR)/.labkit/test
test test-all test-touched: setup
	@begin=$$(date +%s); status=0; trap : INT TERM; \
	{ $(MAKE) --no-print-directory lint \
		&& $(PY) tools/build.py --check \
		&& $(PY) -m tests --tier $(TIER) $(TEST_ARGS); } || status=$$?; \
	$(PY) -m labkit stop || [ $$status -ne 0 ] || status=1; \
	if [ $$status -eq 0 ]; then verdict="all passed"; else verdict="FAILED with status $$status"; fi; \
	echo "make $@: $$verdict after $$(( $$(date +%s) - begin )) s"; \
	exit $$status

notebooks: setup
	@$(PY) tools/build.py

# SITE_ARGS="--repository https://…" links where a page can be edited.
site: setup
	@$(PY) tools/website.py $(SITE_ARGS)

# Three solved lessons with their outputs, for docs/examples: once per release, after make test.
examples: setup
	@$(PY) tools/examples.py

slides: setup
	@$(PY) tools/slides.py

# BUNDLE_ARGS=--site puts the site into it, whose pages show the solutions.
bundle: setup
	@$(PY) tools/bundle.py $(BUNDLE_ARGS)

learners: setup
	@$(PY) tools/bundle.py --learners

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@$(PY) -c 'from importlinter.cli import lint_imports_command as lint; lint()' --no-cache --no-logo
	$(PY) -m mypy
	$(PY) tools/prose.py
	@$(PY) tools/size.py
	$(PY) -m codespell_lib *.md docs benchmarks labkit course lessons tests tools datasets findings notebooks/AGENTS.md

bench: setup
	@$(PY) -m benchmarks $(BENCH_ARGS)

clean:
	rm -rf build artefacts .pytest_cache .ruff_cache *.egg-info
	find . -path "./$(VENV)" -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) \
		-exec rm -rf {} +
	@echo "kept: $(VENV), and .labkit with your runs and solved exercises; to start over: rm -rf $(VENV) .labkit"

# Torch's build (+cpu, +cu130) is left out: the same pin serves every machine.
constraints: setup
	@{ echo "# The exact versions that were tested. Made by \`make constraints\` from what is installed."; \
	$(PY) -m pip list --format=freeze --exclude-editable --exclude pip \
		| sed 's/+[a-z0-9.]*$$//' | LC_ALL=C sort -f; } > constraints.part
	@mv constraints.part constraints.txt
	@touch $(STAMP)
	@$(PY) -m pip check

# Everything in an environment of its own: the newest versions, not the pinned ones. Nothing here changes.
next: setup
	@$(PY) tools/newest.py $(NEXT_ARGS)
