# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# The front door: each target sets up what it needs, builds and runs. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

BUILD := build
JOBS ?= $(shell nproc)
# A libtorch of your own instead of the pinned wheel: either of these two names it.
GRADWIRE_TORCH_DIR ?=
CMAKE_PREFIX_PATH ?=
export GRADWIRE_TORCH_DIR CMAKE_PREFIX_PATH
TRAIN_RANKS ?= 2
TRAIN_ARGS ?=
BENCH ?=
BENCH_ARGS ?=
CMAKE_ARGS ?=
CHECK_CUDA ?= compile
GPU_CHECK ?=
TABLE ?=
CLIENTS_ARGS ?=
PREFIX ?=

define_or_forget = $(if $($(1)),-D$(1)="$(subst :,;,$($(1)))",-U$(1))
CONFIGURE := cmake --preset release $(call define_or_forget,GRADWIRE_TORCH_DIR) \
             $(call define_or_forget,CMAKE_PREFIX_PATH) $(CMAKE_ARGS)
NINJA := ninja -C $(BUILD) -j$(JOBS)

.PHONY: help setup configure build install train test test-slow test-clients bench format check-format lint tidy check-cuda gpu-check bundle docs wheel deb clean

help:  ## Say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 22

setup:  ## Install what the build needs: Debian packages (as root) and .venv/ with the libtorch wheel
	@scripts/setup.sh build torch

# Ninja runs CMake again by itself when a CMake file changes; only other arguments ask for it here.
configure: setup
	@if [ ! -e $(BUILD)/build.ninja ] || [ "$$(cat $(BUILD)/.configured 2>/dev/null)" != '$(CONFIGURE)' ]; then \
	  $(CONFIGURE) && echo '$(CONFIGURE)' > $(BUILD)/.configured; fi

build: configure  ## Build libraries, programs and tests into build/ (programs in build/bin/)
	@$(NINJA)

ifeq ($(PREFIX),)
install:  ## Build libraries, programs and the Python package, without tests, and install them (PREFIX=/some/where)
	@echo 'make install needs a folder to install into: make install PREFIX=$$HOME/gradwire' >&2; exit 2
else
install: configure
	@$(NINJA) gradwire_installed
	@cmake --install $(BUILD) --prefix '$(abspath $(PREFIX))' >/dev/null
	@printf '%s\n' 'gradwire is installed in $(abspath $(PREFIX)). To use it:' \
	  '  export PATH=$(abspath $(PREFIX))/bin:$$PATH' \
	  '  export CMAKE_PREFIX_PATH=$(abspath $(PREFIX))' \
	  '  export PYTHONPATH=$(abspath $(PREFIX))/lib/gradwire/python'
endif

train: configure  ## Train a small transformer on two processes (TRAIN_ARGS="--steps 50", TRAIN_RANKS=2)
	@$(NINJA) gradwire-run char_lm
	$(BUILD)/bin/gradwire-run -n $(TRAIN_RANKS) $(BUILD)/bin/char_lm $(TRAIN_ARGS)

test: build  ## Build and run the tests (on two cores 30 to 45 minutes from nothing, 20 once built)
	@scripts/run_tests.py $(BUILD) --without-label slow --check-allowed

test-slow: build  ## Run the tests that take longer
	@scripts/run_tests.py $(BUILD) --label slow

test-clients: configure  ## Run Lightning, Accelerate, Trainer, DeepSpeed, Ray, torchft over gradwire (TABLE=docs/clients.md writes its table)
	@scripts/setup.sh clients
	@$(NINJA) gradwire_python
	PYTHONPATH=$(CURDIR)/$(BUILD)/python .venv-clients/bin/python -m pytest -q -p no:cacheprovider tests/clients $(if $(TABLE),--table $(TABLE)) $(CLIENTS_ARGS)

bench:  ## Measure everything beside Gloo, OpenMPI and PyTorch (15 minutes), or BENCH=all_reduce, collectives, ddp, hooks, codecs, network with BENCH_ARGS="--bytes 1Mi"
	@scripts/setup.sh build torch
	@$(CONFIGURE) && echo '$(CONFIGURE)' > $(BUILD)/.configured
	@$(NINJA) gradwire-bench
ifeq ($(BENCH),)
	scripts/bench.py $(BUILD) $(BENCH_ARGS)
else
	$(BUILD)/bin/gradwire-bench $(BENCH) --peers $(BENCH_ARGS)
endif

format:  ## Format every C++ source in place
	@scripts/setup.sh lint
	@scripts/format.sh

check-format:  ## Fail when a C++ source is not formatted
	@scripts/setup.sh lint
	@scripts/format.sh --check

lint:  ## Check in a minute what no test shows: format, layers, documents, the site, Python's types
	@scripts/setup.sh torch lint docs
	@scripts/format.sh --check
	@scripts/check_layers.py
	@scripts/check_docs.py
	@$(MAKE) --no-print-directory docs
	@.venv/bin/python -m mypy

tidy:  ## Run clang-tidy over the torch-free half (FILES="gradwire/base/..." for some)
	@scripts/setup.sh build lint
	@scripts/tidy.sh $(FILES)

check-cuda: setup  ## Compile the backend nccl against torch with CUDA (takes 5 GB; CHECK_CUDA=build links and trains with it, on the CPU)
	@scripts/check_cuda.sh $(CHECK_CUDA)

gpu-check:  ## On a machine with a GPU: build, run the device checks, write a report (GPU_CHECK="--without-gpu" on one without)
	@scripts/gpu_check.py $(GPU_CHECK)

bundle:  ## Pack the sources with the libraries that a build needs into dist/, for machines without a network
	@scripts/setup.sh build
	@scripts/bundle.sh make

docs:  ## Build the documentation site into build-docs/site, and check it
	@scripts/setup.sh torch docs
	@.venv-docs/bin/python scripts/site/site_test.py --quiet
	@.venv-docs/bin/python scripts/site/build.py

wheel:  ## Build a Python wheel into dist/, and check what it links
	@scripts/setup.sh build torch package
	@scripts/wheel.sh

deb:  ## Build Debian packages into dist/, and check them
	@scripts/setup.sh build torch
	@scripts/deb.sh

clean:  ## Remove the build folders (.venv/ stays)
	rm -rf build build-*/
