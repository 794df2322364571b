# make demo    from nothing: environment, build, data-parallel training with 4 ranks
# make quick   a minute from a built tree: the tests that fail for most mistakes
# make test    from nothing: environment, build, the tests of the library
# make all     and every other test, the documentation, conformance
# make conformance  torch's own tests of backends on ringkern's: tests/conformance
# make build   the extension, into ringkern/; only what has changed
# make lint    style and types                 make format     rewrite to that style
# make docs    the documentation, into build/docs; its links, docstrings and examples are tested
# make bench   the ring against Gloo           make sanitize   C++ tests under ASan, UBSan, TSan
# make faults  ranks that are killed, stopped, make different calls: what is told, and when
# make hosts   groups that span hosts, at length: random calls, faults, trainings
# make fuzz    random calls of every kind on 1 to 3 hosts against NumPy: FUZZ_MINUTES, FUZZ_SEED
# make model   its lock-free parts in every order, or very many: tests/faults/model/model.cpp
# make litmus  the protocols under the axioms of PTX, by herd7: docs/design/memory_model.md
# make coverage  lines of csrc that the C++ tests run
# make simt    the CUDA kernels without a GPU, on a simulated one: docs/design/simulation.md
# make ptx     the same from their PTX, as nvcc compiled them, and make ptx-mutants; both need nvcc
# make readme  every command and block of README and quickstart, in a fresh clone
# make matrix  builds and tests with every supported torch and Python: VERSIONS=2.11.0 for one
# make gpu     proves and measures the CUDA kernels, where there is a GPU: bench/README.md
# make gpu-preflight  compiles and rehearses all of that without a GPU, in a GPU machine's versions
# make serve   vLLM, transformers and Ray over ringkern: the programs of their pages in docs/howto
# make dist    what is published: source distribution and wheel, built and tried without network
# make hooks   the checks of .pre-commit-config.yaml before each commit, from now on
# make clean   remove what a build made        make distclean  and the environment
#
# A machine needs g++ and python3 with venv; cmake and ninja come from PyPI where they are missing.
# pip is configured as always, as by PIP_INDEX_URL, and the build by the variables of setup.py.

PYTHON ?= python3
RANKS ?= 4
CONFORMANCE_TIMEOUT ?= 600

VENV := .venv
CALLERS_PATH := $(PATH)
BUILD := build/dev

# As if the environment were activated, and no other one.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

