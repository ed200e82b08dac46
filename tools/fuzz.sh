#!/usr/bin/env bash
# Runs fuzz targets (tests/fuzz) with libFuzzer: tools/fuzz.sh [TARGET...], without a name all of them.
#   FUZZ_SECONDS   of each (60)
#   FUZZ_JOBS      at a time (one a core)
# Each begins with its corpus in the tree and with what earlier runs found, which build/fuzz/corpus keeps.
# An input that breaks a property is left in build/fuzz/findings. Ends with a table; fails on a finding.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60} jobs=${FUZZ_JOBS:-$(nproc)}
bin=build/fuzz/tests/fuzz
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for folder in tests/fuzz/corpus/*/; do targets+=("$(basename "$folder")"); done
fi
for target in "${targets[@]}"; do
  [ -x "$bin/fuzz_$target" ] || { echo "fuzz: no $bin/fuzz_$target; build it with tools/build.sh fuzz fuzz_targets" >&2; exit 1; }
done

run_target() {  # run_target NAME: one line when it has ended, one of the table into its .row
  local name=$1 folder=build/fuzz/corpus/$1 findings=build/fuzz/findings log=build/fuzz/$1.log result=passed
  mkdir -p "$folder" "$findings"
  "$bin/fuzz_$name" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=1 \
    -artifact_prefix="$findings/$name-" "$folder" "tests/fuzz/corpus/$name" >"$log" 2>&1 || result=FINDING
  local runs rss coverage
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  rss=$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")
  coverage=$(grep -o ' cov: [0-9]*' "$log" | tail -1 | grep -o '[0-9]*' || true)
  echo "| $name | ${runs:--} | ${coverage:--} | $(find "$folder" -type f | wc -l) | ${rss:--} | $result |" >"build/fuzz/$name.row"
  echo "fuzz: $name: ${runs:-?} runs, $result"
  if [ "$result" = FINDING ]; then
    grep -E '^(ERROR|SUMMARY|==[0-9]+==)|runtime error|check failed|Test unit written' "$log" | cut -c1-600 | head -20
  fi
}

begin=$SECONDS
echo "fuzz: ${#targets[@]} targets for $seconds s each, $jobs at a time"
rm -f build/fuzz/*.row
for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  run_target "$target" &
done
wait
printf '\n| target | runs | branches covered | inputs kept | peak MiB | result |\n|---|---|---|---|---|---|\n'
cat build/fuzz/*.row
echo "took $((SECONDS - begin)) s"
! grep -q FINDING build/fuzz/*.row
