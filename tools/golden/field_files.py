#!/usr/bin/env python3
"""Writes files as the packages that users have write them, and what these packages compute from them. Run once, with
sae-lens 6.54 and gguf 0.19 installed beside tools/requirements-models.txt; the files are committed.

    python3 tools/golden/field_files.py tests

tests/dictionaries/saelens_saved_batchtopk: a SAELens checkpoint of a training SAE (`save_model`), with the threshold that
training follows in float64; its oracle is SAELens's own inference form of it, in float64 (dictionary_files.py has the
layout). tests/steering/easysteer.gguf: a control vector in the layout of EasySteer's `export_gguf`, from block 0 on, in
the float64 that scikit-learn's directions have.
"""

import json
import pathlib
import sys
import tempfile

import gguf
import numpy
import safetensors.numpy
import torch
from sae_lens import SAE, BatchTopKTrainingSAE, BatchTopKTrainingSAEConfig

D, F, ROWS, LAYER = 8, 20, 12, 1
THRESHOLD = 0.3137153201  # no float32
MARGIN = 1e-4  # values closer to the threshold could be on either side of it in float32


def saved_sae(root):
    torch.manual_seed(49)
    config = BatchTopKTrainingSAEConfig(d_in=D, d_sae=F, k=4, device="cpu", dtype="float32")
    config.metadata.hook_name = f"blocks.{LAYER}.hook_resid_post"
    config.metadata.model_name = "tiny"
    sae = BatchTopKTrainingSAE(config)
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.copy_((torch.randn(parameter.shape) * 0.6).to(torch.bfloat16).float())
        sae.topk_threshold.fill_(THRESHOLD)
    folder = root / "dictionaries" / "saelens_saved_batchtopk"
    sae.save_model(folder)
    with tempfile.TemporaryDirectory() as scratch:
        sae.save_inference_model(scratch)
        used = SAE.load_from_disk(scratch, dtype="float64")
    x = torch.randn(ROWS, D).to(torch.bfloat16).double()
    with torch.no_grad():
        features = used.encode(x)
        outputs = used.decode(features)
        before = (x - (used.b_dec if used.cfg.apply_b_dec_to_input else 0)) @ used.W_enc + used.b_enc
    assert (before - used.threshold).abs().min() > MARGIN, "draw other numbers"
    oracle = {f"x.{LAYER}": x, f"features.{LAYER}": features, f"output.{LAYER}": outputs}
    safetensors.numpy.save_file({name: value.numpy().astype(numpy.float32) for name, value in oracle.items()},
                                root / "dictionaries" / "oracle" / "saelens_saved_batchtopk.safetensors")
    print(json.dumps(used.cfg.to_dict(), default=str), int((features > 0).sum()), "features on")


def control_vector(root):
    writer = gguf.GGUFWriter(root / "steering" / "easysteer.gguf", "controlvector")
    writer.add_string("controlvector.model_hint", "tiny")
    writer.add_string("controlvector.method", "linear_probe")
    writer.add_uint32("controlvector.layer_count", 2)
    writer.add_float32("controlvector.explained_variance.0", 0.5)
    for layer in (0, 7):
        writer.add_tensor(f"direction.{layer}", numpy.array([layer, -layer / 2, 0.1, 49.0]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    root = pathlib.Path(sys.argv[1])
    control_vector(root)
    saved_sae(root)


if __name__ == "__main__":
    main()
