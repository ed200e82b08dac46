// Loads dictionaries from files, in the layouts in which they are published. It executes nothing
// from a file and opens no pickle. What a file lacks, or has beside what its configuration says, is
// an Error at the file and the tensor or field: kCorruptFile where a format is broken,
// kInvalidArgument where tensors, shapes, dtype or hook are others, kUnsupported where this program
// does not compute it. Called by Library and by commands; any thread.
//
//   folder with                                     format
//   dictionary.json                                 our own (format_manifest.cpp)
//   params.npz                                      Gemma Scope 1
//   config.json, params.safetensors                 Gemma Scope 2
//   config.json, params_layer_0.safetensors, …      Gemma Scope 2, cross-layer transcoder
//   cfg.json, sae_weights.safetensors               SAELens
//   cfg.json, sae.safetensors                       EleutherAI sparsify
//   hyperparams.json, checkpoints/final.safetensors Llama Scope
//   config.json, sae_weights.safetensors            Llama Scope, later form
//   config.yaml, layer_0.safetensors, …             circuit-tracer, a transcoder a layer
//   config.yaml, W_enc_0.safetensors, …             circuit-tracer, cross-layer transcoder
#pragma once

#include <string>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/features/dictionary.h"

namespace rudder::steer {

// `path`: such a folder, or a file of it. `points`: where it reads, "resid_post.20", or where it
// reads and writes, "mlp_in.20,mlp_out.20"; needed where the files do not say, else the same as
// theirs or empty. "blocks.20.ln2.hook_normalized" is mlp_in.20 without the norm's gain: what reads
// that is to be bound to the model (fold_gain.h). The set has no name yet.
Result<features::DictionarySet> load_dictionary(const std::string& path, std::string_view points);

}  // namespace rudder::steer
