// Writes a checkpoint with random weights in the shape of a published model, for benches on
// machines that can download none. It has bf16 weights spread as trained ones are, config.json,
// generation_config.json, and a BPE tokenizer that can decode each of its ids. `rudder make-model`
// and tests call it, on one thread; it works on every core. The same shape and seed give the same
// bytes, whatever the number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"

namespace rudder::model {

enum class TokenizerKind : uint8_t {
  kByteLevel,     // GPT-2's: a token is a string of bytes
  kByteFallback,  // Llama 2's: characters, and a token a byte ("<0x0A>") for what they cannot spell
};

struct MakeModelArgs {
  std::string like;    // one of make_model_names() or make_assistant_names()
  std::string folder;  // is created; may not hold a model yet
  uint64_t seed = 0;
  int32_t num_layers = 0;  // 0: as published; else only so many layers, of a model
  TokenizerKind tokenizer = TokenizerKind::kByteLevel;
  int64_t max_shard_bytes = 5'000'000'000;
  int num_threads = 0;  // 0: every core
};

// "qwen2.5-0.5b", ...
std::vector<std::string_view> make_model_names();
// Of layers that guess for one of them (assistant.h): "gemma-4-31b-assistant".
std::vector<std::string_view> make_assistant_names();

// Progress is in bytes. config.json is written last: a folder that has one is whole.
Result<void> make_model(const MakeModelArgs& args, const ProgressFn& progress);

// config.json of one of the names; `num_layers` as in MakeModelArgs.
Result<std::string> make_model_config(std::string_view name, int32_t num_layers = 0);
Result<std::string> make_assistant_config(std::string_view name);

// tokenizer.json with `vocab` ids: three special tokens, the bytes, with byte fallback the
// printable characters, then merges of letters.
std::string make_tokenizer_json(int32_t vocab, TokenizerKind kind = TokenizerKind::kByteLevel);

}  // namespace rudder::model
