#!/usr/bin/env bash
# The only definition of "clean". `make test` and continuous integration run exactly this. Each line `check NAME COMMAND` is one
# gate; tools/test_gates.py has a fault for each, and shows that the gate stops it.
set -euo pipefail
cd "$(dirname "$0")/.."

check() {  # check NAME COMMAND...
  printf '\033[1m==> check: %s\033[0m\n' "$1"
  "${@:2}"
}

quick_checks() {  # each takes one core for some seconds
  local sources
  mapfile -t sources < <(git ls-files 'src/*.h' 'src/*.cpp' 'src/*.cu' 'src/*.cuh' 'apps/*.h' 'apps/*.cpp' 'tests/*.cpp' 'bench/*.cpp')

  check "format" clang-format-14 --dry-run --Werror "${sources[@]}"
  check "rooms" python3 tools/room_lint.py
  check "structure" python3 tools/structure.py
  check "glossary" python3 tools/glossary_check.py
  check "ledger" python3 tools/ledger_check.py
  check "recipes" python3 tools/recipe.py
  check "named tests" python3 tools/named_tests.py
  check "types" .venv/bin/mypy --config-file clients/python/pyproject.toml clients/python/src
  check "gates" python3 tools/test_gates.py
}

# They run beside the check of the headers; what they say comes when both have ended.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quick_checks >"$log" 2>&1 &
quick=$! status=0
check "headers" python3 tools/header_check.py || status=1
wait "$quick" || status=1
cat "$log"
[ "$status" = 0 ] || exit 1

check "clang-tidy" python3 tools/tidy.py
