# make demo    from nothing: environment, build, data-parallel training with 4 ranks
# make test    from nothing: environment, build, every test
# make conformance  torch's own tests of backends on ringkern's: tests/conformance
# make build   the extension, into ringkern/; only what has changed
# make lint    style and types                 make format     rewrite to that style
# make bench   the ring against Gloo           make sanitize   C++ tests under ASan, UBSan, TSan
# make simt    the CUDA kernels without a GPU, on a simulated one: docs/simulation.md
# make gpu     proves and measures the CUDA kernels, where there is a GPU: bench/README.md
# make clean   remove what a build made        make distclean  and the environment
#
# A machine needs g++ and python3 with venv; cmake and ninja come from PyPI where they are missing.
# pip is configured as always, as by PIP_INDEX_URL, and the build by the variables of setup.py.

PYTHON ?= python3
RANKS ?= 4
TEST_TIMEOUT ?= 1800
CONFORMANCE_TIMEOUT ?= 600

VENV := .venv
CALLERS_PATH := $(PATH)
BUILD := build/dev

# As if the environment were activated, and no other one.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

SOURCES := setup.py pyproject.toml CMakeLists.txt $(wildcard cmake/* build_backend/*.py) \
  $(shell find csrc tests -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu')

.PHONY: demo test ctest pytest conformance build lint format bench simt mutants gpu sanitize clean \
  distclean
.NOTPARALLEL:

demo: build
	python examples/train_digits.py --ranks $(RANKS)

test: ctest pytest

ctest: build
	cmake --build $(BUILD)
	ctest --test-dir $(BUILD) --output-on-failure

# The limit is for a hang that pytest-timeout cannot end. It reaches the ranks that a test started,
# too, except at a terminal, where Ctrl-C must.
pytest: build
	timeout $$([ ! -t 0 ] || echo --foreground) --kill-after=30 $(TEST_TIMEOUT) \
	  python -m pytest $(PYTEST_ARGS)

conformance: build
	timeout $$([ ! -t 0 ] || echo --foreground) --kill-after=30 $(CONFORMANCE_TIMEOUT) \
	  python -m tests.conformance $(CONFORMANCE_ARGS)

build: $(BUILD)/.built

$(BUILD)/.built: $(VENV)/.ready $(SOURCES)
	RINGKERN_BUILD_DIR=$(BUILD) RINGKERN_CMAKE_ARGS="-DRK_TESTS=ON $(CMAKE_ARGS)" \
	  python -m pip install --verbose --no-build-isolation --no-deps --editable .
	ln -sfn $(BUILD)/compile_commands.json compile_commands.json
	touch $@

$(VENV)/.ready: requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	python -m pip install --requirement requirements-dev.txt
	tools=$$(python build_backend/ringkern_build.py) && \
	  { [ -z "$$tools" ] || python -m pip install $$tools; }
	touch $@

lint: build
	@! grep -nE '^.{101,}' $(SOURCES)
	ruff check
	ruff format --check
	mypy

format: $(VENV)/.ready
	ruff check --fix
	ruff format

bench: build
	python -m ringkern bench $(BENCH_ARGS)

# Without nvcc: the kernels are compiled as C++.
SIMT := build/simt
SIMT_SEEDS ?= 100000

simt: $(SIMT)/.built
	$(SIMT)/tests_simt_machine_test
	$(SIMT)/tests_simt_litmus_test
	$(SIMT)/tests_simt_ring_test --seeds $(SIMT_SEEDS) --jobs $$(nproc)

mutants: $(SIMT)/.built
	$(SIMT)/tests_simt_mutants_test --seeds 3000

$(SIMT)/.built: $(VENV)/.ready $(SOURCES) $(wildcard tests/simt/*.py)
	cmake -S . -B $(SIMT) -G Ninja -DRK_TESTS=ON -DRK_CUDA=OFF
	cmake --build $(SIMT) --target simt_tests
	touch $@

# With the caller's Python, whose torch has CUDA, and not that of $(VENV). It needs no network.
gpu:
	@env PATH='$(CALLERS_PATH)' PYTHONPATH='$(PYTHONPATH)' $(PYTHON) bench/gpu $(GPU_ARGS)

sanitize: $(VENV)/.ready
	for kind in address,undefined thread; do \
	  cmake -S . -B build/$$kind -G Ninja -DRK_SANITIZE=$$kind -DRK_TESTS=ON -DRK_CUDA=OFF && \
	  cmake --build build/$$kind && \
	  ctest --test-dir build/$$kind --output-on-failure || exit 1; \
	done

clean:
	rm -rf build dist *.egg-info compile_commands.json ringkern/*.so
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
