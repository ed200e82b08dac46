#include "rudder/model/quantise_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/base/thread_pool.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/tensor_names.h"
#include "rudder/model/loader.h"
#include "rudder/model/tensors.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::model {
namespace {

namespace json = boost::json;
using tensor::DType;
using weights::TensorInfo;
using weights::TensorShape;

constexpr std::string_view kWeight = ".weight";
constexpr const char* kQuantisationConfig = "quantization_config";
constexpr int kPackedBits = 32;

// A weight in the tensors that stand in its place, in the order of declarations.
struct RoundedTensor {
  std::vector<weights::TensorDecl> decls;
  std::vector<std::vector<std::byte>> data;

  std::vector<std::byte>& add(std::string name, DType dtype, uint64_t rows, uint64_t columns) {
    decls.push_back({std::move(name), dtype, TensorShape::of({rows, columns})});
    return data.emplace_back(rows * columns * tensor::dtype_bytes(dtype));
  }
};

class WeightRounder {
 public:
  WeightRounder(const QuantiseScheme& scheme, const TensorInfo& tensor, const ChannelScales& scales)
      : scheme_(scheme),
        tensor_(tensor),
        scales_(scales),
        view_(tensor.view),
        rows_(static_cast<uint64_t>(view_.shape[0])),
        inputs_(static_cast<uint64_t>(view_.shape[1])),
        group_(scheme.group == 0 ? inputs_ : static_cast<uint64_t>(scheme.group)),
        module_(tensor.name.substr(0, tensor.name.size() - kWeight.size())) {}

  // Empty tensors of the right shapes: what is declared before anything is read.
  RoundedTensor declare() const {
    RoundedTensor out;
    const bool is_packed = scheme_.is_packed();
    if (is_packed) {
      const uint64_t codes_of_word = kPackedBits / static_cast<uint64_t>(scheme_.bits);
      out.add(module_ + ".weight_packed", DType::kI32, rows_,
              (inputs_ + codes_of_word - 1) / codes_of_word);
    } else {
      out.add(module_ + ".weight", scheme_.is_float ? DType::kF8E4M3 : DType::kI8, rows_, inputs_);
    }
    out.add(module_ + ".weight_scale", is_packed ? DType::kBF16 : DType::kF32, rows_,
            inputs_ / group_);
    if (is_packed) {
      const int64_t shape[] = {static_cast<int64_t>(rows_), static_cast<int64_t>(inputs_)};
      out.decls.push_back({module_ + ".weight_shape", DType::kI64, TensorShape::of({2})});
      const auto bytes = std::as_bytes(std::span(shape));
      out.data.emplace_back(bytes.begin(), bytes.end());
    }
    return out;
  }

  RoundedTensor round(ThreadPool& pool) const {
    RoundedTensor out = declare();
    pool.parallel_for(static_cast<int64_t>(rows_),
                      [&](int64_t row) { round_row(static_cast<uint64_t>(row), out); });
    return out;
  }

 private:
  void round_row(uint64_t row, RoundedTensor& out) const {
    std::vector<float> values;
    read_scaled_row(tensor_, static_cast<int64_t>(row), scales_, values);
    for (uint64_t begin = 0; begin < inputs_; begin += group_) {
      const auto group = std::span(values).subspan(begin, group_);
      const float scale = group_scale(group, scheme_);
      store_scale(out.data[1], row * (inputs_ / group_) + begin / group_, scale);
      for (uint64_t k = 0; k < group_; ++k) store_code(out, row, begin + k, group[k] / scale);
    }
  }

  static void store(std::vector<std::byte>& to, uint64_t index, const auto& value) {
    std::memcpy(to.data() + index * sizeof(value), &value, sizeof(value));
  }
  void store_scale(std::vector<std::byte>& to, uint64_t index, float scale) const {
    if (scheme_.is_packed()) return store(to, index, tensor::to_bf16(scale));
    store(to, index, scale);
  }
  // Packed codes are shifted to be 0 or more, and lie in a word from its low bits on
  // (compressed-tensors, pack_to_int32).
  void store_code(RoundedTensor& out, uint64_t row, uint64_t input, float value) const {
    std::vector<std::byte>& to = out.data[0];
    if (scheme_.is_float) return store(to, row * inputs_ + input, tensor::to_f8e4m3(value));
    const int32_t code = integer_code(value, scheme_.bits);
    if (!scheme_.is_packed()) {
      return store(to, row * inputs_ + input, static_cast<int8_t>(code));
    }
    const auto bits = static_cast<uint32_t>(scheme_.bits);
    const uint64_t codes_of_word = kPackedBits / bits;
    const uint64_t words = static_cast<uint64_t>(out.decls[0].shape.dims[1]);
    const uint64_t word = row * words + input / codes_of_word;
    uint32_t packed = 0;
    std::memcpy(&packed, to.data() + word * sizeof(packed), sizeof(packed));
    packed |= (static_cast<uint32_t>(code) + (1U << (bits - 1))) << (input % codes_of_word * bits);
    store(to, word, packed);
  }