cpp_in = $(shell find $(1) -name '*.h' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu')

# Of the extension; CMake rebuilds the C++ tests, each for its own files.
SOURCES := setup.py pyproject.toml CMakeLists.txt $(wildcard cmake/* build_backend/*.py) \
  $(call cpp_in,csrc)
CPP := $(call cpp_in,csrc tests)

.PHONY: demo quick test all rest ctest pytest conformance build docs lint format bench faults hosts fuzz model \
  coverage litmus simt mutants ptx ptx-mutants matrix gpu gpu-preflight serve sanitize readme dist hooks clean distclean FORCE
.NOTPARALLEL:

# A build for the tests serves the demo, too; from nothing it compiles what the demo needs.
demo: $(if $(wildcard $(BUILD)/.built),build,build/.demo)
	python examples/train_digits.py --ranks $(RANKS)

# Processes of pytest; a file's tests share one. Tests mostly wait for ranks, as those of ctest do.
JOBS ?= 3
SHORT = --label-exclude long
CTEST = ctest --test-dir $(BUILD) --output-on-failure
PARALLEL = python -m pytest --quiet -n $(JOBS) --dist loadfile
ALONE = python -m pytest --quiet

quick: build $(VENV)/.ready-test
	cmake --build $(BUILD) --target quick_tests
	$(CTEST) --label-regex quick --parallel 4
	$(PARALLEL) -m quick

test: build $(VENV)/.ready-test
	cmake --build $(BUILD)
	$(CTEST) $(SHORT) --parallel 4
	$(PARALLEL) -m "library and not (slow or alone)"
	$(ALONE) -m "library and alone and not slow"

# The long C++ tests mostly wait: here they run beside the others.
all: SHORT =
all: test rest

rest: build docs conformance
	$(if $(SHORT),$(CTEST) --label-regex long --parallel 4)
	$(PARALLEL) -m "(slow or not library) and not alone"
	$(ALONE) -m "(slow or not library) and alone"

ctest: build
	cmake --build $(BUILD)
	$(CTEST)

pytest: build $(VENV)/.ready-test
	python -m pytest $(PYTEST_ARGS)

conformance: build $(VENV)/.ready-test
	timeout $$([ ! -t 0 ] || echo --foreground) --kill-after=30 $(CONFORMANCE_TIMEOUT) \
	  python -m tests.conformance $(CONFORMANCE_ARGS)

build: $(BUILD)/.built

build/.demo: $(VENV)/.ready-build $(SOURCES)
	RINGKERN_CUDA=0 python -m pip install --no-build-isolation --no-deps --editable .
	touch $@

$(BUILD)/.built: $(VENV)/.ready-build $(BUILD).settings $(SOURCES)
	RINGKERN_BUILD_DIR=$(BUILD) \
	  RINGKERN_CMAKE_ARGS="-DRK_TESTS=ON -DRK_ONE_UNIT=OFF $(CMAKE_ARGS)" \
	  python -m pip install --verbose --no-build-isolation --no-deps --editable .
	ln -sfn $(BUILD)/compile_commands.json compile_commands.json
	touch $@

# What else the build goes by. Beside its folder, which setup.py empties when they change.
$(BUILD).settings: export SETTINGS = $(foreach v,RINGKERN_CUDA RINGKERN_CUDA_ARCHS CMAKE_ARGS \
  CC CXX CXXFLAGS CUDACXX CUDA_HOME CUDA_PATH LDFLAGS,$(v)=$($(v)))
$(BUILD).settings: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' "$$SETTINGS" | cmp -s - $@ || printf '%s\n' "$$SETTINGS" > $@

# Each target needs one file of requirements/: build.txt, test.txt, which adds to it, or full.txt, all.
# A demo compiles what it imports; tests, which start many processes, find all of it compiled.
INSTALL = python -m pip install --no-compile --requirement
COMPILE = python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # templates are no Python

$(VENV)/.ready-build: requirements/build.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $<
	tools=$$(python build_backend/ringkern_build.py) && \
	  { [ -z "$$tools" ] || python -m pip install $$tools; }
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready-build
$(VENV)/.ready-full: $(VENV)/.ready-test
$(VENV)/.ready-test $(VENV)/.ready-full: $(VENV)/.ready-%: requirements/%.txt
	$(INSTALL) $<
	$(COMPILE)
	touch $@

# What leads nowhere or is not known is an error. From nothing, since pages are made from the code.
docs: build $(VENV)/.ready-full
	rm -rf build/docs build/doctrees
	python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet \
	  --doctree-dir build/doctrees docs build/docs
	python -m pytest -q tests/docs/test_site.py \
	  tests/docs/test_links.py tests/docs/test_docstrings.py tests/docs/test_types.py \
	  tests/docs/test_doctests.py

lint: build $(VENV)/.ready-full
	@! grep -nE '^.{101,}' $(SOURCES) $(CPP)
	@clang-format --dry-run --Werror $(CPP)
	python tests/build/rooms.py
	python tests/build/sizes.py
	python -m tests.build.language
	lint-imports --no-cache --no-logo
	ruff check
	ruff format --check
	mypy

format: $(VENV)/.ready-full
	@clang-format -i $(CPP)
	ruff check --fix
	ruff format

bench: build
	python -m ringkern bench $(BENCH_ARGS)

KILLS ?= 2000
MISMATCHES ?= 1000
HANDSHAKES ?= 10000
LIVES ?= 10000
TRAINING_KILLS ?= 300
REGROUP_KILLS ?= 1000
REGROUPED_KILLS ?= 50
STOPS ?= 200
FAULTS_SEED ?= 1

faults: build $(VENV)/.ready-test
	cmake --build $(BUILD) --target tests_faults_kills tests_faults_mismatches \
	  faults_fuzz_test_cpp faults_syscalls_test_cpp
	$(BUILD)/tests_faults_kills --kills $(KILLS) --seed $(FAULTS_SEED)
	$(BUILD)/tests_faults_mismatches --mismatches $(MISMATCHES) --seed $(FAULTS_SEED)
	$(BUILD)/faults_fuzz_test_cpp --handshakes $(HANDSHAKES) --seed $(FAULTS_SEED)
	$(BUILD)/faults_syscalls_test_cpp --cases 0
	RK_TEST_LIVES=$(LIVES) python -m pytest tests/faults/test_life_cycle.py -k many_lives -s
	RK_TEST_LIVES=$(LIVES) python -m pytest tests/faults/test_ranks.py tests/faults/test_matrix.py
	python -m tests.faults.regroups --kills $(REGROUP_KILLS) --seed $(FAULTS_SEED)
	python -m tests.faults.regroups --stop --ranks 4 --kills $(STOPS) --seed $(FAULTS_SEED)
	python -m tests.faults.trainings --kills $(TRAINING_KILLS) --seed $(FAULTS_SEED)
	python -m tests.faults.regrouped_trainings --kills $(REGROUPED_KILLS) --seed $(FAULTS_SEED)

# In namespaces, where the machine permits them, and by name.
HOSTS_EXAMPLES ?= 200

hosts: build $(VENV)/.ready-full
	RK_TEST_HOSTS_EXAMPLES=$(HOSTS_EXAMPLES) python -m pytest tests/hosts

FUZZ_MINUTES ?= 60
FUZZ_SEED ?= 1

fuzz: build $(VENV)/.ready-test
	python -m tests.hosts.fuzz --minutes $(FUZZ_MINUTES) --seed $(FUZZ_SEED)

# Of the library's own sources, on Relacy, which is header only.
MODEL_RUNS ?= 1000000

model:
	@echo '#include <relacy/relacy.hpp>' | $(CXX) -std=c++20 -fsyntax-only -w -x c++ - 2>/dev/null || \
	  { echo 'make model needs Relacy; on Debian and Ubuntu: apt-get install relacy-dev'; exit 1; }
	mkdir -p build
	$(CXX) -std=c++20 -O2 -Wall -Wextra -pthread -Itests -Itests/faults/model/stand_in -Icsrc \
	  tests/faults/model/model.cpp $(addprefix csrc/,comm/process.cpp fault/fault.cpp) \
	  -o build/model
	build/model $(MODEL_RUNS)

# It needs Python and herd7 alone; without herd7 it says so.
litmus:
	@$(PYTHON) -m tests.litmus.herd

# The simulation runs the kernels, and no line of the host's. A test that fails here and not in
# `make ctest` has met the cost of counting; the table is made all the same.
COVERAGE := build/coverage
COVERAGE_FLAGS := -O1 -fno-inline --coverage -fprofile-update=atomic \
  -include $(CURDIR)/tests/coverage.h

coverage: $(VENV)/.ready-build
	python -m pip install --quiet 'gcovr>=8,<9'
	cmake -S . -B $(COVERAGE) -G Ninja -DRK_TESTS=ON -DRK_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug \
	  -DCMAKE_CXX_FLAGS='$(COVERAGE_FLAGS)'
	cmake --build $(COVERAGE)
	find $(COVERAGE) -name '*.gcda' -delete
	-ctest --test-dir $(COVERAGE) --output-on-failure --exclude-regex simt/
	gcovr --root . --object-directory $(COVERAGE) --filter csrc/ --exclude csrc/cuda/ \
	  --gcov-ignore-errors=no_working_dir_found --gcov-ignore-parse-errors=negative_hits.warn \
	  --merge-mode-functions=merge-use-line-0 --merge-lines --exclude-throw-branches --txt \
	  --html-details $(COVERAGE)/index.html

# Without nvcc: the kernels are compiled as C++.
SIMT := build/simt
SIMT_SEEDS ?= 100000

simt: $(SIMT)/.built
	$(SIMT)/tests_simt_machine_test
	$(SIMT)/tests_simt_litmus_test
	$(SIMT)/tests_simt_ring_test --seeds $(SIMT_SEEDS) --jobs $$(nproc)

mutants: $(SIMT)/.built
	$(SIMT)/tests_simt_mutants_test --seeds 3000

ptx-mutants: build
	cmake --build $(BUILD) --target tests_ptx_mutants_test
	$(BUILD)/tests_ptx_mutants_test

$(SIMT)/.built: $(VENV)/.ready-build $(SOURCES) $(wildcard tests/simt/*)
	cmake -S . -B $(SIMT) -G Ninja -DRK_TESTS=ON -DRK_CUDA=OFF
	cmake --build $(SIMT) --target simt_tests
	touch $@

# The kernels of the build. Small rings with flags that wrap; then each GPU's kernels as they ship.
PTX_SHAPES ?= 100

ptx: build
	cmake --build $(BUILD) --target ptx_tests
	$(BUILD)/tests_ptx_ring_test --seeds $(SIMT_SEEDS) --jobs $$(nproc)
	for ring in $(BUILD)/tests_ptx_sm_*_ring_test; do \
	  gpu=$${ring%_ring_test}; $${gpu}_arithmetic_test --pairs all && \
	  $${gpu}_ring_test --seeds 2000 --jobs $$(nproc) && \
	  $${gpu}_ring_test --shipped 1 --seeds $(PTX_SHAPES) --jobs $$(nproc) || exit 1; done

# Of what is committed, in a temporary folder, with whatever pip fetches.
readme:
	$(PYTHON) -m tests.docs.readme $(README_ARGS)

# Environments of many gigabytes, outside the tree.
matrix: $(VENV)/.ready-build
	python -m pip install --quiet 'uv>=0.9,<1'
	python -m tests.build.matrix $(if $(VERSIONS),--torch $(VERSIONS)) $(if $(PYTHONS),--python $(PYTHONS))

# With the caller's Python, whose torch has CUDA, and not that of $(VENV). It needs no network.
gpu:
	@env PATH='$(CALLERS_PATH)' PYTHONPATH='$(PYTHONPATH)' $(PYTHON) bench/gpu $(GPU_ARGS)

# Python and torch of a machine with a GPU. The environment is fetched; the run needs no network.
GPU_ENV ?= 3.12 2.11.0

gpu-preflight: $(VENV)/.ready-build
	python -m pip install --quiet 'uv>=0.9,<1'
	interpreter=$$(python -m tests.build.matrix --env $(GPU_ENV)) && \
	  "$$interpreter" bench/gpu --preflight $(GPU_ARGS)

# vLLM with the plug-in of ringkern/integrations, transformers and Ray. An environment of 3.5 GB,
# outside the tree.
serve: $(VENV)/.ready-test
	RK_VLLM=$$(python -m tests.integrations.environment) && export RK_VLLM && \
	  python -m pytest -s tests/integrations/test_vllm_serves.py tests/integrations/test_pages_run.py

sanitize: $(VENV)/.ready-build
	for kind in address,undefined thread; do \
	  cmake -S . -B build/$$kind -G Ninja -DRK_SANITIZE=$$kind -DRK_TESTS=ON -DRK_CUDA=OFF && \
	  cmake --build build/$$kind && \
	  ctest --test-dir build/$$kind --output-on-failure || exit 1; \
	done

hooks: $(VENV)/.ready-full
	pre-commit install

# The wheel is made of the source distribution alone, and tried in an environment of its own, which
# is shown the torch of $(VENV).
dist: $(VENV)/.ready-build
	python -m pip install --quiet 'build>=1.2,<2' 'twine>=6,<8' 'check-wheel-contents>=0.6,<1'
	rm -rf dist build/dist
	python -m build --sdist --no-isolation --outdir dist
	RINGKERN_CUDA=0 python -m pip wheel --no-index --no-build-isolation --no-deps --wheel-dir dist \
	  dist/*.tar.gz
	twine check --strict dist/*
	check-wheel-contents dist/*.whl
	python -m venv build/dist
	build/dist/bin/python -m pip install --quiet --no-index --no-deps dist/*.whl
	PYTHONPATH=$$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  build/dist/bin/python tests/build/smoke.py

clean:
	rm -rf build dist *.egg-info compile_commands.json ringkern/*.so
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
