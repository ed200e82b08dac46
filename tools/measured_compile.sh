#!/usr/bin/env bash
# Runs a compiler and adds a line to a log: what the compile cost, in MB, then the object.
# tools/measured_compile.sh LOG COMMAND... -o OBJECT ... (the launcher of cmake/toolchain.cmake)
# GCC says itself how much memory it took for what it read and made of it (-ftime-report). That number is the
# same on every machine and beside any load, and a compiler cache, which keeps what a compiler printed, gives it
# back with the object. An object for a GPU counts with its size.
log=$1
shift
object=
for ((i = 1; i < $#; i++)); do
  if [ "${!i}" = -o ]; then
    next=$((i + 1))
    object=${!next}
  fi
done
case $object in
  *.cu.o)
    "$@" || exit
    cost=$(($(stat -c %s "$object") / 1000000))
    ;;
  *)
    printed=$(mktemp)
    trap 'rm -f "$printed"' EXIT
    status=0
    "$@" -ftime-report 2>"$printed" || status=$?
    # The report is an empty line, a heading, and a table up to its line TOTAL, whose last column is the memory.
    cost=$(awk '/^Time variable/ { report = 1; empty = 0 }
                !report && /^$/ { empty++; next }
                !report { for (; empty; empty--) print "" > "/dev/stderr"; print > "/dev/stderr" }
                /^ TOTAL/ { report = 0; print /k$/ ? $NF / 1000 : /G$/ ? $NF * 1000 : $NF + 0 }' "$printed")
    [ "$status" -eq 0 ] || exit "$status"
    ;;
esac
echo "${cost:-0} $object" >>"$log"
