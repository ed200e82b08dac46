#include "rudder/model/loader.h"

#include <fmt/format.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/modules.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;
using weights::Checkpoint;
using weights::TensorInfo;

// Tensors that some exporters write and that hold nothing the config does not say.
constexpr std::string_view kIgnoredSuffixes[] = {".rotary_emb.inv_freq"};

std::string where(const TensorInfo& tensor) {
  return fmt::format("{}: tensor '{}'", tensor.file, tensor.name);
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// The embedding table is as precise as the products are, but never below bf16.
DType table_dtype(DType linear_dtype) {
  return linear_dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
}

// Takes tensors out of a checkpoint by name, checks their shape and type, and knows what is left.
class Binder {
 public:
  Binder(const Checkpoint& checkpoint, const ProgressFn& progress)
      : checkpoint_(checkpoint), progress_(progress), total_(checkpoint.tensor_bytes()) {}

  Result<View> take(const std::string& name, const Shape& shape) {
    const TensorInfo* tensor = checkpoint_.find(name);
    if (tensor == nullptr) {
      return fail(ErrorCode::kCorruptFile, fmt::format("the tensor '{}' is missing", name),
                  checkpoint_.name());
    }
    if (!is_float(tensor->view.dtype)) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("weights of type {} are not supported",
                              tensor::dtype_name(tensor->view.dtype)),
                  where(*tensor));
    }
    if (tensor->view.shape != shape) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("its shape is {}, the config asks for {}",
                              tensor->view.shape.to_string(), shape.to_string()),
                  where(*tensor));
    }
    if (taken_.insert(name).second) done_ += static_cast<int64_t>(tensor->view.bytes());
    checkpoint_.prefetch(*tensor);
    return tensor->view;
  }

  void report() {
    if (progress_) progress_(done_, total_);
  }

  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }

  // Every tensor was taken or is known to mean nothing.
  Result<void> check_all_taken(const WeightNames& names) const {
    std::string left;
    std::string file;
    int count = 0;
    for (const TensorInfo& tensor : checkpoint_.tensors()) {
      if (taken_.contains(tensor.name) || is_ignored(tensor.name, names)) continue;
      if (file.empty()) file = tensor.file;
      if (++count <= 5) left += fmt::format("{}'{}'", left.empty() ? "" : ", ", tensor.name);
    }
    if (count == 0) return {};
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} tensors have no place in this architecture: {}{}", count, left,
                            count > 5 ? ", ..." : ""),
                file);
  }

 private:
  static bool is_ignored(std::string_view name, const WeightNames& names) {
    for (const std::string_view suffix : kIgnoredSuffixes) {
      if (name.ends_with(suffix)) return true;
    }
    for (const std::string_view prefix : names.ignored_prefixes) {
      if (name.starts_with(prefix)) return true;
    }
    return false;
  }

  const Checkpoint& checkpoint_;
  const ProgressFn& progress_;
  int64_t total_ = 0;
  int64_t done_ = 0;
  std::set<std::string, std::less<>> taken_;
};

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelSpec& spec, const WeightNames& names,
         ops::Ops& ops, const ProgressFn& progress)
      : checkpoint_(checkpoint),
        spec_(spec),
        names_(names),
        ops_(ops),
        binder_(checkpoint, progress) {}

  Result<Weights> load() {
    RUDDER_TRY_VOID(load_embedding_and_head());
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      RUDDER_TRY(LayerWeights layer, load_layer(i));
      out_.layers.push_back(std::move(layer));
      binder_.report();
    }
    RUDDER_TRY(out_.final_norm, load_norm({std::string(names_.final_norm), spec_.hidden}));
    RUDDER_TRY_VOID(binder_.check_all_taken(names_));
    RUDDER_TRY_VOID(checkpoint_.check_unchanged());
    binder_.report();
    return std::move(out_);
  }

 private:
  Result<void> load_embedding_and_head() {
    const Shape shape{spec_.vocab, spec_.hidden};
    RUDDER_TRY(const View embedding, binder_.take(std::string(names_.embedding), shape));
    const std::string head_name(names_.head);
    View head = embedding;
    if (!spec_.tied_head) {
      RUDDER_TRY(head, binder_.take(head_name, shape));
      RUDDER_TRY(out_.embedding, ops_.upload(embedding, table_dtype(ops_.linear_dtype())));
      out_.bytes += static_cast<int64_t>(out_.embedding.bytes());
    } else if (binder_.has(head_name)) {
      // Older exporters write the tied head too; a different one contradicts the config.
      RUDDER_TRY(const View copy, binder_.take(head_name, shape));
      if (copy.dtype != embedding.dtype ||
          std::memcmp(copy.data, embedding.data, embedding.bytes()) != 0) {
        return fail(ErrorCode::kCorruptFile,
                    "the config ties the head to the embedding, this tensor differs from it",
                    fmt::format("{}: tensor '{}'", checkpoint_.name(), head_name));
      }
    }
    RUDDER_TRY(out_.head, add_linear({{head, {}}}));
    binder_.report();
    return {};
  }

  Result<LayerWeights> load_layer(size_t index) {
    const LayerModules modules = layer_modules(spec_, names_, index);
    LayerWeights out;
    RUDDER_TRY(out.attn_pre_norm, load_norm(modules.attn_pre_norm));
    RUDDER_TRY(out.attn_post_norm, load_norm(modules.attn_post_norm));
    RUDDER_TRY(out.mlp_pre_norm, load_norm(modules.mlp_pre_norm));
    RUDDER_TRY(out.mlp_post_norm, load_norm(modules.mlp_post_norm));
    RUDDER_TRY(out.q_norm, load_norm(modules.q_norm));
    RUDDER_TRY(out.k_norm, load_norm(modules.k_norm));
    RUDDER_TRY(out.qkv, load_linear(modules.qkv));
    RUDDER_TRY(out.attn_out, load_linear(modules.attn_out));
    RUDDER_TRY(out.gate_up, load_linear(modules.gate_up));
    RUDDER_TRY(out.down, load_linear(modules.down));
    return out;
  }

  Result<ops::NormSpec> load_norm(const NormModule& module) {
    if (module.name.empty()) return ops::NormSpec{};
    RUDDER_TRY(const View stored, binder_.take(module.name, Shape{module.width}));
    std::vector<float> values(static_cast<size_t>(module.width));
    for (size_t i = 0; i < values.size(); ++i) {
      float value = 0;
      switch (stored.dtype) {
        case DType::kBF16:
          value = tensor::to_float(stored.as<tensor::BF16>()[i]);
          break;
        case DType::kF16:
          value = tensor::to_float(stored.as<tensor::F16>()[i]);
          break;
        default:
          value = stored.as<float>()[i];
      }
      values[i] = value + names_.norm_offset;
    }
    ops::NormSpec norm;
    norm.eps = spec_.norm_eps;
    RUDDER_TRY(norm.weight, ops_.upload({values.data(), DType::kF32, stored.shape}, DType::kF32));
    out_.bytes += static_cast<int64_t>(norm.weight.bytes());
    return norm;
  }

  Result<ops::LinearWeight> load_linear(const LinearModule& module) {
    std::vector<ops::LinearPart> parts;
    for (const LinearModule::Part& stored : module.parts) {
      ops::LinearPart part;
      RUDDER_TRY(part.weight, binder_.take(stored.name + ".weight", Shape{stored.rows, module.in}));
      if (module.bias) {
        RUDDER_TRY(part.bias, binder_.take(stored.name + ".bias", Shape{stored.rows}));
      }
      parts.push_back(part);
    }
    return add_linear(parts);
  }

  Result<ops::LinearWeight> add_linear(const std::vector<ops::LinearPart>& parts) {
    RUDDER_TRY(ops::LinearWeight weight, ops_.make_linear(parts));
    out_.bytes += weight.bytes;
    return weight;
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  const WeightNames& names_;
  ops::Ops& ops_;
  Binder binder_;
  Weights out_;
};

}  // namespace

