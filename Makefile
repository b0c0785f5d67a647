# The front door. `make demo` and `make test` work on a fresh machine: they install what is missing first.
#   make demo      build the programs and train a small model on real data
#   make test      build everything and run all tests
#   make build     build everything but the tests; with the CUDA module where a CUDA compiler is
#   make install   install under PREFIX (default: ~/.local)
#   make bench     run the benchmarks, or some of them: ONLY=B1,B9
#   make compat    build and smoke-test against another LibTorch: LIBTORCH_VERSION=2.11.0
#   make docs      check links and code in the documentation
#   make setup     only install what is missing;  make clean  removes build/ (and keeps .venv)
# Variables: LIBTORCH=/path (use that LibTorch, no .venv), PREFIX, JOBS (compilers at a time).
SHELL := /bin/bash
PREFIX ?= $(HOME)/.local
LIBTORCH ?=
ONLY ?=
LIBTORCH_VERSION ?= 2.11.0
# One LibTorch source takes up to 1.5 GB of memory to compile.
JOBS ?= $(shell awk -v cores=$$(nproc) '/MemAvailable/ {fit = int($$2 / 1600000); \
          print fit < 1 ? 1 : (fit < cores ? fit : cores)}' /proc/meminfo)

BUILD := build/release
CONFIGURE := cmake --preset release --log-level=NOTICE -DLIBTORCH=$(LIBTORCH)
COMPILE := cmake --build $(BUILD) --parallel $(JOBS)
export LIBTORCH

.PHONY: demo test test-programs build install bench compat docs setup clean print-jobs
.DEFAULT_GOAL := build

setup:
	@tools/setup.sh test

# Takes the configuration of an earlier `make build` or `make test` as it is; a first one is for the programs alone.
demo:
	@tools/setup.sh demo
	@$(CONFIGURE) $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DBELLOWS_BUILD_TESTS=OFF -DBELLOWS_CUDA=OFF)
	@$(COMPILE) --target programs
	$(BUILD)/bin/bellows train configs/fashion-mnist.toml --overwrite

build:
	@tools/setup.sh build
	@$(CONFIGURE) -DBELLOWS_BUILD_TESTS=OFF -DBELLOWS_CUDA=AUTO -DBELLOWS_REQUIRE_PYTHON=OFF
	@$(COMPILE)

test: test-programs
	@tools/run_tests.py $(BUILD) --jobs $(JOBS)

test-programs:
	@tools/setup.sh test
	@$(CONFIGURE) -DBELLOWS_BUILD_TESTS=ON -DBELLOWS_CUDA=AUTO -DBELLOWS_REQUIRE_PYTHON=$(if $(LIBTORCH),OFF,ON)
	@$(COMPILE)

install: build
	@cmake --install $(BUILD) --prefix "$(abspath $(PREFIX))" >$(BUILD)/install.log
	@echo "installed under $(abspath $(PREFIX))"

bench:
	@tools/setup.sh test
	@$(CONFIGURE) -DBELLOWS_BUILD_BENCHMARKS=ON -DBELLOWS_CUDA=AUTO
	@$(COMPILE)
	benchmarks/run $(if $(ONLY),--only $(ONLY))

compat:
	@tools/compat.sh $(LIBTORCH_VERSION)

docs:
	@tools/check_docs.py

clean:
	rm -rf build

print-jobs:
	@echo $(JOBS)
