#!/usr/bin/env python3
"""Writes small dictionaries in the layouts in which they are published, and what each of them
computes, in float64 and in formulas of its own. Run once, with numpy, ml_dtypes and safetensors
installed; the files are committed.

    python3 tools/golden/dictionary_files.py tests/dictionaries

oracle/CASE.safetensors holds, for each layer L that the case reads, x.L [rows, d_in] and features.L
[rows, F], and for each layer that it writes, output.L [rows, d_out]. Where the case reads rows without a
norm's gain, gain.L [d_in] is that of a model, and x.L what that model's norm gives.
"""

import json
import pathlib
import sys

import ml_dtypes
import numpy as np
import safetensors.numpy

D = 8
F = 20
ROWS = 12
LAYERS = 3
# Values closer to a threshold than this could be on either side of it in float32.
MARGIN = 1e-4

random = np.random.default_rng(20)


def draw(*shape, scale=1.0):
    """Float64 values that float32 and bfloat16 hold exactly."""
    values = random.normal(size=shape) * scale
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def f32(tensors):
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()}


def write(folder, name, tensors, dtype=np.float32):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {key: np.ascontiguousarray(value).astype(dtype) for key, value in tensors.items()}
    safetensors.numpy.save_file(arrays, folder / name)


def write_json(folder, name, fields):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(fields, indent=1) + "\n")


def save_oracle(root, case, values):
    write(root / "oracle", f"{case}.safetensors", values)


def clear_of(pre, threshold):
    assert np.abs(pre - threshold).min() > MARGIN, "draw other numbers"


def relu(pre):
    clear_of(pre, 0)
    return np.where(pre > 0, pre, 0)


def jumprelu(pre, threshold):
    clear_of(pre, threshold)
    return np.where((pre > threshold) & (pre > 0), pre, 0)


def topk(pre, k):
    kept = np.zeros_like(pre)
    for row, out in zip(pre, kept):
        order = np.sort(row)[::-1]
        assert order[k - 1] - order[k] > MARGIN
        best = np.argsort(-row)[:k]
        out[best] = row[best]
    return np.maximum(kept, 0)


def parts(with_threshold=False, transposed=False):
    """W_enc [d, F], W_dec [F, d], b_enc, b_dec and thresholds in SAELens's names and layout."""
    tensors = {"W_enc": draw(D, F, scale=0.6), "W_dec": draw(F, D, scale=0.6),
               "b_enc": draw(F, scale=0.3), "b_dec": draw(D, scale=0.4)}
    if with_threshold:
        tensors["threshold"] = np.abs(draw(F, scale=0.7))
    return tensors


def lens_config(architecture, hook="blocks.1.hook_resid_post", **more):
    fields = {"architecture": architecture, "d_in": D, "d_sae": F, "dtype": "float32", "device": "cpu",
              "apply_b_dec_to_input": False, "normalize_activations": "none",
              "reshape_activations": "none",
              "metadata": {"sae_lens_version": "6.20.0", "model_name": "tiny", "hook_name": hook}}
    fields["metadata"].update(more.pop("metadata", {}))
    fields.update(more)
    return fields


def saelens(root, case, config, tensors, encode, decode, dtype=np.float32):
    x = draw(ROWS, D)
    features = encode(x)
    write_json(root / case, "cfg.json", config)
    write(root / case, "sae_weights.safetensors", tensors, dtype)
    layer = 1
    save_oracle(root, case, {f"x.{layer}": x, f"features.{layer}": features,
                             f"output.{layer}": decode(features, x)})


