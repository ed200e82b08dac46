#!/usr/bin/env bash
# Configures and builds a preset: tools/build.sh PRESET [TARGET...]. Shows progress; says how long.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
printf '\033[1m==> building %s (%s)\033[0m\n' "${*:-everything}" "$preset"
start=$SECONDS
cmake --preset "$preset" >"build-$preset.log" 2>&1 || {
  cat "build-$preset.log"
  exit 1
}
rm -f "build-$preset.log"
if [ $# -gt 0 ]; then
  cmake --build --preset "$preset" --target "$@"
else
  cmake --build --preset "$preset"
fi
echo "built in $((SECONDS - start)) s"
