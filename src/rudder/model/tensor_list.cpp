#include "rudder/model/tensor_list.h"

#include <algorithm>
#include <cmath>

#include "rudder/base/philox.h"
#include "rudder/model/make_model.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

using weights::TensorShape;

constexpr double kWeightSpread = 0.02;  // standard deviation
constexpr double kBiasSpread = kWeightSpread / 64;
constexpr double kNormSpread = 0.1;
constexpr double kGateSigma = 1.35;
constexpr double kGateSigmaSpread = 0.05;

// Solves erfc(-z / sqrt 2) / 2 = p by bisection: 65536 points, once.
double normal_quantile(double p) {
  double low = -6;
  double high = 6;
  for (int i = 0; i < 50; ++i) {
    const double mid = (low + high) / 2;
    (std::erfc(-mid / std::sqrt(2.0)) / 2 < p ? low : high) = mid;
  }
  return (low + high) / 2;
}

constexpr std::string_view kGenerationConfig =
    "{\"bos_token_id\": 0, \"do_sample\": false, \"eos_token_id\": 2, \"pad_token_id\": 0}\n";
constexpr std::string_view kTokenizerConfig =
    R"({"add_bos_token": false, "add_prefix_space": false, "bos_token": null,
"chat_template": "{%- for message in messages -%}\n{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n{{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}\n",
"clean_up_tokenization_spaces": false, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": null}
)";

}  // namespace

ValueTables::ValueTables(double norm_centre) {
  for (size_t i = 0; i < weight.size(); ++i) {
    const double z = normal_quantile((static_cast<double>(i) + 0.5) / 65536);
    weight[i] = tensor::to_bf16(static_cast<float>(kWeightSpread * z));
    bias[i] = tensor::to_bf16(static_cast<float>(kBiasSpread * z));
    gain[i] = tensor::to_bf16(static_cast<float>(norm_centre + kNormSpread * z));
    gate_sigma[i] = tensor::to_bf16(static_cast<float>(kGateSigma + kGateSigmaSpread * z));
  }
}

const ValueTable& ValueTables::of(ValueKind kind) const {
  if (kind == ValueKind::kWeight) return weight;
  if (kind == ValueKind::kBias) return bias;
  return kind == ValueKind::kGain ? gain : gate_sigma;
}

TensorList::TensorList(const ModelSpec& spec, const WeightNames& names) {
  const auto vocab = static_cast<uint64_t>(spec.vocab);
  const auto hidden = static_cast<uint64_t>(spec.hidden);
  add(std::string(names.embedding), TensorShape::of({vocab, hidden}), ValueKind::kWeight);
  add_tensors(model_tensors(spec, names));
  for (size_t i = 0; i < spec.layers.size(); ++i) add_tensors(layer_tensors(spec, names, i));
  for (const NormTensor& norm : final_norm_tensors(spec, names)) add_norm(norm);
  if (!spec.tied_head) {
    add(std::string(names.head) + ".weight", TensorShape::of({vocab, hidden}), ValueKind::kWeight);
  }
}

void TensorList::add_tensors(const LayerTensors& tensors) {
  for (const TableTensor& table : tensors.tables) {
    add(table.name,
        TensorShape::of({static_cast<uint64_t>(table.rows), static_cast<uint64_t>(table.width)}),
        ValueKind::kWeight);
  }
  for (const NormTensor& norm : tensors.norms) add_norm(norm);
  for (const VectorTensor& vector : tensors.vectors) {
    const auto columns = static_cast<uint64_t>(vector.count.stored);
    const auto rows = static_cast<uint64_t>(vector.rows);
    add(vector.name,
        vector.is_of_heads ? TensorShape::of({1, 1, columns, 1})
        : rows == 0        ? TensorShape::of({columns})
                           : TensorShape::of({rows, columns}),
        vector.kind);
  }
  for (const FilterTensor& filter : tensors.filters) {
    for (size_t i = 0; i < filter.names.size(); ++i) {
      const auto channels = static_cast<uint64_t>(filter.stored(i)[0]);
      add(filter.names[i],
          filter.is_flat ? TensorShape::of({channels})
                         : TensorShape::of({channels, 1, static_cast<uint64_t>(filter.length)}),
          ValueKind::kWeight);
    }
  }
  for (const NumberTensor& number : tensors.numbers) {
    add(number.name, TensorShape::of({1}), ValueKind::kGain);
  }
  for (const LinearModule& linear : tensors.linears) add(linear);
}

void TensorList::add(const LinearModule& linear) {
  for (size_t p = 0; p < linear.parts.size(); ++p) {
    const LinearModule::Part& part = linear.parts[p];
    if (linear.first_of(p) != p) continue;
    const auto rows = static_cast<uint64_t>(part.stored_rows());
    const auto in = static_cast<uint64_t>(linear.in.stored);
    const auto experts = static_cast<uint64_t>(part.stack.experts);
    const uint64_t all_rows = rows * static_cast<uint64_t>(part.stack.parts);
    const bool in_turn = part.stack.form == StackForm::kInTurn;
    add(part.weight_name(),
        !part.is_stacked() ? TensorShape::of({rows, in})
        : in_turn          ? TensorShape::of({experts, in, all_rows})
                           : TensorShape::of({experts, all_rows, in}),
        ValueKind::kWeight);
    if (!linear.bias) continue;
    add(part.bias_name(),
        part.is_stacked() ? TensorShape::of({experts, all_rows}) : TensorShape::of({rows}),
        ValueKind::kBias);
  }
}

std::vector<std::pair<size_t, size_t>> TensorList::shards(int64_t max_bytes) const {
  std::vector<std::pair<size_t, size_t>> out;
  int64_t bytes = max_bytes;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    bytes += 2 * tensors_[i].values;
    if (out.empty() || bytes > max_bytes) {
      out.emplace_back(i, i);
      bytes = 2 * tensors_[i].values;
    }
    out.back().second = i + 1;
  }
  return out;
}

void TensorList::add_norm(const NormTensor& norm) {
  for (const NormTensor::Part& part : {norm.weight, norm.alpha}) {
    if (part.name.empty()) continue;
    add(part.name, TensorShape::of({static_cast<uint64_t>(part.count)}), ValueKind::kGain);
  }
}

void TensorList::add(std::string name, const TensorShape& shape, ValueKind kind) {
  uint64_t values = 0;
  weights::checked_tensor_bytes(shape, 1, values);
  tensors_.push_back({{std::move(name), tensor::DType::kBF16, shape},
                      kind,
                      static_cast<int64_t>(values),
                      tensors_.size()});
  total_bytes_ += 2 * static_cast<int64_t>(values);
}

void fill_values(std::span<tensor::BF16> out, const ValueTable& table, uint64_t seed,
                 uint64_t tensor, int64_t begin) {
  for (size_t i = 0; i < out.size(); i += 8) {
    const PhiloxBlock block = philox4x32(seed, (static_cast<uint64_t>(begin) + i) / 8, tensor);
    for (size_t j = 0; j < std::min<size_t>(8, out.size() - i); ++j) {
      out[i + j] = table[(block[j / 2] >> (16 * (j % 2))) & 0xFFFF];
    }
  }
}

std::vector<ModelText> model_texts(const std::string& config_text, int32_t vocab,
                                   TokenizerKind tokenizer) {
  return {{"tokenizer.json", make_tokenizer_json(vocab, tokenizer)},
          {"tokenizer_config.json", std::string(kTokenizerConfig)},
          {"generation_config.json", std::string(kGenerationConfig)},
          {"config.json", config_text}};
}

}  // namespace rudder::model
