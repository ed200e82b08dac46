// Writes a checkpoint as a GGUF file: its numbers in blocks (weights/round_blocks.h), rows in the
// order of the converter of llama.cpp, and metadata, tokenizer and chat template as
// gguf_checkpoint.h reads them. `rudder quantise` calls it, on one thread; it works on every core.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

struct GgufScheme {
  std::string_view name;    // "gguf-q4_k"
  std::string_view layers;  // block type of the layers' products
  std::string_view others;  // of embedding and head
  // Where a row is no multiple of the first's blocks.
  std::string_view layers_otherwise;
  std::string_view others_otherwise;
  uint32_t file_type = 0;  // general.file_type
};
// Vectors are F32. Q4_K and Q6_K give way to Q5_0 and Q8_0, as in llama.cpp.
inline constexpr std::array<GgufScheme, 7> kGgufSchemes = {{
    {"gguf-f32", "F32", "F32", "F32", "F32", 0},
    {"gguf-f16", "F16", "F16", "F16", "F16", 1},
    {"gguf-bf16", "BF16", "BF16", "BF16", "BF16", 32},
    {"gguf-q8_0", "Q8_0", "Q8_0", "F16", "F16", 7},
    {"gguf-q6_k", "Q6_K", "Q6_K", "Q8_0", "Q8_0", 18},
    {"gguf-q4_k", "Q4_K", "Q6_K", "Q5_0", "Q8_0", 14},
    {"gguf-q4_0", "Q4_0", "Q6_K", "F16", "Q8_0", 2},
}};
const GgufScheme* find_gguf_scheme(std::string_view name);  // null: there is none

// `file` may not be there yet. What it holds is read back: config and tokenizer are the
// checkpoint's. kUnsupported, with the file and field or the tensor: an architecture other than
// Llama's, Mistral's and Qwen's dense ones, what its metadata have no key for, weights that are
// quantised already.
Result<void> write_gguf(const weights::Checkpoint& checkpoint, const GgufScheme& scheme,
                        const std::string& file, const ProgressFn& progress);

}  // namespace rudder::model
