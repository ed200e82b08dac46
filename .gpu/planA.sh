. .gpu/setup.sh
build rudder gpu_tests || exit 1
(timeout 330 tools/gpu_tests.py $GT --idle-steering build/release/apps/rudder $(cat build/release/gpu_tests.txt) > $OUT/tests.log 2>&1; echo tests rc $?)
grep -n "FAILED\|Failure\|passed\|failed\|idle" $OUT/tests.log | tail -40
grep -B2 -A12 "Failure" $OUT/tests.log | head -80
