#!/usr/bin/env bash
# Configures and builds a preset: tools/build.sh PRESET [TARGET...]. Shows progress; says how long.
# RUDDER_CUDA = AUTO, ON, CHECK or OFF picks the CUDA backend (cmake/cuda.cmake). Without it a new build folder, or one
# that checked, has the backend only where a GPU is, since its kernels take minutes to compile; another stays as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
printf '\033[1m==> building %s (%s)\033[0m\n' "${*:-everything}" "$preset"
start=$SECONDS
cuda=()
if [ -n "${RUDDER_CUDA:-}" ]; then
  cuda=("-DRUDDER_CUDA=$RUDDER_CUDA")
elif ! grep -qsE '^RUDDER_CUDA:STRING=(AUTO|ON|OFF)' "build/$preset/CMakeCache.txt"; then
  cuda=(-DRUDDER_CUDA=AUTO)
  tools/has_gpu.sh || cuda=(-DRUDDER_CUDA=OFF)
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
