#!/usr/bin/env bash
# Installs what is missing, on Debian 12 or Ubuntu 24.04, with or without a GPU. Repeatable.
#   tools/setup.sh build        compiler, CMake, libraries (distribution packages)
#   tools/setup.sh build test   and the Python environment of the tests (.venv, pinned PyPI packages), XLA's CPU plugin (.venv-pjrt, 200 MB)
#   tools/setup.sh fleet        what stands in front of several servers, for its slow tests (.venv-ray, .venv-dynamo, 800 MB)
#   tools/setup.sh agents       coding agents, for the slow test that runs them (.venv-agents, 500 MB)
#   tools/setup.sh models       two trained models and transformers, for the slow tests beside them (.venv-models, 5 GB)
#   tools/setup.sh fuzz         clang with libFuzzer, of one release a distribution
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    echo "setup: installing packages needs root or sudo; the command was: $*" >&2
    exit 1
  fi
}

boost_package() {  # the distribution's Boost that is at least 1.81 (Asio coroutines, Beast, JSON)
  # shellcheck disable=SC1091
  . /etc/os-release
  case "${ID}-${VERSION_ID:-}" in
    debian-12) echo libboost1.81-dev ;;
    ubuntu-24.04) echo libboost1.83-dev ;;
    *) echo libboost-dev ;;
  esac
}

install_packages() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    "${missing[@]}"
}

have() { command -v "$1" >/dev/null; }

setup_build() {
  local packages=(libfmt-dev libspdlog-dev libcli11-dev libpcre2-dev libutf8proc-dev zlib1g-dev
    libssl-dev libzmq3-dev libcurl4-openssl-dev libexpected-dev "$(boost_package)")
  # Tools that may come from elsewhere (a newer CMake, another compiler) are only added when absent.
  have g++ || packages+=(g++)
  have cmake || packages+=(cmake)
  have ninja || packages+=(ninja-build)
  have ccache || packages+=(ccache)
  install_packages "${packages[@]}"
}

setup_browser() {  # drives the page that the server has for browsers
  local browser
  for browser in "${RUDDER_BROWSER:-}" chromium chromium-browser google-chrome; do
    if [ -n "$browser" ] && have "$browser"; then return; fi
  done
  # shellcheck disable=SC1091
  . /etc/os-release
  if [ "$ID" = debian ]; then
    say "a browser for the tests of the page: Chromium, some 120 MB to fetch, 400 MB on the disk"
    install_packages chromium fonts-dejavu-core
  else
    # Ubuntu's package of that name only asks snapd for a snap, which containers do not have.
    say "no Chromium package for $ID: the tests of the page will be skipped. Any Chromium does:" \
        "'snap install chromium', or RUDDER_BROWSER=/path/to/it"
  fi
}

python_environment() {  # python_environment FOLDER REQUIREMENTS [PIP_FLAG...]: pinned PyPI packages
  local folder=$1 requirements=$2 stamp=$1/requirements.sha256
  if [ -f "$stamp" ] && sha256sum --status -c "$stamp"; then return; fi
  say "making the Python environment $folder"
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check "${@:3}" -r "$requirements"
  sha256sum "$requirements" >"$stamp"
}

setup_test() {
  local packages=(libgtest-dev libdnnl-dev clang-14 clang-format-14)
  python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3 python3-venv)
  install_packages "${packages[@]}"
  setup_browser
  python_environment .venv tools/requirements.txt
  python_environment .venv-pjrt tools/requirements-pjrt.txt --no-deps
}

setup_fleet() {
  install_packages debootstrap  # a clean root for the slow test of the packages
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
  python_environment .venv-ray tools/requirements-ray.txt
  python_environment .venv-dynamo tools/requirements-dynamo.txt --no-deps
}

setup_agents() {
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
  python_environment .venv-agents tools/requirements-agents.txt
}

setup_models() {
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
  python_environment .venv-models tools/requirements-models.txt --no-deps
}

setup_fuzz() {
  # shellcheck disable=SC1091
  . /etc/os-release
  local release
  case "${ID}-${VERSION_ID:-}" in
    debian-12) release=14 ;;
    ubuntu-24.04) release=18 ;;
    *)
      echo "setup: tools/setup.sh and cmake/clang.cmake name no release of clang for this distribution" >&2
      exit 1
      ;;
  esac
  install_packages "clang-$release" "libclang-rt-$release-dev"
}

if [ ! -e /etc/debian_version ]; then
  echo "setup: packages are installed on Debian and Ubuntu only; see tools/setup.sh for the list" >&2
  exit 1
fi
for part in "$@"; do
  "setup_$part"
done