def saelens_cases(root):
    t = parts()
    saelens(root, "saelens_standard", lens_config("standard", apply_b_dec_to_input=True), t,
            lambda x: relu((x - t["b_dec"]) @ t["W_enc"] + t["b_enc"]),
            lambda f, x: f @ t["W_dec"] + t["b_dec"])
    write(root / "saelens_standard", "sparsity.safetensors", {"sparsity": draw(F)})
    # Before version 6: other names, no architecture, the bias subtracted where nothing is said.
    old = {"hook_point": "blocks.1.hook_resid_pre", "hook_point_layer": 1, "d_in": D, "d_sae": F,
           "dtype": "torch.float16", "activation_fn_str": "relu", "normalize_activations": False,
           "model_name": "tiny"}
    t1 = dict(parts(), scaling_factor=np.ones(F))
    saelens(root, "saelens_before_6", old, t1,
            lambda x: relu((x - t1["b_dec"]) @ t1["W_enc"] + t1["b_enc"]),
            lambda f, x: f @ t1["W_dec"] + t1["b_dec"], np.float16)
    t2 = parts(with_threshold=True)
    saelens(root, "saelens_jumprelu", lens_config("jumprelu"), t2,
            lambda x: jumprelu(x @ t2["W_enc"] + t2["b_enc"], t2["threshold"]),
            lambda f, x: f @ t2["W_dec"] + t2["b_dec"])
    t3 = parts()
    norms = np.linalg.norm(t3["W_dec"], axis=1)
    saelens(root, "saelens_topk", lens_config("topk", k=4, rescale_acts_by_decoder_norm=True), t3,
            lambda x: topk((x @ t3["W_enc"] + t3["b_enc"]) * norms, 4),
            lambda f, x: (f / norms) @ t3["W_dec"] + t3["b_dec"])
    t4 = parts()
    old_topk = {"hook_name": "blocks.1.hook_resid_mid", "d_in": D, "d_sae": F, "dtype": "float32",
                "activation_fn_str": "topk", "activation_fn_kwargs": {"k": 5}}
    saelens(root, "saelens_topk_before_6", old_topk, t4,
            lambda x: topk((x - t4["b_dec"]) @ t4["W_enc"] + t4["b_enc"], 5),
            lambda f, x: f @ t4["W_dec"] + t4["b_dec"])
    t5 = parts()
    del t5["b_enc"]
    t5.update(b_gate=draw(F, scale=0.3), r_mag=draw(F, scale=0.4), b_mag=draw(F, scale=0.5))

    def gated(x):
        x = x - t5["b_dec"]
        gate = x @ t5["W_enc"] + t5["b_gate"]
        clear_of(gate, 0)
        return (gate > 0) * relu(x @ (t5["W_enc"] * np.exp(t5["r_mag"])) + t5["b_mag"])

    saelens(root, "saelens_gated", lens_config("gated", apply_b_dec_to_input=True), t5, gated,
            lambda f, x: f @ t5["W_dec"] + t5["b_dec"])
    t6 = dict(parts(), topk_threshold=np.array(0.5))
    norms6 = np.linalg.norm(t6["W_dec"], axis=1)
    saelens(root, "saelens_matryoshka", lens_config("matryoshka_batchtopk", k=4), t6,
            lambda x: jumprelu((x @ t6["W_enc"] + t6["b_enc"]) * norms6, 0.5),
            lambda f, x: f @ (t6["W_dec"] / norms6[:, None]) + t6["b_dec"])


def saelens_norms(root):
    t = parts(with_threshold=True)
    scale = lambda x: np.sqrt(D) / np.linalg.norm(x, axis=1, keepdims=True)
    saelens(root, "saelens_constant_norm",
            lens_config("jumprelu", normalize_activations="constant_norm_rescale",
                        apply_b_dec_to_input=True), t,
            lambda x: jumprelu((x * scale(x) - t["b_dec"]) @ t["W_enc"] + t["b_enc"], t["threshold"]),
            lambda f, x: (f @ t["W_dec"] + t["b_dec"]) / scale(x))
    t2 = parts()
    mean = lambda x: x.mean(axis=1, keepdims=True)
    spread = lambda x: x.std(axis=1, ddof=1, keepdims=True)
    saelens(root, "saelens_layer_norm",
            lens_config("standard", normalize_activations="layer_norm", apply_b_dec_to_input=True), t2,
            lambda x: relu(((x - mean(x)) / (spread(x) + 1e-5) - t2["b_dec"]) @ t2["W_enc"] + t2["b_enc"]),
            lambda f, x: (f @ t2["W_dec"] + t2["b_dec"]) * spread(x) + mean(x))


