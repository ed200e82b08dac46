#include "rudder/model/loader.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <vector>

#include "rudder/base/log.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/binder.h"
#include "rudder/model/quantisation.h"
#include "rudder/model/tensors.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;
using weights::Checkpoint;

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const Quantisation& quantisation, const ModelSpec& spec,
         const WeightNames& names, ops::Ops& ops, const ProgressFn& progress, const Stage& stage)
      : checkpoint_(checkpoint),
        spec_(spec),
        stage_(stage),
        names_(names),
        ops_(ops),
        rank_(ops::rank_of(ops)),
        progress_(progress),
        binder_(checkpoint, quantisation) {}

  Result<Weights> load() {
    RUDDER_TRY_VOID(check_tensors());
    binder_.log_differences();
    RUDDER_TRY_VOID(load_embedding_and_head());
    const LayerRange layers = layers_of(spec_, stage_);
    for (size_t i = layers.begin; i < layers.end; ++i) {
      if (i + 1 < layers.end) prefetch_layer(i + 1);
      RUDDER_TRY(LayerWeights layer, load_layer(i));
      out_.layers.push_back(std::move(layer));
      checkpoint_.release_pages();  // a layer at a time is in memory twice, and no more
      report();
    }
    if (stage_.is_last()) {
      RUDDER_TRY(out_.final_norm, load_norm(final_norm_tensor(spec_, names_)));
    }
    RUDDER_TRY_VOID(checkpoint_.check_unchanged());
    done_ = checkpoint_.tensor_bytes();  // with what is not read
    report();
    log_what_was_chosen();
    return std::move(out_);
  }

 private:
  // Everything fits, and nothing is left over: before the first byte of it is read.
  Result<void> check_tensors() {
    RUDDER_TRY_VOID(take_tables());
    RUDDER_TRY_VOID(take_norm(final_norm_tensor(spec_, names_)));
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerTensors tensors = layer_tensors(spec_, names_, i, nullptr, rank_);
      for (const NormTensor& norm : tensors.norms) RUDDER_TRY_VOID(take_norm(norm));
      for (const VectorTensor& vector : tensors.vectors) {
        RUDDER_TRY_VOID(binder_.take(vector.name, Shape{vector.count.stored}));
      }
      for (const NumberTensor& number : tensors.numbers) {
        RUDDER_TRY_VOID(binder_.take(number.name, Shape{1}));
      }
      for (const LinearModule& linear : tensors.linears) {
        RUDDER_TRY_VOID(binder_.take_linear(linear));
      }
      for (const ScaleTensor& scale : tensors.scales) RUDDER_TRY_VOID(binder_.take_scale(scale));
    }
    return binder_.check_all_taken(names_);
  }

  struct Tables {
    View embedding;
    BoundLinear head;
  };
  Result<Tables> take_tables() {
    const Shape shape{spec_.vocab, spec_.hidden};
    const LinearModule head = head_module(spec_, names_, rank_);
    const std::string head_name = head.parts.front().name + ".weight";
    Tables out;
    RUDDER_TRY(out.embedding, binder_.take(std::string(names_.embedding), shape));
    if (!spec_.tied_head) {
      RUDDER_TRY(out.head, binder_.take_linear(head));
      return out;
    }
    cut_part({out.embedding, {}, {}}, head, 0, out.head.cuts, out.head.parts);
    if (binder_.has(head_name)) {
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

  Result<void> take_norm(const NormTensor& tensor) {
    for (const NormTensor::Part& part : {tensor.weight, tensor.alpha}) {
      if (!part.name.empty()) RUDDER_TRY_VOID(binder_.take(part.name, Shape{part.count}));
    }
    return {};
  }

  void prefetch_layer(size_t layer) const {
    for (const LinearModule& linear : layer_tensors(spec_, names_, layer).linears) {
      for (const LinearModule::Part& part : linear.parts) binder_.prefetch(part.name + ".weight");
    }
  }

  Result<void> load_embedding_and_head() {
    RUDDER_TRY(const Tables tables, take_tables());
    if (stage_.embeds() && !shares_table(spec_, rank_, stage_)) {
      RUDDER_TRY(out_.embedding, ops_.upload(tables.embedding, table_dtype(ops_.linear_dtype())));
      out_.bytes += static_cast<int64_t>(out_.embedding.bytes());
      if (!spec_.tied_head) done_ += static_cast<int64_t>(tables.embedding.bytes());
    }
    if (stage_.is_last()) {
      RUDDER_TRY(out_.head, add_linear(tables.head));
    }
    checkpoint_.release_pages();
    report();
    return {};
  }

  Result<LayerWeights> load_layer(size_t index) {
    LayerWeights out = empty_weights(spec_.layers[index]);
    const LayerTensors tensors = layer_tensors(spec_, names_, index, &out, rank_);
    for (const NormTensor& norm : tensors.norms) {
      RUDDER_TRY(*norm.target, load_norm(norm));
    }
    for (const VectorTensor& vector : tensors.vectors) {
      RUDDER_TRY(const View stored, binder_.take(vector.name, Shape{vector.count.stored}));
      const ops::Share share = vector.count.share;
      RUDDER_TRY(*vector.target, upload_values(values_of(stored.rows(share.begin, share.count))));
    }
    for (const NumberTensor& number : tensors.numbers) {
      RUDDER_TRY(const View stored, binder_.take(number.name, Shape{1}));
      *number.target = values_of(stored).front();
    }
    for (const LinearModule& linear : tensors.linears) {
      RUDDER_TRY(*linear.target, load_linear(linear));
    }
    for (const ScaleTensor& scale : tensors.scales) {
      RUDDER_TRY(const std::vector<float> values, binder_.take_scale(scale));
      RUDDER_TRY(*scale.target, upload_scales(values));
    }
    return out;
  }

  Result<ops::NormSpec> load_norm(const NormTensor& tensor) {
    ops::NormSpec norm;
    norm.eps = spec_.norm_eps;
    RUDDER_TRY(norm.weight, load_norm_part(tensor.weight, tensor.width, names_.norm_offset));
    if (tensor.alpha.count > 0) {
      RUDDER_TRY(norm.alpha, load_norm_part(tensor.alpha, tensor.width, 0));
    }
    return norm;
  }

  // [width.count()]: ones without a tensor, one number again and again where the tensor has just
  // one.
  Result<View> load_norm_part(const NormTensor::Part& part, const Extent& width, float offset) {
    std::vector<float> values(static_cast<size_t>(width.count()), 1.0f);
    if (!part.name.empty()) {
      RUDDER_TRY(const View stored, binder_.take(part.name, Shape{part.count}));
      values = norm_values(stored, width, offset);
    }
    return upload_values(values);
  }

  Result<View> upload_values(const std::vector<float>& values) {
    const View host{
        const_cast<float*>(values.data()), DType::kF32, {static_cast<int64_t>(values.size())}};
    RUDDER_TRY(const View device, ops_.upload(host, DType::kF32));
    out_.bytes += static_cast<int64_t>(device.bytes());
    return device;
  }

  Result<View> upload_scales(const std::vector<float>& scales) {
    if (scales.empty()) return View{};
    has_kv_scales_ = true;
    return upload_values(scales);
  }

  Result<ops::LinearWeight> load_linear(const LinearModule& module) {
    RUDDER_TRY(const BoundLinear bound, binder_.take_linear(module));
    auto weight = add_linear(bound);
    if (weight) return weight;
    Error error = weight.error();
    if (error.where.empty()) {
      error.where = fmt::format("{}: module '{}'", checkpoint_.name(), module.parts.front().name);
    }
    return tl::unexpected(std::move(error));
  }

  Result<ops::LinearWeight> add_linear(const BoundLinear& bound) {
    RUDDER_TRY(ops::LinearWeight weight, ops_.make_linear(bound.parts));
    narrows_inputs_ = narrows_inputs_ || (bound.wide_inputs && weight.x_dtype == DType::kF8E4M3);
    out_.bytes += weight.bytes;
    for (const ops::LinearPart& part : bound.parts) {
      done_ += static_cast<int64_t>(part.weight.bytes());
    }
    return weight;
  }

  void log_what_was_chosen() const {
    if (narrows_inputs_) {
      log_warn("{}: it quantises its weights alone; this backend quantises what they multiply too",
               checkpoint_.name());
    }
    if (ops_.kv_dtype() != DType::kF8E4M3) return;
    log_info(
        "{}: the fp8 KV cache has {}", checkpoint_.name(),
        has_kv_scales_ ? "the checkpoint's scales" : "no scales: values are stored as they are");
  }

  void report() const {
    if (progress_) progress_(done_, checkpoint_.tensor_bytes());
  }

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  const Stage stage_;
  const WeightNames& names_;
  ops::Ops& ops_;
  const ops::Rank rank_;
  const ProgressFn& progress_;
  Binder binder_;
  int64_t done_ = 0;  // bytes of checkpoint
  bool narrows_inputs_ = false;
  bool has_kv_scales_ = false;
  Weights out_;
};

}  // namespace

