#!/usr/bin/env bash
# Everything that must hold. Run by `make test`, which sets the machine up first.
#   tools/test.sh        checks, all CPU tests, of which what parses or has threads under sanitizers, end to end
#   tools/test.sh full [STAGE...]
#                        the same at full counts: slow tests, every room under every sanitizer with all of
#                        UBSan's groups, the end-to-end tests against an instrumented server, every fuzz
#                        target for FUZZ_SECONDS (600). It takes hours on two cores, so each of its stages
#                        runs alone as well, on a machine of its own: release, asan, tsan, fuzz, and busy, which runs
#                        the daily tests on a machine that does much else, and with a model ten times as fast
# Ends with a table of what each part took: seconds, and the minutes of processor time of all cores. The parts that
# ended before one failed have theirs too.
set -euo pipefail
cd "$(dirname "$0")/.."

CPU_MINUTES=90  # of the baseline's machine, that all parts of `make test` may take together, also with empty caches; it only falls
names=() seconds=() cpu=()
scratch=$(mktemp) beside=()
trap 'status=$?; kill "${beside[@]}" 2>/dev/null || true; [ "$status" -eq 0 ] || table; rm -f "$scratch"' EXIT

cpu_seconds() {  # of all that has ended, as REPLY
  times >"$scratch"
  REPLY=$(awk -F '[ms ]+' 'END { printf "%d", 60 * $1 + $2 + 60 * $3 + $4 }' "$scratch")
}

part() {  # part NAME COMMAND...: runs it, notes its time
  local name=$1 start=$SECONDS cpu_start
  shift
  cpu_seconds && cpu_start=$REPLY
  printf '\033[1m==> %s (%d s)\033[0m\n' "$name" "$SECONDS"
  "$@"
  cpu_seconds
  names+=("$name") seconds+=($((SECONDS - start))) cpu+=($((REPLY - cpu_start)))
}

minutes() { printf '%d.%d' $(($1 / 60)) $(($1 % 60 / 6)); }  # minutes SECONDS

table() {
  printf '\n| part | seconds | CPU-minutes |\n|---|---|---|\n'
  for i in "${!names[@]}"; do printf '| %s | %d | %s |\n' "${names[$i]}" "${seconds[$i]}" "$(minutes "${cpu[$i]}")"; done
  cpu_seconds
  printf '| all | %d | %s |\n\n' "$SECONDS" "$(minutes "$REPLY")"
}

# Machines differ: minutes are divided by those that a reference compile takes, made now and with the baseline.
cpu_budget() {
  local spent speed
  cpu_seconds && spent=$REPLY
  speed=$(tools/build_budget.py speed)
  spent=$(awk -v spent="$spent" -v speed="$speed" 'BEGIN { printf "%d", spent / speed }')
  echo "$(minutes "$spent") CPU-minutes of the baseline's machine (this one takes $speed x as long), of $CPU_MINUTES"
  [ "$spent" -le $((CPU_MINUTES * 60)) ] && return
  echo "test: $(minutes "$spent") CPU-minutes, the budget is $CPU_MINUTES"
  return 1
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

build_budget() {  # tells of every preset before it fails for one
  local preset status=0
  for preset in release asan tsan; do tools/build_budget.py "$preset" || status=1; done
  return "$status"
}

# The CUDA code is compiled where nvcc is; machine code is made of its kernels where a GPU is.
run_daily() {
  local cuda=AUTO
  tools/has_gpu.sh || cuda=CHECK
  RUDDER_CUDA=$cuda part "build" tools/build.sh release rudder rudder-bench daily_tests
  part "checks" tools/check.sh
  part "tests" run_ctest release -LE 'slow|gpu|instrumented'
  part "tests of the Python client" python_client
  part "builds under asan and tsan, end to end" end_to_end_beside instrumented_builds
  part "tests under asan" run_ctest asan -L asan
  part "tests under tsan" run_ctest tsan -L tsan
}

full_release() {
  RUDDER_CUDA=AUTO part "build" tools/build.sh release
  part "checks" tools/check.sh
  part "tests" run_ctest release -LE gpu
  part "tests of the Python client" python_client
  RUDDER_SOAK_SECONDS=60 part "end to end" end_to_end -m "slow or not slow"
}

full_asan() {
  part "build under asan" tools/build.sh asan-full
  part "tests under asan" run_ctest asan-full -LE gpu
  RUDDER_BINARY=build/asan-full/apps/rudder part "end to end under asan" end_to_end
}

full_tsan() {
  part "build under tsan" tools/build.sh tsan
  part "tests under tsan" run_ctest tsan -LE gpu
}

beside_busy_loops() {  # beside_busy_loops COMMAND...: on a machine that does much else
  local status=0
  for _ in 1 2 3 4; do
    (while :; do :; done) &
    beside+=($!)
  done
  "$@" || status=$?
  kill "${beside[@]}"
  beside=()
  return "$status"
}

with_a_fast_model() {
  tools/slow_clients.py .venv/bin/python -m pytest tests/e2e -q
}

full_busy() {
  RUDDER_CUDA=AUTO part "build" tools/build.sh release rudder rudder-bench daily_tests
  part "tests beside busy loops" beside_busy_loops run_ctest release -LE 'slow|gpu|instrumented'
  part "end to end beside busy loops" beside_busy_loops end_to_end
  part "end to end with a fast model" with_a_fast_model
}

full_fuzz() {
  part "build of the fuzz targets" tools/build.sh fuzz fuzz_targets
  FUZZ_SECONDS=${FUZZ_SECONDS:-600} part "fuzz targets" tools/fuzz.sh
}

if [ "${1:-}" = full ]; then
  shift
  [ $# -gt 0 ] || set -- release asan tsan busy fuzz
  for stage in "$@"; do
    [ "$(type -t "full_$stage")" = function ] || { echo "test: no stage $stage" >&2; exit 2; }
  done
  for stage in "$@"; do "full_$stage"; done
  table
else
  run_daily
  part "cost of builds" build_budget
  table
  cpu_budget
fi
echo "all green"
