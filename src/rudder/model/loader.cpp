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

// Finds tensors of a checkpoint by name, checks their shape and type, and knows what is left.
class Binder {
 public:
  explicit Binder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

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
    taken_.insert(name);
    return tensor->view;
  }

  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }

  void prefetch(const std::string& name) const {
    if (const TensorInfo* tensor = checkpoint_.find(name)) checkpoint_.prefetch(*tensor);
  }

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
        progress_(progress),
        binder_(checkpoint) {}

  Result<Weights> load() {
    RUDDER_TRY_VOID(check_tensors());
    RUDDER_TRY_VOID(load_embedding_and_head());
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      prefetch_layer(i + 1);
      RUDDER_TRY(LayerWeights layer, load_layer(i));
      out_.layers.push_back(std::move(layer));
      report();
    }
    RUDDER_TRY(out_.final_norm, load_norm(final_norm()));
    RUDDER_TRY_VOID(checkpoint_.check_unchanged());
    done_ = checkpoint_.tensor_bytes();  // with what is not read
    report();
    return std::move(out_);
  }

 private:
  NormModule final_norm() const { return {std::string(names_.final_norm), spec_.hidden}; }

  // Everything fits, and nothing is left over: before the first byte of it is read.
  Result<void> check_tensors() {
    RUDDER_TRY_VOID(take_tables());
    RUDDER_TRY_VOID(take_norm(final_norm()));
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerModules modules = layer_modules(spec_, names_, i);
      for (const NormModule* norm : modules.norms()) {
        if (!norm->name.empty()) RUDDER_TRY_VOID(take_norm(*norm));
      }
      for (const LinearModule* linear : modules.linears()) RUDDER_TRY_VOID(take_linear(*linear));
    }
    return binder_.check_all_taken(names_);
  }

  struct Tables {
    View embedding;
    View head;
  };
  Result<Tables> take_tables() {
    const Shape shape{spec_.vocab, spec_.hidden};
    const std::string head_name(names_.head);
    Tables out;
    RUDDER_TRY(out.embedding, binder_.take(std::string(names_.embedding), shape));
    out.head = out.embedding;
    if (!spec_.tied_head) {
      RUDDER_TRY(out.head, binder_.take(head_name, shape));
    } else if (binder_.has(head_name)) {
      // Older exporters write the tied head too; a different one contradicts the config.
      RUDDER_TRY(const View copy, binder_.take(head_name, shape));
      if (copy.dtype != out.embedding.dtype ||
          std::memcmp(copy.data, out.embedding.data, copy.bytes()) != 0) {
        return fail(ErrorCode::kCorruptFile,
                    "the config ties the head to the embedding, this tensor differs from it",
                    fmt::format("{}: tensor '{}'", checkpoint_.name(), head_name));
      }
    }
    return out;
  }

  Result<View> take_norm(const NormModule& module) {
    return binder_.take(module.name, Shape{module.width});
  }

  Result<std::vector<ops::LinearPart>> take_linear(const LinearModule& module) {
    std::vector<ops::LinearPart> parts;
    for (const LinearModule::Part& stored : module.parts) {
      ops::LinearPart part;
      RUDDER_TRY(part.weight, binder_.take(stored.name + ".weight", Shape{stored.rows, module.in}));
      if (module.bias) {
        RUDDER_TRY(part.bias, binder_.take(stored.name + ".bias", Shape{stored.rows}));
      }
      parts.push_back(part);
    }
    return parts;
  }

  void prefetch_layer(size_t layer) const {
    if (layer >= spec_.layers.size()) return;
    const LayerModules modules = layer_modules(spec_, names_, layer);
    for (const LinearModule* linear : modules.linears()) {
      for (const LinearModule::Part& part : linear->parts) binder_.prefetch(part.name + ".weight");
    }
  }

  Result<void> load_embedding_and_head() {
    RUDDER_TRY(const Tables tables, take_tables());
    if (!spec_.tied_head) {
      RUDDER_TRY(out_.embedding, ops_.upload(tables.embedding, table_dtype(ops_.linear_dtype())));
      out_.bytes += static_cast<int64_t>(out_.embedding.bytes());
      done_ += static_cast<int64_t>(tables.embedding.bytes());
    }
    RUDDER_TRY(out_.head, add_linear({{tables.head, {}}}));
    report();
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
    RUDDER_TRY(const View stored, take_norm(module));
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
    RUDDER_TRY(const std::vector<ops::LinearPart> parts, take_linear(module));
    return add_linear(parts);
  }

  Result<ops::LinearWeight> add_linear(const std::vector<ops::LinearPart>& parts) {
    RUDDER_TRY(ops::LinearWeight weight, ops_.make_linear(parts));
    out_.bytes += weight.bytes;
    for (const ops::LinearPart& part : parts) done_ += static_cast<int64_t>(part.weight.bytes());
    return weight;
  }

  void report() const {
    if (progress_) progress_(done_, checkpoint_.tensor_bytes());
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  const WeightNames& names_;
  ops::Ops& ops_;
  const ProgressFn& progress_;
  Binder binder_;
  int64_t done_ = 0;  // bytes of checkpoint
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
