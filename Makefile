# Needs Python >= 3.11 and make; everything else goes into .venv.  `make help` lists the targets.

PYTHON    ?= python3
# Extra options for pip, such as PyTorch's index of wheels without CUDA (see CONTRIBUTING.md).
PIP_FLAGS ?=
# What installs into .venv; uv does it ten times as fast (see CONTRIBUTING.md).
INSTALL   ?= $(BIN)/python -m pip install --quiet $(PIP_FLAGS)
ATTACK_FLAGS ?=
BENCH_FLAGS ?=
PAPER_FLAGS ?=
LAB_FLAGS ?=
PYTEST_FLAGS ?= -n auto --dist worksteal

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
BUILD := _build
WEIGHTS := $(BUILD)/.weights

# This checkout's packages go before any installed ones, in every process the targets start.
export PYTHONPATH := $(CURDIR):$(CURDIR)/notebooks$(if $(PYTHONPATH),:$(PYTHONPATH))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help env weights lab notebook book pdf zip editions wheel serve links test check attack sweep images searches depth training paper bench lint lock clean distclean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(STAMP)  ## create .venv from the exact versions of requirements.lock
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed; choose one with PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements.lock
	$(INSTALL) --no-deps -e .
	@touch $@

weights: $(WEIGHTS)  ## fetch the pretrained weights, photographs and speech (once)
$(WEIGHTS): $(wildcard notebooks/lab/models/sources.*) | $(STAMP)
	$(BIN)/python -m lab.weights fetch minilm smollm2 bible vit whisper photos speech
	@# the first load unpacks weights once; several pages at the same time would each do it
	$(BIN)/python -c 'from lab import models; [models.load(name) for name in ("smollm2", "vit", "whisper")]'
	@mkdir -p $(BUILD) && touch $@

lab: $(STAMP) $(WEIGHTS)  ## open the chapters as notebooks in JupyterLab
	$(BIN)/jupytext-config --settings-file $(VENV)/etc/jupyter/labconfig/default_setting_overrides.json set-default-viewer markdown
	$(BIN)/jupyter-lab --LabApp.default_url=/lab/tree/notebooks $(LAB_FLAGS)

CHAPTERS := $(basename $(notdir $(wildcard notebooks/*.md)))
CHOSEN    = $(filter $(CHAPTER) $(CHAPTER)%,$(CHAPTERS))

notebook: $(STAMP) $(WEIGHTS)  ## execute one chapter to an .ipynb: make notebook CHAPTER=mean_field
	$(if $(filter 1,$(words $(CHOSEN))),,$(error CHAPTER="$(CHAPTER)" is not one chapter; there are $(CHAPTERS)))
	@mkdir -p $(BUILD)/notebooks
	@$(BIN)/jupytext --quiet --to ipynb --execute notebooks/$(CHOSEN).md --output $(BUILD)/notebooks/$(CHOSEN).ipynb
	@echo $(BUILD)/notebooks/$(CHOSEN).ipynb

book: $(STAMP) $(WEIGHTS)  ## execute what changed and build _build/html
	$(BIN)/jupyter-book build -W -n --keep-going .

EDITION := PYTHONPATH=$(PYTHONPATH):$(CURDIR)/book/_ext $(BIN)/python -m book_build.editions

pdf: book  ## print the whole book, and the slides (needs Chromium)
	$(EDITION) pdf slides

zip: pdf  ## pack the pages into one archive that opens without a network
	$(EDITION) zip

editions: zip  ## make the PDF and the archive, and check both
	$(BIN)/python -m pytest tests/editions -p no:cacheprovider -n auto --dist loadfile --max-worker-restart 0

wheel: $(STAMP)  ## build the wheel of lipcore into dist/
	rm -rf dist build && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

serve: $(STAMP)  ## show the built pages at http://localhost:8000
	cd $(BUILD)/html && $(CURDIR)/$(BIN)/python -m http.server --bind localhost 8000

links: $(STAMP) $(WEIGHTS)  ## check the links that leave the book (needs the network)
	$(BIN)/jupyter-book build --builder linkcheck .

test: $(STAMP) $(WEIGHTS)  ## test the package, its docstrings and the build
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS)

check: book  ## open every built page in a browser and check it
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/pages -p no:cacheprovider $(PYTEST_FLAGS)

attack: $(STAMP) $(WEIGHTS)  ## try to break every bound, at length
	$(BIN)/python -m lab.attack --output $(BUILD)/attack.json $(ATTACK_FLAGS)

sweep: $(STAMP) $(WEIGHTS)  ## measure what the chapters on real text rest on (75 minutes of one core; resumes), store the tables
	for plan in sweep texts; do \
	  OMP_NUM_THREADS=1 $(BIN)/python -m lab.sweep --plan book/data/$$plan.toml --folder $(BUILD)/sweep --export book/data/$$plan.parquet || exit; \
	done

images: $(STAMP) $(WEIGHTS)  ## measure the models of images and of speech (some minutes; resumes), store the table
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.images_and_speech --folder $(BUILD)/images --export book/data/images_and_speech.parquet

searches: $(STAMP) $(WEIGHTS)  ## run the searches of the chapter on attacks in token space against each other (5 minutes of one core), store them
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.token_race book/data/searches.json

depth: $(STAMP) $(WEIGHTS)  ## measure σ through the depth of three models (4 minutes of one core; resumes), store it
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.depth book/data/depth.json

training: $(STAMP)  ## train the small Transformers of the page on training (10 minutes of one core; resumes), store what comes out
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.training book/data/training.json

paper: $(STAMP)  ## redo the paper's figures on BERT and GPT-2 (needs the hub; resumes) in _build/paper
	@$(BIN)/python -c 'import datasets, nltk' 2>/dev/null || $(BIN)/python -m pip install --quiet --retries 0 --timeout 5 $(PIP_FLAGS) -c requirements.lock datasets nltk 2>/dev/null || true
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.paper $(BUILD)/paper $(PAPER_FLAGS)

bench: $(STAMP) $(WEIGHTS)  ## time the package against its rivals (some minutes; leave the machine alone), store the table
	$(BIN)/python -m pytest benchmarks --timeout 0 --benchmark-only --benchmark-columns=min,median,rounds --benchmark-json=$(BUILD)/benchmarks.json $(BENCH_FLAGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.distil $(BUILD)/benchmarks.json book/data/benchmarks.json

lint: $(STAMP)  ## check the style of the code, the cells and prose of the pages, the project's files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/lint.py

lock: $(STAMP)  ## write the versions in .venv to requirements.lock
	@{ sed -n '/^#/p' requirements.lock; \
	   $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v '^lipcore'; } > requirements.new
	mv requirements.new requirements.lock

clean:  ## remove what the targets built, but not .venv
	rm -rf $(BUILD) .pytest_cache .ruff_cache .hypothesis .benchmarks build dist *.egg-info
	find lipcore notebooks tests book benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove .venv too
	rm -rf $(VENV)