Result<ModelSpec> read_spec(const Checkpoint& checkpoint) {
  RUDDER_TRY(const std::string text, checkpoint.read_text("config.json"));
  RUDDER_TRY(const weights::HfConfig config,
             weights::HfConfig::parse(text, checkpoint.name() + "/config.json"));
  RUDDER_TRY_VOID(read_quantisation(checkpoint));  // refused before anything else is asked
  return read_config(config);
}

Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelSpec& spec, ops::Ops& ops,
                             const ProgressFn& progress, const Stage& stage) {
  RUDDER_TRY(const Architecture* architecture, find_architecture(spec.architecture));
  return load_weights(checkpoint, spec, architecture->names, ops, progress, stage);
}

Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelSpec& spec,
                             const WeightNames& names, ops::Ops& ops, const ProgressFn& progress,
                             const Stage& stage) {
  RUDDER_TRY(const Quantisation quantisation, read_quantisation(checkpoint));
  return Loader(checkpoint, quantisation, spec, names, ops, progress, stage).load();
}

WeightBudget budget_weights(const Checkpoint& checkpoint, const ModelSpec& spec,
                            const ops::Ops& ops, ops::Rank rank, const Stage& stage) {
  WeightBudget budget{weight_bytes(spec, ops.linear_dtype(), rank, stage), ops.linear_dtype()};
  const auto architecture = find_architecture(spec.architecture);
  if (!architecture || !ops.keeps_fp8()) return budget;
  int64_t stored_fp8 = 0;
  const auto count = [&](const LinearModule& module) {
    for (const LinearModule::Part& part : module.parts) {
      const weights::TensorInfo* const tensor = checkpoint.find(part.name + ".weight");
      if (tensor == nullptr || tensor->view.dtype != DType::kF8E4M3) continue;
      for (const Extent& rows : part.rows) stored_fp8 += rows.count() * module.in.count();
    }
  };
  if (!spec.tied_head && stage.is_last()) {
    count(head_module(spec, (*architecture)->names, rank));
  }
  const LayerRange layers = layers_of(spec, stage);
  for (size_t i = layers.begin; i < layers.end; ++i) {
    const LayerTensors tensors = layer_tensors(spec, (*architecture)->names, i, nullptr, rank);
    for (const LinearModule& linear : tensors.linears) count(linear);
  }
  if (stored_fp8 == 0) return budget;
  budget.bytes -= stored_fp8 * static_cast<int64_t>(tensor::dtype_bytes(budget.linear_dtype) -
                                                    tensor::dtype_bytes(DType::kF8E4M3));
  budget.linear_dtype = DType::kF8E4M3;
  return budget;
}

}  // namespace rudder::model
