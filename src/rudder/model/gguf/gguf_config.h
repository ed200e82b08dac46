// The config.json of a GGUF file: its metadata said with the keys of transformers, so that the
// architectures of archs/ read one kind of config. Load time, one thread.
#pragma once

#include <span>
#include <string>

#include "rudder/base/result.h"
#include "rudder/model/gguf/gguf_names.h"
#include "rudder/weights/gguf.h"

namespace rudder::model {

struct GgufSource {
  const weights::GgufFile& metadata;
  std::span<const weights::GgufTensor* const> tensors;  // of all files

  const weights::GgufTensor* find(std::string_view name) const;  // null without one
};

// The text of a config.json. Where writers of GGUF leave out what other readers know by heart
// (the attention scale of the larger Gemmas, Gemma 3's second rope), it is what llama.cpp has.
// Divisors of rope frequencies that are a tensor ("rope_freqs") become a rope of type longrope with
// these factors and no other change. Errors name the file and the key: one that is missing,
// ill-typed or contradicts another, and one below the architecture's name whose mathematics is not
// served.
Result<std::string> gguf_config(const GgufSource& source, const GgufArchitecture& architecture);

// Layers of the model; those behind them guess further tokens ("nextn_predict_layers").
Result<int64_t> gguf_num_layers(const weights::GgufFile& metadata);

// Rows of q and of k in a head, for the order of ropes that turn neighbours.
Result<int64_t> gguf_head_dim(const weights::GgufFile& metadata);

}  // namespace rudder::model
