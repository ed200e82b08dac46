#!/usr/bin/env bash
# Runs a compiler and adds a line to a log: seconds of processor time, then the object.
# tools/timed_compile.sh LOG COMMAND... -o OBJECT ... (the launcher of cmake/toolchain.cmake)
log=$1
shift
object=
for ((i = 1; i < $#; i++)); do
  if [ "${!i}" = -o ]; then
    next=$((i + 1))
    object=${!next}
  fi
done
exec 3>&1 4>&2
TIMEFORMAT='%U %S'
spent=$({ time "$@" 1>&3 2>&4; } 2>&1)
status=$?
echo "$spent $object" >>"$log"
exit $status
