. .gpu/setup.sh
R=build/release/apps/rudder
[ -x /tmp/b/fix ] || build rudder gpu_trace || exit 1
mkdir -p /tmp/b; [ -x /tmp/b/fix ] || cp $R /tmp/b/fix
nproc
# the old one, beside nothing
(mkdir -p /tmp/old && tar xJf .gpu/old.tar.xz -C /tmp/old && cd /tmp/old && ln -sfn $OLDPWD/models models && ln -sfn $OLDPWD/.venv .venv &&
 cmake --preset release -DRUDDER_CUDA=ON -DRUDDER_TESTS=OFF -DCMAKE_UNITY_BUILD=OFF > $OUT/old.log 2>&1 && cmake --build --preset release --target rudder >> $OUT/old.log 2>&1 && cp build/release/apps/rudder /tmp/b/old && echo old built) || tail -30 $OUT/old.log
echo "builds done $SECONDS s"; ls -la /tmp/b; nvidia-smi --query-gpu=name --format=csv
q="--quantization fp8 --kv-cache-dtype fp8"
b() { # b BINARY N FLAGS: tokens/s
  local bin=$1 n=$2; shift 2
  /tmp/b/$bin bench throughput --device cuda --load-format dummy --like qwen2.5-7b --kernel-policy /tmp/p.$n.$POL --num-prompts $n --random-input-len 16 --random-output-len ${LEN:-512} --max-num-seqs $n "$@" 2>/dev/null | grep -i "tok/s\|tokens/s\|throughput" | head -3 | tr '\n' ' ' | sed "s/^/$bin N=$n $POL: /"; echo; }
POL=fp8
b old 128 $q; for r in 1 2 3; do for x in old fix; do b $x 128 $q; done; done
echo "t $SECONDS"
for x in old fix; do /tmp/b/$x --version >/dev/null; python3 tools/gpu_trace.py --library build/release/src/rudder/cuda/libgpu_trace.so -- /tmp/b/$x bench throughput --device cuda --load-format dummy --like qwen2.5-7b --kernel-policy /tmp/p.128.fp8 --num-prompts 128 --random-input-len 16 --random-output-len 160 --max-num-seqs 128 $q > $OUT/trace.$x.txt 2>&1; echo == $x; tail -25 $OUT/trace.$x.txt | cut -c1-150; done
echo "t $SECONDS"
b old 1 $q; for r in 1 2 3; do for x in old fix; do b $x 1 $q; done; done
b old 512 $q; for r in 1 2 3; do for x in old fix; do b $x 512 $q; done; done
echo "t $SECONDS"
POL=bf16; b old 128; for r in 1 2 3; do for x in old fix; do b $x 128; done; done
echo "t $SECONDS"
tar cJf $OUT/logs.tar.xz -C $OUT $(ls $OUT | grep -v tar.xz); rm -f $OUT/*.txt $OUT/*.log
