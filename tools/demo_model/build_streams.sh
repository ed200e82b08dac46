#!/usr/bin/env bash
# Makes the demo model with several streams on one CPU core: build_streams.sh FOLDER WORK [OPTIONS OF train_streams.py]
# FOLDER becomes the model, with the tokenizer of models/demo; WORK gets the checkpoint, the answers and the mood vector.
set -euo pipefail
model=$1 work=$2
shift 2
tools=$(dirname "$(readlink -f "$0")")
root=$(readlink -f "$tools/../..")
mkdir -p "$model" "$work"
cp "$root/models/demo/tokenizer.json" "$root/models/demo/tokenizer_config.json" "$model"
python3 "$tools/train_streams.py" "$model" "$work/checkpoint.safetensors" "$@"
python3 "$tools/export_streams.py" "$work/checkpoint.safetensors" "$model"

rudder=${RUDDER:-$root/build/release/apps/rudder}
for topic in kite lantern bicycle puzzle hat violin camera mirror snowman sandcastle painting robot puppy pony rabbit \
             goldfish hamster owl hedgehog garden bakery library farm lighthouse harbor; do
  echo "Tell me a happy story about a $topic."
done > "$work/happy.txt"
sed 's/ happy / sad /' "$work/happy.txt" > "$work/sad.txt"
for topic in boat cloud teapot wagon ladder pumpkin squirrel turtle castle bridge; do
  echo "Tell me a story about a $topic."
done > "$work/free.txt"
"$rudder" vectors train "$model" --positive "$work/happy.txt" --negative "$work/sad.txt" --chat --name mood --output "$work"
"$rudder" vectors eval "$model" --vectors "$work/mood.safetensors" --prompts "$work/free.txt" --chat \
  --scales=-1,0,0.5,1,2 --output "$work/mood_eval.json" --plot "$work/mood.svg"
