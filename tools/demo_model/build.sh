#!/usr/bin/env bash
# Makes a demo model on one GPU: [ARCH=asynct] build.sh FOLDER WORK [OPTIONS OF train.py]
# FOLDER becomes the model (a tokenizer already in it is kept); WORK gets the checkpoint and the answers.
set -euo pipefail
model=$1 work=$2
shift 2
tools=$(dirname "$(readlink -f "$0")")
mkdir -p "$work"
[ -e "$model/tokenizer.json" ] || python3 "$tools/train_tokenizer.py" "$model"
python3 "$tools/suites.py" "$model"
python3 "$tools/train.py" "$model" "$work/checkpoint.safetensors" --arch "${ARCH:-llama}" "$@"
python3 "$tools/export.py" "$work/checkpoint.safetensors" "$model" --arch "${ARCH:-llama}"
python3 "$tools/evaluate.py" "$model" --answers "$work"
python3 "$tools/greedy.py" "$model"
