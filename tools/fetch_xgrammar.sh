#!/usr/bin/env bash
# Puts the sources of xgrammar (Apache-2.0; the grammar engine of room constraint) into .deps/, where
# cmake/xgrammar.cmake builds its C++ core from. Run by tools/setup.sh and by the first configure.
# pip finds the archive, with whatever index, proxy and certificates it is configured for, and checks
# its hash. pip also asks an archive's build backend for the package's metadata, which would pull in
# that backend and what it needs: a stand-in answers instead.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.2.8
hash=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
target=.deps/xgrammar-$version
[ -f "$target/include/xgrammar/xgrammar.h" ] && exit 0

python=python3
$python -m pip --version >/dev/null 2>&1 || python=.venv/bin/python
mkdir -p .deps
work=$(mktemp -d .deps/fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/scikit_build_core"
: >"$work/scikit_build_core/__init__.py"
cat >"$work/scikit_build_core/build.py" <<'PYTHON'
import pathlib


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = pathlib.Path(metadata_directory, "xgrammar.dist-info")
    info.mkdir()
    version = pathlib.Path("PKG-INFO").read_text().split("\nVersion: ", 1)[1].split("\n", 1)[0]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: xgrammar\nVersion: {version}\n")
    return info.name
PYTHON
echo "xgrammar==$version --hash=sha256:$hash" >"$work/requirements.txt"
echo "==> fetching xgrammar $version"
PYTHONPATH="$PWD/$work" timeout 300 "$python" -m pip download --quiet --disable-pip-version-check \
  --no-deps --no-binary :all: --no-build-isolation --require-hashes \
  -r "$work/requirements.txt" -d "$work" || {
  echo "fetch_xgrammar: pip could not download xgrammar $version; unpack its source archive as $target" >&2
  exit 1
}
tar -xzf "$work/xgrammar-$version.tar.gz" -C "$work" --exclude='*/googletest/*' --exclude='*/web/*' \
  --exclude='*/tests/*' --exclude='*/docs/*' --exclude='*/site/*'
rm -rf "$target"
mv "$work/xgrammar-$version" "$target"