def saelens_transcoders(root):
    hooks = {"hook_name": "blocks.1.mlp.hook_in", "hook_name_out": "blocks.1.hook_mlp_out"}
    t = parts()
    # They subtract nothing, although the field says so.
    saelens(root, "saelens_transcoder",
            lens_config("transcoder", d_out=D, apply_b_dec_to_input=True, metadata=hooks), t,
            lambda x: relu(x @ t["W_enc"] + t["b_enc"]), lambda f, x: f @ t["W_dec"] + t["b_dec"])
    t2 = dict(parts(with_threshold=True), W_skip=draw(D, D, scale=0.3))
    saelens(root, "saelens_skip_transcoder",
            lens_config("jumprelu_skip_transcoder", d_out=D, metadata=hooks), t2,
            lambda x: jumprelu(x @ t2["W_enc"] + t2["b_enc"], t2["threshold"]),
            lambda f, x: f @ t2["W_dec"] + t2["b_dec"] + x @ t2["W_skip"].T)


def one_layer(root, case, layer, encode, decode):
    x = draw(ROWS, D)
    features = encode(x)
    save_oracle(root, case, {f"x.{layer}": x, f"features.{layer}": features,
                             f"output.{layer}": decode(features, x)})


def gemma_scope(root):
    t = parts(with_threshold=True)
    (root / "gemma_scope").mkdir(parents=True, exist_ok=True)
    np.savez(root / "gemma_scope" / "params.npz", **f32(t))
    one_layer(root, "gemma_scope", 2, lambda x: jumprelu(x @ t["W_enc"] + t["b_enc"], t["threshold"]),
              lambda f, x: f @ t["W_dec"] + t["b_dec"])
    for case, affine in (("gemma_scope_2", False), ("gemma_scope_2_transcoder", True)):
        t2 = parts(with_threshold=True)
        lower = {"w_enc": t2["W_enc"], "w_dec": t2["W_dec"], "b_enc": t2["b_enc"], "b_dec": t2["b_dec"],
                 "threshold": t2["threshold"]}
        config = {"hf_hook_point_in": "model.layers.2.output", "hf_hook_point_out": "model.layers.2.output",
                  "width": F, "model_name": "tiny", "architecture": "jump_relu", "l0": 5,
                  "affine_connection": affine, "type": "sae"}
        skip = np.zeros((D, D))
        if affine:
            skip = lower["affine_skip_connection"] = draw(D, D, scale=0.3)
            config.update(hf_hook_point_in="model.layers.2.pre_feedforward_layernorm.output",
                          hf_hook_point_out="model.layers.2.post_feedforward_layernorm.output",
                          type="transcoder")
        write(root / case, "params.safetensors", lower)
        write_json(root / case, "config.json", config)
        one_layer(root, case, 2,
                  lambda x: jumprelu(x @ t2["W_enc"] + t2["b_enc"], t2["threshold"]),
                  lambda f, x: f @ t2["W_dec"] + t2["b_dec"] + x @ skip)


def cross_layer(root, case, encoders, decoders, biases, thresholds, skips):
    """decoders[l][l2] [F, d]: from layer l to l2."""
    values = {}
    outputs = [np.tile(bias, (ROWS, 1)) for bias in biases]
    for layer in range(LAYERS):
        x = draw(ROWS, D)
        weight, bias = encoders[layer]
        features = jumprelu(x @ weight + bias, thresholds[layer])
        values[f"x.{layer}"] = x
        values[f"features.{layer}"] = features
        for target in range(layer, LAYERS):
            outputs[target] = outputs[target] + features @ decoders[layer][target]
        outputs[layer] = outputs[layer] + x @ skips[layer]
    for layer in range(LAYERS):
        values[f"output.{layer}"] = outputs[layer]
    save_oracle(root, case, values)


