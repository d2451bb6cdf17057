# Everything happens in .venv, which `make` sets up by itself. PYTHON=/path/to/python picks the interpreter.
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := setup.py pyproject.toml $(wildcard csrc/*) $(wildcard fastutils/*.pyx fastutils/*/*.pyx)

.PHONY: test bench bench-all bench-report bench-gate bench-baseline lint format build test-dist test-asan test-debug test-fakecuda test-vllm bench-vllm bench-staging clean

test: build
	FASTUTILS_REQUIRE_EXTENSIONS=1 $(BIN)/python -m pytest

bench: build
	$(BIN)/python -m bench.step

# Every case by itself, the peers, scaling, cold and first calls, memory: about ten minutes; BENCH=--quick for less than one.
bench-all: build
	$(BIN)/python -m bench.micro $(BENCH)

# Measures everything and writes it into README.md and docs/. Wants a quiet machine: above 2 % of noise it writes nothing.
bench-report: build
	$(BIN)/python -m bench.micro --baseline form --json bench/results/micro.json --record
	$(BIN)/python -m bench.step --baseline form --json bench/results/step.json
	$(BIN)/python -m bench.report

# Counts instructions (with valgrind) against the committed baseline of this interpreter; bench-baseline writes that.
bench-gate: build
	$(BIN)/python -m bench.gate

bench-baseline: build
	$(BIN)/python -m bench.gate --update

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cython-lint fastutils
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*' 'bench/*.c' 'tests/*.c' 'tests/*.cpp' 'tests/*.h')
	$(BIN)/mypy

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'csrc/*' 'bench/*.c' 'tests/*.c' 'tests/*.cpp' 'tests/*.h')

# The wheel and the source distribution, each installed into an environment of its own and tested outside the checkout.
test-dist: build
	scripts/test-dist.sh $(BIN)/python

# The core's and the tensors' tests over a core and a bridge built with the address and undefined-behaviour sanitizers.
test-asan: build
	scripts/test-asan.sh $(BIN)/python -q

# The same on a debug build of Python: Debian's python3-dbg.
test-debug: build
	scripts/test-debug.sh $(BIN)/python -q

# Host time of staged uploads over the stand-in runtime: what a device adds is tests/gpu's to show.
bench-staging: .venv-fakecuda/.ready
	scripts/on-fakecuda.sh .venv-fakecuda/bin/python -m bench.staging_host

# Device copies without a GPU: a CUDA build of torch (5.5 GB) on a stand-in runtime.
test-fakecuda: .venv-fakecuda/.ready
	scripts/test-fakecuda.sh .venv-fakecuda/bin/python

.venv-fakecuda/.ready: tests/fakecuda/requirements.txt scripts/choose-python.sh
	python=$$(scripts/choose-python.sh) && "$$python" -m venv .venv-fakecuda
	.venv-fakecuda/bin/python -m pip install -q --upgrade pip
	.venv-fakecuda/bin/python -m pip install -q -r tests/fakecuda/requirements.txt
	touch $@

# The plugin in a real vLLM that needs no GPU: VLLM=0.32.0 or VLLM=0.25.1, each in an environment of some GB.
VLLM ?= 0.32.0
VLLM_VENV := .venv-vllm-$(VLLM)

test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest tests/with_vllm

bench-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m bench.vllm_step

$(VLLM_VENV)/.ready: scripts/vllm-environment.sh $(wildcard tests/with_vllm/requirements-$(VLLM).txt)
	scripts/vllm-environment.sh $(VLLM_VENV) $(VLLM)
	touch $@

# Not -e: what operators install is to be tested, with a bridge for this environment's torch.
$(VLLM_VENV)/.installed: $(VLLM_VENV)/.ready $(SOURCES) $(wildcard fastutils/*.py fastutils/*/*.py)
	FASTUTILS_REQUIRE_EXTENSIONS=1 $(VLLM_VENV)/bin/python -m pip install -q --no-build-isolation --no-deps --force-reinstall .
	touch $@

build: $(VENV)/.built

$(VENV)/.ready: requirements-dev.txt scripts/choose-python.sh
	python=$$(scripts/choose-python.sh) && "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -r requirements-dev.txt
	touch $@

$(VENV)/.built: $(VENV)/.ready $(SOURCES)
	FASTUTILS_REQUIRE_EXTENSIONS=1 $(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	touch $@

clean:
	rm -rf build dist $(VENV) fastutils/_build_info.json fastutils/_bridge
	find fastutils -name '*.so' -delete
