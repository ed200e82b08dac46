# Two commands do everything: `make serve` and `make test`. Both install what is missing, build, and
# run; both may be repeated. See README.md.
BUILD := build/release
JOBS := $(shell nproc)
ARGS ?=
STAGES ?=

.PHONY: help setup build serve package test test-full test-gpu check recipe clean

help:
	@echo "make serve   build and serve the embedded demo model on 127.0.0.1:8000 (ARGS='--port 9000')"
	@echo "make test    set up, check the sources, build, run every CPU test and the end-to-end tests"
	@echo "make test-full  the same at full counts: slow tests, every test under every sanitizer, fuzzers"
	@echo "                (STAGES='release asan tsan busy fuzz'; each may run on a machine of its own)"
	@echo "make test-gpu  build and run what needs a GPU"
	@echo "make build   build the programs only, rudder and rudder-bench"
	@echo "make package  a .deb and a tarball of the binary, with checksums, in build/packages"
	@echo "make check   the source checks only (format, rooms, budgets, headers, clang-tidy)"
	@echo "make recipe WHAT=min_p  the files that an addition touches (tools/additions.csv has the kinds)"

setup:
	@tools/setup.sh build

build: setup
	@tools/build.sh release rudder rudder-bench

package: build
	@tools/package.py

serve: build
	@exec $(BUILD)/apps/rudder serve $(ARGS)

test:
	@tools/setup.sh build test
	@tools/test.sh

test-full:
	@tools/setup.sh build test fleet fuzz
	@tools/test.sh full $(STAGES)

test-gpu:
	@tools/setup.sh build test
	@RUDDER_CUDA=ON tools/build.sh release gpu_tests
	@tools/gpu_tests.py --idle-steering $(BUILD)/apps/rudder $$(cat $(BUILD)/gpu_tests.txt)

check:
	@tools/setup.sh build test
	@tools/check.sh

recipe:
	@python3 tools/recipe.py "$(WHAT)"

clean:
	rm -rf build
