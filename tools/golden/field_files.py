#!/usr/bin/env python3
"""Writes files as the packages that users have write them, and what these packages compute from them. Run once, with
sae-lens 6.54 and gguf 0.19 installed beside tools/requirements-models.txt; the files are committed.

    python3 tools/golden/field_files.py tests

tests/dictionaries/saelens_saved_batchtopk: a SAELens checkpoint of a training SAE (`save_model`), with the threshold that
training follows in float64; its oracle is SAELens's own inference form of it, in float64 (dictionary_files.py has the
layout). tests/dictionaries/saelens_saved_*: the other kinds that it trains and serves, likewise, in a dtype each.
tests/steering/easysteer.gguf: a control vector in the layout of EasySteer's `export_gguf`, from block 0 on, in
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
from sae_lens.registry import SAE_CLASS_REGISTRY, SAE_TRAINING_CLASS_REGISTRY

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


# Of each: whether it is in training, and the dtype that it is saved in.
KINDS = {
    "standard": (True, "float32"),
    "topk": (True, "float64"),
    "jumprelu": (True, "float64"),
    "gated": (False, "bfloat16"),
    "jumprelu_skip_transcoder": (False, "float64"),
}


def saved_kind(root, kind):
    in_training, dtype = KINDS[kind]
    torch.manual_seed(50)
    make, make_config = (SAE_TRAINING_CLASS_REGISTRY if in_training else SAE_CLASS_REGISTRY)[kind]
    more = {"k": 4} if kind == "topk" else {}
    more |= {"d_out": D, "apply_b_dec_to_input": False} if kind.endswith("transcoder") else {}
    config = make_config(d_in=D, d_sae=F, device="cpu", dtype=dtype, **more)
    config.metadata.hook_name = f"blocks.{LAYER}.hook_resid_post"
    config.metadata.model_name = "tiny"
    if kind.endswith("transcoder"):
        config.metadata.hook_name = f"blocks.{LAYER}.mlp.hook_in"
        config.metadata.hook_name_out = f"blocks.{LAYER}.hook_mlp_out"
    sae = make(config)
    with torch.no_grad():
        for name, parameter in sae.named_parameters():
            drawn = (torch.randn(parameter.shape) * 0.6).to(torch.bfloat16).to(parameter.dtype)
            parameter.copy_(drawn.abs() if name == "threshold" else drawn)
    folder = root / "dictionaries" / f"saelens_saved_{kind}"
    sae.save_model(folder)
    with tempfile.TemporaryDirectory() as scratch:
        if in_training:
            sae.save_inference_model(scratch)
        used = SAE.load_from_disk(scratch if in_training else folder, dtype="float64")
    x = torch.randn(ROWS, D).to(torch.bfloat16).double()
    with torch.no_grad():
        features = used.encode(x)
        outputs = used(x) if kind.endswith("transcoder") else used.decode(features)
    oracle = {f"x.{LAYER}": x, f"features.{LAYER}": features, f"output.{LAYER}": outputs}
    safetensors.numpy.save_file({name: value.numpy().astype(numpy.float32) for name, value in oracle.items()},
                                root / "dictionaries" / "oracle" / f"saelens_saved_{kind}.safetensors")
    print(kind, json.dumps(used.cfg.to_dict(), default=str), int((features > 0).sum()), "features on")


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
    for kind in KINDS:
        saved_kind(root, kind)


if __name__ == "__main__":
    main()