def cross_layer_cases(root):
    encoders = [(draw(D, F, scale=0.6), draw(F, scale=0.3)) for _ in range(LAYERS)]
    decoders = [[draw(F, D, scale=0.6) for _ in range(LAYERS)] for _ in range(LAYERS)]
    biases = [draw(D, scale=0.4) for _ in range(LAYERS)]
    thresholds = [np.abs(draw(F, scale=0.7)) for _ in range(LAYERS)]
    skips = [draw(D, D, scale=0.3) for _ in range(LAYERS)]
    for layer in range(LAYERS):
        stacked = np.stack([decoders[layer][target] if target >= layer else np.zeros((F, D))
                            for target in range(LAYERS)], axis=1)
        write(root / "gemma_scope_2_clt", f"params_layer_{layer}.safetensors",
              {"w_enc": encoders[layer][0], "b_enc": encoders[layer][1], "b_dec": biases[layer],
               "threshold": thresholds[layer], "w_dec": stacked, "affine_skip_connection": skips[layer]})
        write(root / "circuit_tracer_clt", f"W_enc_{layer}.safetensors",
              {f"W_enc_{layer}": encoders[layer][0].T, f"b_enc_{layer}": encoders[layer][1],
               f"b_dec_{layer}": biases[layer], f"threshold_{layer}": thresholds[layer]},
              ml_dtypes.bfloat16)
        write(root / "circuit_tracer_clt", f"W_dec_{layer}.safetensors",
              {f"W_dec_{layer}": stacked[:, layer:]}, ml_dtypes.bfloat16)
    write_json(root / "gemma_scope_2_clt", "config.json",
               {"architecture": "jump_relu", "width": F, "model_name": "tiny", "type": "clt"})
    (root / "circuit_tracer_clt" / "config.yaml").write_text(
        'model_name: "tiny"  # of the tests\nmodel_kind: cross_layer_transcoder\n'
        "feature_input_hook: hook_resid_mid\nfeature_output_hook: hook_mlp_out\n")
    cross_layer(root, "gemma_scope_2_clt", encoders, decoders, biases, thresholds, skips)
    cross_layer(root, "circuit_tracer_clt", encoders, decoders, biases, thresholds,
                [np.zeros((D, D))] * LAYERS)


def circuit_tracer(root):
    case = "circuit_tracer"
    values = {}
    for layer in range(2):
        tensors = {"W_enc": draw(F, D, scale=0.6), "W_dec": draw(F, D, scale=0.6),
                   "b_enc": draw(F, scale=0.3), "b_dec": draw(D, scale=0.4)}
        skip = np.zeros((D, D))
        x = draw(ROWS, D)
        pre = x @ tensors["W_enc"].T + tensors["b_enc"]
        if layer == 0:
            skip = tensors["W_skip"] = draw(D, D, scale=0.3)
            features = relu(pre)
        else:
            threshold = np.abs(draw(F, scale=0.7))
            tensors["activation_function.threshold"] = threshold
            features = jumprelu(pre, threshold)
        write(root / case, f"layer_{layer}.safetensors", tensors)
        values.update({f"x.{layer}": x, f"features.{layer}": features,
                       f"output.{layer}": features @ tensors["W_dec"] + tensors["b_dec"] + x @ skip.T})
    (root / case / "config.yaml").write_text(
        "# transcoders\nmodel_name: 'tiny'\nmodel_kind: transcoder_set\n"
        "feature_input_hook: mlp.hook_in\nfeature_output_hook: hook_mlp_out\n"
        "transcoders:\n  - layer_0.safetensors\n  - layer_1.safetensors\n")
    save_oracle(root, case, values)


def llama_scope(root):
    mean_in, mean_out = 5.0, 4.0
    s_in, s_out = np.sqrt(D) / mean_in, np.sqrt(D) / mean_out
    for case in ("llama_scope", "llama_scope_later"):
        t = {"encoder.weight": draw(F, D, scale=0.6), "encoder.bias": draw(F, scale=0.3),
             "decoder.weight": draw(D, F, scale=0.6), "decoder.bias": draw(D, scale=0.4)}
        config = {"hook_point_in": "blocks.2.hook_resid_post", "hook_point_out": "blocks.2.hook_resid_post",
                  "d_model": D, "act_fn": "jumprelu", "norm_activation": "dataset-wise",
                  "use_decoder_bias": True, "apply_decoder_bias_to_pre_encoder": False,
                  "use_glu_encoder": False, "top_k": 50,
                  "dataset_average_activation_norm": {"in": mean_in, "out": mean_out}}
        decoder = t["decoder.weight"].T * (s_in / s_out)
        norms = np.linalg.norm(decoder, axis=1)
        if case == "llama_scope":
            config.update(d_sae=F, jump_relu_threshold=0.75, sparsity_include_decoder_norm=True)
            threshold = 0.75 / norms
            write_json(root / case, "hyperparams.json", config)
            write(root / case / "checkpoints", "final.safetensors", t)
        else:
            t["log_jumprelu_threshold"] = draw(F, scale=0.5) - 0.5
            config.update(sparsity_include_decoder_norm=False)
            threshold = np.exp(t["log_jumprelu_threshold"]) / s_in
            write_json(root / case, "config.json", config)
            write(root / case, "sae_weights.safetensors", t)
        # Trained on rows of mean length sqrt(d): x s_in. In units of x the value is 1 / s_in of that.
        encode = lambda x: jumprelu(
            ((x * s_in) @ t["encoder.weight"].T + t["encoder.bias"]) / s_in, threshold)
        one_layer(root, case, 2, encode,
                  lambda f, x: ((f * s_in) @ t["decoder.weight"].T + t["decoder.bias"]) / s_out)


