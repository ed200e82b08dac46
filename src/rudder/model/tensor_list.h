// What a random model is made of: its tensors, the distributions of their values, and its small
// files. Used by make_model.h, which writes them, and dummy_checkpoint.h, which only pretends to.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/make_model.h"
#include "rudder/model/spec.h"
#include "rudder/model/tensors.h"
#include "rudder/tensor/dtype.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::model {

struct ListedTensor {
  weights::TensorDecl decl;             // bf16
  ValueKind kind = ValueKind::kWeight;  // kGain: around 1 less the norms' offset
  int64_t values = 0;
  uint64_t number = 0;  // in the model: part of the random counter
};

// Every tensor that the loader will ask for, in the order of the forward pass.
class TensorList {
 public:
  TensorList(const ModelSpec& spec, const WeightNames& names);
  void add(const LinearModule& linear);

  const std::vector<ListedTensor>& tensors() const { return tensors_; }
  int64_t total_bytes() const { return total_bytes_; }
  // Ranges of tensors whose bytes stay within the limit, one tensor at least.
  std::vector<std::pair<size_t, size_t>> shards(int64_t max_bytes) const;

 private:
  void add_tensors(const LayerTensors& tensors);
  void add_norm(const NormTensor& norm);
  void add(std::string name, const weights::TensorShape& shape, ValueKind kind);

  std::vector<ListedTensor> tensors_;
  int64_t total_bytes_ = 0;
};

// bf16 values of a normal distribution at 65536 equally likely points: 16 random bits pick one.
using ValueTable = std::vector<tensor::BF16>;

// Spread as a trained model's are.
struct ValueTables {
  ValueTable weight = ValueTable(65536);
  ValueTable gain = ValueTable(65536);
  ValueTable gate_sigma = ValueTable(65536);
  ValueTable bias = ValueTable(65536);

  explicit ValueTables(double norm_centre);
  const ValueTable& of(ValueKind kind) const;
};

// The values of a tensor from `begin` on; `begin` is a multiple of 8.
void fill_values(std::span<tensor::BF16> out, const ValueTable& table, uint64_t seed,
                 uint64_t tensor, int64_t begin);

// The small files of a model: config, generation config, tokenizer.
struct ModelText {
  std::string name;
  std::string text;
};
// config.json last: a folder that has one is whole.
std::vector<ModelText> model_texts(const std::string& config_text, int32_t vocab,
                                   TokenizerKind tokenizer = TokenizerKind::kByteLevel);

}  // namespace rudder::model
