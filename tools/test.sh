#!/usr/bin/env bash
# Everything that must hold. Run by `make test`, which sets the machine up first.
#   tools/test.sh        checks, all CPU tests, of which what parses or has threads under sanitizers, end to end
#   tools/test.sh full   the same at full counts: slow tests, every room under every sanitizer with all of
#                        UBSan's groups, the end-to-end tests against an instrumented server, every fuzz
#                        target for FUZZ_SECONDS (600)
# Ends with a table of what each part took.
set -euo pipefail
cd "$(dirname "$0")/.."
full=${1:-}

names=() seconds=()
part() {  # part NAME COMMAND...: runs it, notes its time
  local name=$1 start=$SECONDS
  shift
  printf '\033[1m==> %s (%d s)\033[0m\n' "$name" "$SECONDS"
  "$@"
  names+=("$name") seconds+=($((SECONDS - start)))
}

table() {
  printf '\n| part | seconds |\n|---|---|\n'
  for i in "${!names[@]}"; do printf '| %s | %d |\n' "${names[$i]}" "${seconds[$i]}"; done
  printf '| all | %d |\n\n' "$SECONDS"
}

# Some tests wait for threads and devices of theirs a third of their time: one more than there are cores.
run_ctest() {  # run_ctest PRESET ARGS...
  ctest --test-dir "build/$1" --output-on-failure --no-tests=error -j "$(($(nproc) + 1))" "${@:2}"
}

python_client() {
  .venv/bin/python -m pytest clients/python -q
}

end_to_end() {
  .venv/bin/python -m pytest tests/e2e -q "$@"
}

# The end-to-end tests wait for servers half of their time, so they run beside builds, which take what
# they leave. What they print comes when both have ended.
end_to_end_beside() {  # end_to_end_beside COMMAND...
  local log=build/end_to_end.log status=0
  end_to_end >"$log" 2>&1 &
  local tests=$!
  "$@" || { kill "$tests"; return 1; }
  wait "$tests" || status=$?
  cat "$log"
  return "$status"
}

instrumented_builds() {
  nice -n 10 tools/build.sh asan asan_tests && nice -n 10 tools/build.sh tsan tsan_tests
}

build_budget() {
  local preset
  for preset in release asan tsan; do tools/build_budget.py "$preset"; done
}

asan=asan tsan=tsan exclude='slow|gpu|instrumented' release_targets=(rudder daily_tests) label_asan=(-L asan) label_tsan=(-L tsan)
if [ "$full" = full ]; then
  asan=asan-full exclude=gpu label_asan=(-LE gpu) label_tsan=(-LE gpu)
  release_targets=()
fi

RUDDER_CUDA=AUTO part "build" tools/build.sh release "${release_targets[@]}"  # compiles the CUDA code where nvcc is, also without a GPU
part "checks" tools/check.sh
part "tests" run_ctest release -LE "$exclude"
part "tests of the Python client" python_client
if [ "$full" = full ]; then
  part "build under asan" tools/build.sh "$asan"
  part "build under tsan" tools/build.sh "$tsan"
else
  part "builds under asan and tsan, end to end" end_to_end_beside instrumented_builds
fi
part "tests under asan" run_ctest "$asan" "${label_asan[@]}"
part "tests under tsan" run_ctest "$tsan" "${label_tsan[@]}"
if [ "$full" = full ]; then
  RUDDER_SOAK_SECONDS=60 part "end to end" end_to_end -m "slow or not slow"
  RUDDER_BINARY=build/$asan/apps/rudder part "end to end under asan" end_to_end
  part "build of the fuzz targets" tools/build.sh fuzz fuzz_targets
  FUZZ_SECONDS=${FUZZ_SECONDS:-600} part "fuzz targets" tools/fuzz.sh
fi
table
[ "$full" = full ] || build_budget
echo "all green"