def sparsify(root):
    for name, transcode in (("layers.1", False), ("layers.1.mlp", True)):
        t = {"encoder.weight": draw(F, D, scale=0.6), "encoder.bias": draw(F, scale=0.3),
             "W_dec": draw(F, D, scale=0.6), "b_dec": draw(D, scale=0.4)}
        skip = np.zeros((D, D))
        if transcode:
            skip = t["W_skip"] = draw(D, D, scale=0.3)
        write(root / "sparsify" / name, "sae.safetensors", t)
        write_json(root / "sparsify" / name, "cfg.json",
                   {"activation": "topk", "expansion_factor": 32, "normalize_decoder": True,
                    "num_latents": F, "k": 4, "multi_topk": False, "skip_connection": transcode,
                    "transcode": transcode, "d_in": D})
        shift = 0 if transcode else t["b_dec"]
        one_layer(root, f"sparsify_{name}", 1,
                  lambda x: topk((x - shift) @ t["encoder.weight"].T + t["encoder.bias"], 4),
                  lambda f, x: f @ t["W_dec"] + t["b_dec"] + x @ skip.T)


def manifest(root):
    def save(case, fields, tensors, encode, decode):
        write_json(root / case, "dictionary.json",
                   {"format": "rudder-dictionary", "weights": "weights.safetensors", "model": "tiny", **fields})
        write(root / case, "weights.safetensors", tensors)
        one_layer(root, case, 1, encode, decode)

    t = {"encoder": draw(F, D, scale=0.6), "encoder_bias": draw(F, scale=0.3),
         "decoder": draw(F, D, scale=0.6), "output_bias": draw(D, scale=0.4), "threshold": np.array([0.5])}
    scale = lambda x: np.sqrt(D) / np.linalg.norm(x, axis=1, keepdims=True)
    save("manifest_batchtopk",
         {"read": "resid_post.1", "activation": "batchtopk", "norm": "constant_norm",
          "subtract_output_bias": True}, t,
         lambda x: jumprelu((x * scale(x) - t["output_bias"]) @ t["encoder"].T + t["encoder_bias"], 0.5),
         lambda f, x: (f @ t["decoder"] + t["output_bias"]) / scale(x))
    t2 = {"encoder": draw(F, D, scale=0.6), "encoder_bias": draw(F, scale=0.5), "decoder": draw(F, D, scale=0.6),
          "output_bias": draw(D, scale=0.4), "gate_bias": draw(F, scale=0.3),
          "gate_log_scale": draw(F, scale=0.4)}
    save("manifest_gated", {"read": "resid_post.1", "activation": "gated", "rescale_by_decoder_norm": False}, t2,
         lambda x: (x @ t2["encoder"].T + t2["gate_bias"] > 0)
         * relu((x @ t2["encoder"].T) * np.exp(t2["gate_log_scale"]) + t2["encoder_bias"]),
         lambda f, x: f @ t2["decoder"] + t2["output_bias"])
    t3 = {"encoder": draw(F, D, scale=0.6), "encoder_bias": draw(F, scale=0.3), "decoder": draw(F, D, scale=0.6),
          "output_bias": draw(D, scale=0.4)}
    save("manifest_relu", {"read": "resid_post.1", "activation": "relu"}, t3,
         lambda x: relu(x @ t3["encoder"].T + t3["encoder_bias"]),
         lambda f, x: f @ t3["decoder"] + t3["output_bias"])


