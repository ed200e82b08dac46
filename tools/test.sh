#!/usr/bin/env bash
# Everything that must hold: checks, all CPU tests, end-to-end tests, and the serving side again
# under sanitizers. Run by `make test`, which sets the machine up first.
#   RUDDER_TEST=slow tools/test.sh   also runs the tests labelled slow
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '\033[1m==> %s (%d s)\033[0m\n' "$*" "$SECONDS"; }

RUDDER_CUDA=AUTO tools/build.sh release  # compiles the CUDA code where nvcc is, also without a GPU

say "checks"
tools/check.sh

say "tests"
exclude=(-LE 'slow|gpu')  # make test-gpu runs those
[ "${RUDDER_TEST:-}" = slow ] && exclude=(-LE gpu)
ctest --test-dir build/release --output-on-failure --no-tests=error -j "$(nproc)" "${exclude[@]}"

for sanitizer in asan tsan; do
  tools/build.sh "$sanitizer" "${sanitizer}_tests"
  say "tests under $sanitizer"
  ctest --test-dir "build/$sanitizer" --output-on-failure --no-tests=error -L "$sanitizer"
done

say "end to end"
.venv/bin/python -m pytest tests/e2e -q
say "all green"
