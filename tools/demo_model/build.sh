#!/usr/bin/env bash
# Makes the demo model from nothing on one GPU: build.sh FOLDER WORK [MINUTES [CHECKPOINT]]
# FOLDER becomes the model; WORK keeps the checkpoint and the answers; CHECKPOINT is where training goes on from.
set -euo pipefail
model=$1 work=$2 minutes=${3:-7} resume=${4:-}
tools=$(dirname "$(readlink -f "$0")")
mkdir -p "$work"
python3 "$tools/train_tokenizer.py" "$model"
python3 "$tools/suites.py" "$model"
python3 "$tools/train.py" "$model" "$work/checkpoint.safetensors" --minutes "$minutes" ${resume:+--resume "$resume"}
python3 "$tools/export.py" "$work/checkpoint.safetensors" "$model"
python3 "$tools/evaluate.py" "$model" --answers "$work"
python3 "$tools/greedy.py" "$model"
