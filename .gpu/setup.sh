# Sourced in the tree's root on the GPU machine: libraries into /opt/deps, a .venv that is python3's.
start=$SECONDS
mkdir -p /opt/deps && [ -d /opt/deps/include ] || tar xJf .gpu/deps.tar.xz -C /opt/deps
export CPATH=/opt/deps/include LIBRARY_PATH=/opt/deps/lib CMAKE_PREFIX_PATH=/opt/deps
export CMAKE_INCLUDE_PATH=/opt/deps/include CMAKE_LIBRARY_PATH=/opt/deps/lib
[ -d .venv ] || { mkdir -p .venv/bin; ln -sf "$(which python3)" .venv/bin/python; }
build() {  # build TARGET...
  local s=$SECONDS
  RUDDER_CUDA=ON tools/build.sh release "$@" > $OUT/build.log 2>&1 || { tail -40 $OUT/build.log; return 1; }
  echo "built $* in $((SECONDS - s)) s"
}
echo "set up in $((SECONDS - start)) s"
