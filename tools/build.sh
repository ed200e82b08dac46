#!/usr/bin/env bash
# Configures and builds a preset: tools/build.sh PRESET [TARGET...]. Shows progress; says how long.
# RUDDER_CUDA = AUTO, ON or OFF picks the CUDA backend. Without it a new build folder has the backend
# only where a GPU is, since its kernels take minutes to compile; an old one stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
printf '\033[1m==> building %s (%s)\033[0m\n' "${*:-everything}" "$preset"
start=$SECONDS
cuda=()
if [ -n "${RUDDER_CUDA:-}" ]; then
  cuda=("-DRUDDER_CUDA=$RUDDER_CUDA")
elif [ ! -f "build/$preset/CMakeCache.txt" ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
  cuda=(-DRUDDER_CUDA=OFF)
fi
cmake --preset "$preset" "${cuda[@]}" >"build-$preset.log" 2>&1 || {
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