  const QuantiseScheme& scheme_;
  const TensorInfo& tensor_;
  const ChannelScales& scales_;
  const tensor::View view_;
  const uint64_t rows_;
  const uint64_t inputs_;
  const uint64_t group_;
  const std::string module_;
};

// Of the products of all layers.
Result<std::set<std::string>> layer_weights(const weights::Checkpoint& checkpoint) {
  RUDDER_TRY(const ModelSpec spec, read_spec(checkpoint));
  RUDDER_TRY_VOID(check_tensors(checkpoint, spec));
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  const WeightNames names = names_in(architecture->names, checkpoint);
  std::set<std::string> found;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    for (const LinearModule& linear : layer_tensors(spec, names, i).linears) {
      for (const LinearModule::Part& part : linear.parts) {
        found.insert(part.weight_name());
      }
    }
  }
  return found;
}

Result<void> check_weight(const TensorInfo& tensor, const QuantiseScheme& scheme) {
  const DType dtype = tensor.view.dtype;
  const bool is_wide = dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  if (tensor.packed || !is_wide || tensor.view.shape.rank() != 2) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("is {} {}; a matrix of F32, F16 or BF16 is quantised",
                            tensor.packed ? "packed" : tensor::dtype_name(dtype),
                            tensor.view.shape.to_string()),
                fmt::format("tensor '{}'", tensor.name));
  }
  const int64_t unit = std::max<int64_t>(scheme.group, kPackedBits / scheme.bits);
  if (tensor.view.shape[1] % unit == 0) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("has {} inputs, no multiple of {}", tensor.view.shape[1], unit),
              fmt::format("tensor '{}'", tensor.name));
}

json::object scheme_json(const QuantiseScheme& scheme) {
  const auto side = [&](bool is_input) {
    json::object out = {{"num_bits", scheme.bits},
                        {"type", scheme.is_float ? "float" : "int"},
                        {"symmetric", true},
                        {"dynamic", is_input},
                        {"observer_kwargs", json::object()}};
    const bool in_groups = !is_input && scheme.group > 0;
    out["strategy"] = is_input ? "token" : in_groups ? "group" : "channel";
    out["group_size"] = in_groups ? json::value(scheme.group) : json::value(nullptr);
    return out;
  };
  json::object group = {{"targets", {"Linear"}}, {"weights", side(false)}};
  group["input_activations"] =
      scheme.quantises_inputs ? json::value(side(true)) : json::value(nullptr);
  group["output_activations"] = nullptr;
  return {{"quant_method", "compressed-tensors"},
          {"format", scheme.format},
          {"quantization_status", "compressed"},
          {"global_compression_ratio", nullptr},
          {"kv_cache_scheme", nullptr},
          {"ignore", {"lm_head"}},
          {"config_groups", {{"group_0", std::move(group)}}}};
}

Result<std::string> quantised_config(const weights::Checkpoint& checkpoint,
                                     const QuantiseScheme& scheme) {
  RUDDER_TRY(const std::string text, checkpoint.read_text("config.json"));
  RUDDER_TRY(json::value config, parse_json(text, "config.json"));
  json::object* const object = config.if_object();
  if (object == nullptr) return fail(ErrorCode::kCorruptFile, "is no object", "config.json");
  if (object->contains(kQuantisationConfig)) {
    return fail(ErrorCode::kUnsupported, "the checkpoint is quantised already",
                fmt::format("config.json: {}", kQuantisationConfig));
  }
  (*object)[kQuantisationConfig] = scheme_json(scheme);
  return to_json_text(*object) + "\n";
}