Result<ModelSpec> read_spec(const Checkpoint& checkpoint) {
  RUDDER_TRY(const std::string text, checkpoint.read_text("config.json"));
  RUDDER_TRY(const weights::HfConfig config,
             weights::HfConfig::parse(text, checkpoint.name() + "/config.json"));
  RUDDER_TRY(const std::vector<std::string> names, config.strings("architectures"));
  if (names.size() != 1) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("'architectures' names {} architectures, not one", names.size()),
                config.where("architectures"));
  }
  auto architecture = find_architecture(names[0]);
  if (!architecture) {
    Error error = architecture.error();
    error.where = config.where("architectures");
    return tl::unexpected(std::move(error));
  }
  RUDDER_TRY(ModelSpec spec, (*architecture)->read_spec(config));
  spec.architecture = names[0];
  return spec;
}

Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelSpec& spec, ops::Ops& ops,
                             const ProgressFn& progress) {
  RUDDER_TRY(const Architecture* architecture, find_architecture(spec.architecture));
  return Loader(checkpoint, spec, architecture->names, ops, progress).load();
}

int64_t weight_bytes(const ModelSpec& spec, DType linear_dtype) {
  const int64_t hidden = spec.hidden;
  int64_t linear = int64_t{spec.vocab} * hidden;  // the head
  int64_t plain = hidden;                         // norms and biases, f32
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention;
    const int64_t q = int64_t{a.num_heads} * a.head_dim;
    const int64_t kv = int64_t{a.num_kv_heads} * a.head_dim;
    const int64_t width = layer.mlp.width;
    linear += hidden * (q + 2 * kv) + q * hidden + 3 * hidden * width;
    plain += 2 * hidden * (int{layer.pre_norm} + int{layer.post_norm});
    if (a.qk_norm == QkNorm::kPerHead) plain += 2 * a.head_dim;
    if (a.qk_norm == QkNorm::kAllHeads) plain += q + kv;
    if (a.qkv_bias) plain += q + 2 * kv;
    if (a.out_bias) plain += hidden;
    if (layer.mlp.bias) plain += 2 * width + hidden;
  }
  const int64_t table_rows = spec.tied_head ? 0 : spec.vocab;
  return linear * static_cast<int64_t>(tensor::dtype_bytes(linear_dtype)) +
         table_rows * hidden *
             static_cast<int64_t>(tensor::dtype_bytes(table_dtype(linear_dtype))) +
         plain * static_cast<int64_t>(tensor::dtype_bytes(DType::kF32));
}

}  // namespace rudder::model