def without_gain(root):
    """Transcoders of what a norm gives before it multiplies: the model's row, divided by the gain."""

    def values(layer, encode, decode):
        gain = draw(D)
        gain[3] = -0.02  # small and negative gains are gains
        row = (draw(ROWS, D) * gain).astype(np.float32).astype(np.float64)
        x = row / gain
        features = encode(x)
        return {f"x.{layer}": row, f"gain.{layer}": gain, f"features.{layer}": features,
                f"output.{layer}": decode(features, x)}

    t = parts(with_threshold=True)
    case = "gemma_scope_transcoder"
    (root / case).mkdir(parents=True, exist_ok=True)
    np.savez(root / case / "params.npz", **f32(t))
    save_oracle(root, case, values(2, lambda x: jumprelu(x @ t["W_enc"] + t["b_enc"], t["threshold"]),
                                   lambda f, x: f @ t["W_dec"] + t["b_dec"]))

    case = "circuit_tracer_without_gain"
    t2 = {"W_enc": draw(F, D, scale=0.6), "W_dec": draw(F, D, scale=0.6), "b_enc": draw(F, scale=0.3),
          "b_dec": draw(D, scale=0.4), "W_skip": draw(D, D, scale=0.3)}
    write(root / case, "layer_0.safetensors", t2)
    (root / case / "config.yaml").write_text(
        "model_name: tiny\nmodel_kind: transcoder_set\n"
        "feature_input_hook: ln2.hook_normalized\nfeature_output_hook: hook_mlp_out\n")
    save_oracle(root, case, values(0, lambda x: relu(x @ t2["W_enc"].T + t2["b_enc"]),
                                   lambda f, x: f @ t2["W_dec"] + t2["b_dec"] + x @ t2["W_skip"].T))

    points = {"read": "blocks.1.ln2.hook_normalized", "write": "mlp_out.1", "subtract_output_bias": True}

    def manifest_case(case, fields, tensors, encode):
        write_json(root / case, "dictionary.json",
                   {"format": "rudder-dictionary", "weights": "weights.safetensors", **points, **fields})
        write(root / case, "weights.safetensors", tensors)
        save_oracle(root, case, values(1, lambda x: encode((x - tensors["output_bias"]) @ tensors["encoder"].T),
                                       lambda f, x: f @ tensors["decoder"] + tensors["output_bias"]
                                       + x @ tensors["skip"].T))

    t3 = {"encoder": draw(F, D, scale=0.6), "encoder_bias": draw(F, scale=0.3), "decoder": draw(F, D, scale=0.6),
          "output_bias": draw(D, scale=0.4), "skip": draw(D, D, scale=0.3)}
    manifest_case("manifest_topk_without_gain", {"activation": "topk", "k": 4}, t3,
                  lambda y: topk(y + t3["encoder_bias"], 4))
    t4 = {"encoder": draw(F, D, scale=0.6), "encoder_bias": draw(F, scale=0.5), "decoder": draw(F, D, scale=0.6),
          "output_bias": draw(D, scale=0.4), "skip": draw(D, D, scale=0.3), "gate_bias": draw(F, scale=0.3),
          "gate_log_scale": draw(F, scale=0.4)}
    manifest_case("manifest_gated_without_gain", {"activation": "gated"}, t4,
                  lambda y: (y + t4["gate_bias"] > 0) * relu(y * np.exp(t4["gate_log_scale"]) + t4["encoder_bias"]))


def small(root):
    """Of a model of width 4, for tests that look at what a feature adds: it has no oracle."""
    write_json(root / "small", "dictionary.json",
               {"format": "rudder-dictionary", "weights": "weights.safetensors", "read": "resid_post.1",
                "activation": "relu"})
    write(root / "small", "weights.safetensors",
          {"encoder": np.zeros((2, 4)), "encoder_bias": np.zeros(2), "output_bias": np.zeros(4),
           "decoder": np.array([[0, 0, 0, 1], [1, 2, 3, 4]])})


def main():
    root = pathlib.Path(sys.argv[1])
    for write_cases in (saelens_cases, saelens_norms, saelens_transcoders, gemma_scope, cross_layer_cases,
                        circuit_tracer, llama_scope, sparsify, manifest, small, without_gain):
        write_cases(root)


if __name__ == "__main__":
    main()