Result<void> copy_small_files(const weights::Checkpoint& checkpoint, const std::string& folder) {
  constexpr std::string_view kFiles[] = {"tokenizer.json",
                                         "tokenizer_config.json",
                                         "generation_config.json",
                                         "tokenizer.model",
                                         "vocab.json",
                                         "merges.txt",
                                         "added_tokens.json",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "special_tokens_map.json"};
  for (const std::string_view file : kFiles) {
    if (!checkpoint.has_file(file)) continue;
    RUDDER_TRY(const std::string text, checkpoint.read_text(file));
    RUDDER_TRY_VOID(
        weights::write_file_atomically(fmt::format("{}/{}", folder, file), text, false));
  }
  return {};
}

weights::TensorDecl copied(const TensorInfo& tensor) {
  TensorShape shape;
  shape.rank = static_cast<uint8_t>(tensor.view.shape.rank());
  for (size_t i = 0; i < shape.rank; ++i) {
    shape.dims[i] = static_cast<uint64_t>(tensor.view.shape[static_cast<int>(i)]);
  }
  return {tensor.name, tensor.view.dtype, shape};
}

// The bytes of a norm's weight or a bias that its scales change.
std::vector<std::byte> scaled_vector(const TensorInfo& tensor, const ChannelScales& scales) {
  std::vector<float> values;
  read_scaled_row(tensor, 0, scales, values);
  std::vector<std::byte> out(tensor.view.bytes());
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.view.dtype == DType::kF32) {
      reinterpret_cast<float*>(out.data())[i] = values[i];
    } else if (tensor.view.dtype == DType::kF16) {
      reinterpret_cast<tensor::F16*>(out.data())[i] = tensor::to_f16(values[i]);
    } else {
      reinterpret_cast<tensor::BF16*>(out.data())[i] = tensor::to_bf16(values[i]);
    }
  }
  return out;
}

}  // namespace

const QuantiseScheme* find_scheme(std::string_view name) {
  const auto found = std::ranges::find(kQuantiseSchemes, name, &QuantiseScheme::name);
  return found == kQuantiseSchemes.end() ? nullptr : &*found;
}

Result<void> quantise_checkpoint(const weights::Checkpoint& checkpoint,
                                 const QuantiseScheme& scheme, const std::string& folder,
                                 const ProgressFn& progress, const ChannelScales& scales) {
  RUDDER_TRY(const std::string config, quantised_config(checkpoint, scheme));
  RUDDER_TRY(const std::set<std::string> products, layer_weights(checkpoint));
  std::vector<weights::TensorDecl> decls;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (!products.contains(tensor.name)) {
      if (tensor.packed) RUDDER_TRY_VOID(check_weight(tensor, scheme));
      decls.push_back(copied(tensor));
      continue;
    }
    RUDDER_TRY_VOID(check_weight(tensor, scheme));
    const std::vector<weights::TensorDecl> rounded =
        WeightRounder(scheme, tensor, scales).declare().decls;
    decls.insert(decls.end(), rounded.begin(), rounded.end());
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorCode::kIo, "cannot create it: " + error.message(), folder);
  if (std::filesystem::exists(folder + "/config.json", error)) {
    return fail(ErrorCode::kInvalidArgument, "it holds a model already", folder);
  }
  RUDDER_TRY(const auto writer, weights::SafetensorsWriter::create(folder + "/model.safetensors",
                                                                   decls, {{"format", "pt"}}));
  ThreadPool pool(0);
  size_t index = 0;
  int64_t done = 0;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.view.data),
                                           tensor.view.bytes());
    if (products.contains(tensor.name)) {
      for (const auto& data : WeightRounder(scheme, tensor, scales).round(pool).data) {
        RUDDER_TRY_VOID(writer->write(index++, 0, data));
      }
    } else if (scales.contains(tensor.name)) {
      RUDDER_TRY_VOID(writer->write(index++, 0, scaled_vector(tensor, scales)));
    } else {
      RUDDER_TRY_VOID(writer->write(index++, 0, bytes));
    }
    checkpoint.release_pages();
    progress(done += static_cast<int64_t>(bytes.size()), checkpoint.tensor_bytes());
  }
  RUDDER_TRY_VOID(checkpoint.check_unchanged());
  RUDDER_TRY_VOID(writer->finish(false));
  RUDDER_TRY_VOID(copy_small_files(checkpoint, folder));
  return weights::write_file_atomically(folder + "/config.json", config, false);
}

}  // namespace rudder::model
