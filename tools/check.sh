#!/usr/bin/env bash
# The only definition of "clean": format, room table, budgets, banned calls, names that clash, words of the glossary, rows of
# the ledger, recipes of CONTRIBUTING.md, tests that documents name, types of the Python client, headers that stand alone, clang-tidy.
# `make test` and continuous integration run exactly this.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m==> check: %s\033[0m\n' "$*"; }

quick_checks() {  # each takes one core for some seconds
  local sources
  mapfile -t sources < <(git ls-files 'src/*.h' 'src/*.cpp' 'src/*.cu' 'src/*.cuh' 'apps/*.h' 'apps/*.cpp' 'tests/*.cpp' 'bench/*.cpp')

  say "format (${#sources[@]} files)"
  clang-format-14 --dry-run --Werror "${sources[@]}"

  say "rooms, budgets, banned calls, names"
  python3 tools/room_lint.py
  python3 tools/test_unit_names.py 2>/dev/null || { echo "tools/test_unit_names.py fails"; exit 1; }

  say "words of the glossary"
  python3 tools/glossary_check.py
  python3 tools/test_glossary_check.py 2>/dev/null || { echo "tools/test_glossary_check.py fails"; exit 1; }

  say "build budget"
  python3 tools/test_build_budget.py 2>/dev/null || { echo "tools/test_build_budget.py fails"; exit 1; }

  say "ledger"
  python3 tools/ledger_check.py
  python3 tools/test_ledger_check.py 2>/dev/null || { echo "tools/test_ledger_check.py fails"; exit 1; }

  say "recipes"
  python3 tools/recipe_check.py
  python3 tools/test_recipe_check.py 2>/dev/null || { echo "tools/test_recipe_check.py fails"; exit 1; }

  say "tests that documents name"
  python3 tools/named_tests.py
  python3 tools/test_named_tests.py 2>/dev/null || { echo "tools/test_named_tests.py fails"; exit 1; }

  say "the check of headers"
  python3 tools/test_header_check.py 2>/dev/null || { echo "tools/test_header_check.py fails"; exit 1; }

  say "types of the Python client"
  .venv/bin/mypy --config-file clients/python/pyproject.toml clients/python/src
}

# They run beside the check of the headers; what they say comes when both have ended.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quick_checks >"$log" 2>&1 &
quick=$! status=0
say "headers stand alone"
python3 tools/header_check.py || status=1
wait "$quick" || status=1
cat "$log"
[ "$status" = 0 ] || exit 1

say "clang-tidy"
python3 tools/tidy.py
