#include "rudder/model/loader.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/log.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/tensor_names.h"
#include "rudder/model/binder.h"
#include "rudder/model/check_facets.h"
#include "rudder/model/host_table.h"
#include "rudder/model/quantised/low_bits.h"
#include "rudder/model/quantised/quantisation.h"
#include "rudder/model/quantised/stored_blocks.h"
#include "rudder/model/stage.h"
#include "rudder/model/tensors.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;
using weights::Checkpoint;

// The tensors of a checkpoint as those of a spec.
struct StoredModel {
  struct Tables {
    View embedding;
    BoundLinear head;
    bool keeps_head = false;  // it is the table as it is stored, whose rows nobody looks up
  };

  // Everything fits, and nothing is left over: before the first byte of it is read.
  Result<void> check() {
    RUDDER_TRY_VOID(take_tables());
    for (const NormTensor& norm : final_norm_tensors(spec, names)) RUDDER_TRY_VOID(take_norm(norm));
    RUDDER_TRY_VOID(take_tensors(model_tensors(spec, names)));
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      RUDDER_TRY_VOID(take_tensors(layer_tensors(spec, names, i, nullptr, rank)));
    }
    pass_over_mtp();
    return binder.check_all_taken(names);
  }

  // A layer behind the last one that guesses further tokens (mtp.h).
  void pass_over_mtp() {
    const std::string behind = layer_behind(names, spec.layers.size());
    if (!binder.has(behind + "eh_proj.weight")) return;
    for (const weights::TensorInfo& tensor : checkpoint.tensors()) {
      if (tensor.name.starts_with(behind)) binder.pass_over(tensor.name);
    }
  }

  Result<void> take_tensors(const LayerTensors& tensors) {
    for (const TableTensor& table : tensors.tables) {
      RUDDER_TRY_VOID(binder.take(table.name, Shape{table.rows, table.width}));
    }
    for (const NormTensor& norm : tensors.norms) RUDDER_TRY_VOID(take_norm(norm));
    for (const VectorTensor& vector : tensors.vectors) {
      RUDDER_TRY_VOID(binder.take(vector.name, vector.stored()));
    }
    for (const FilterTensor& filter : tensors.filters) {
      for (size_t i = 0; i < filter.names.size(); ++i) {
        RUDDER_TRY_VOID(binder.take(filter.names[i], filter.stored(i)));
      }
    }
    for (const NumberTensor& number : tensors.numbers) {
      RUDDER_TRY_VOID(binder.take(number.name, Shape{1}));
    }
    for (const LinearModule& linear : tensors.linears) {
      RUDDER_TRY_VOID(binder.take_linear(linear));
    }
    for (const ScaleTensor& scale : tensors.scales) RUDDER_TRY_VOID(binder.take_scale(scale));
    for (const std::string& name : tensors.unread) binder.pass_over(name);
    return {};
  }

  Result<Tables> take_tables() {
    const Shape shape{spec.vocab, spec.hidden};
    const LinearModule head = head_module(spec, names, rank);
    const std::string head_name = head.parts.front().name + ".weight";
    Tables out;
    RUDDER_TRY(out.embedding, binder.take(std::string(names.embedding), shape));
    if (!spec.tied_head) {
      RUDDER_TRY(out.head, binder.take_linear(head));
      return out;
    }
    if (out.embedding.empty()) return out;  // packed, and only looked at
    const auto kept = binder.keep_table(std::string(names.embedding), out.head);
    out.keeps_head = kept.has_value();
    RUDDER_TRY_VOID(cut_part(kept.value_or(ops::wide_part(out.embedding)), head, 0, out.head.memory,
                             out.head.parts));
    if (binder.has(head_name)) {
      // Older exporters write the tied head too; a different one contradicts the config.
      RUDDER_TRY(const View copy, binder.take(head_name, shape));
      if (copy.dtype != out.embedding.dtype ||
          std::memcmp(copy.data, out.embedding.data, copy.bytes()) != 0) {
        return fail(ErrorCode::kCorruptFile,
                    "the config ties the head to the embedding, this tensor differs from it",
                    fmt::format("{}: tensor '{}'", checkpoint.name(), head_name));
      }
    }
    return out;
  }

  Result<void> take_norm(const NormTensor& tensor) {
    for (const NormTensor::Part& part : {tensor.weight, tensor.alpha}) {
      if (!part.name.empty()) RUDDER_TRY_VOID(binder.take(part.name, Shape{part.count}));
    }
    return {};
  }

  const Checkpoint& checkpoint;
  const ModelSpec& spec;
  const WeightNames& names;
  const ops::Rank rank;
  Binder binder;
};

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
        stored_{checkpoint, spec, names, rank_, Binder(checkpoint, quantisation)} {}

  Result<Weights> load() {
    RUDDER_TRY_VOID(check_facets(spec_, ops_));
    RUDDER_TRY_VOID(stored_.check());
    RUDDER_TRY_VOID(binder_.read_for(ops_));
    binder_.log_differences();
    binder_.log_passed_over(names_);
    RUDDER_TRY_VOID(load_embedding_and_head());
    if (stage_.is_first()) RUDDER_TRY_VOID(load_tensors(model_tensors(spec_, names_, &out_)));
    const LayerRange layers = layers_of(spec_, stage_);
    for (size_t i = layers.begin; i < layers.end; ++i) {
      if (i + 1 < layers.end) prefetch_layer(i + 1);
      RUDDER_TRY(LayerWeights layer, load_layer(i));
      out_.layers.push_back(std::move(layer));
      checkpoint_.release_pages();  // a layer at a time is in memory twice, and no more
      report();
    }
    for (const NormTensor& norm : final_norm_tensors(spec_, names_)) {
      if (!stage_.is_last()) continue;
      RUDDER_TRY(out_.final_norm, load_norm(norm));
    }
    RUDDER_TRY_VOID(checkpoint_.check_unchanged());
    done_ = checkpoint_.tensor_bytes();  // with what is not read
    report();
    log_what_was_chosen();
    return std::move(out_);
  }

  Result<int64_t> load_list(const LayerTensors& tensors, std::string_view prefix) {
    RUDDER_TRY_VOID(stored_.take_tensors(tensors));
    RUDDER_TRY_VOID(binder_.check_all_taken(names_, prefix));
    RUDDER_TRY_VOID(binder_.read_for(ops_));
    RUDDER_TRY_VOID(load_tensors(tensors));
    RUDDER_TRY_VOID(checkpoint_.check_unchanged());
    return out_.bytes;
  }

 private:
  void prefetch_layer(size_t layer) const {
    for (const LinearModule& linear : layer_tensors(spec_, names_, layer).linears) {
      for (size_t part = 0; part < linear.parts.size(); ++part) {
        if (linear.first_of(part) == part) binder_.prefetch(linear.parts[part].weight_name());
      }
    }
  }

  Result<void> load_embedding_and_head() {
    RUDDER_TRY(StoredModel::Tables tables, stored_.take_tables());
    if (stage_.embeds() && (tables.keeps_head || !shares_table(spec_, rank_, stage_))) {
      RUDDER_TRY(out_.embedding, upload_table(tables.embedding, ops_));
      out_.bytes += static_cast<int64_t>(out_.embedding.bytes());
      if (!spec_.tied_head) done_ += static_cast<int64_t>(tables.embedding.bytes());
    }
    if (stage_.is_last()) {
      RUDDER_TRY(out_.head, add_linear(tables.head));
    }
    binder_.release_unpacked();
    checkpoint_.release_pages();
    report();
    return {};
  }

  Result<LayerWeights> load_layer(size_t index) {
    LayerWeights out = empty_weights(spec_, index);
    RUDDER_TRY_VOID(load_tensors(layer_tensors(spec_, names_, index, &out, rank_)));
    return out;
  }

  Result<void> load_tensors(const LayerTensors& tensors) {
    for (const TableTensor& table : tensors.tables) {
      RUDDER_TRY(const View stored, binder_.take(table.name, Shape{table.rows, table.width}));
      RUDDER_TRY(*table.target,
                 table.on_host ? place_table_on_host(stored, ops_) : upload_table(stored, ops_));
      if (!table.on_host || ops_.is_host())
        out_.bytes += static_cast<int64_t>(table.target->bytes());
      done_ += static_cast<int64_t>(stored.bytes());
      binder_.release_unpacked();
      checkpoint_.release_pages();
    }
    for (const NormTensor& norm : tensors.norms) {
      RUDDER_TRY(*norm.target, load_norm(norm));
    }
    for (const VectorTensor& vector : tensors.vectors) {
      RUDDER_TRY(View stored, binder_.take(vector.name, vector.stored()));
      if (vector.rows == 0) stored.shape = {vector.count.stored};
      const ops::Share share = vector.rows == 0 ? vector.count.share : ops::Share{0, vector.rows};
      RUDDER_TRY(*vector.target, upload_values(values_of(stored.rows(share.begin, share.count))));
      vector.target->shape = vector.loaded();
    }
    for (const FilterTensor& filter : tensors.filters) {
      std::vector<float> all;
      for (size_t i = 0; i < filter.names.size(); ++i) {
        RUDDER_TRY(const View stored, binder_.take(filter.names[i], filter.stored(i)));
        const std::vector<float> values = values_of(stored);
        all.insert(all.end(), values.begin(), values.end());
      }
      RUDDER_TRY(*filter.target, upload_values(filter.share_of(all)));
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
    return {};
  }

  Result<ops::NormSpec> load_norm(const NormTensor& tensor) {
    ops::NormSpec norm;
    norm.eps = tensor.eps > 0 ? tensor.eps : spec_.norm_eps;
    RUDDER_TRY(norm.weight,
               load_norm_part(tensor.weight, tensor.width,
                              tensor.has_offset ? names_.norm_offset : 0, tensor.factor));
    if (tensor.alpha.count > 0) {
      RUDDER_TRY(norm.alpha, load_norm_part(tensor.alpha, tensor.width, 0));
    }
    return norm;
  }

  // [width.count()]: ones without a tensor, one number again and again where the tensor has just
  // one.
  Result<View> load_norm_part(const NormTensor::Part& part, const Extent& width, float offset,
                              float factor = 1) {
    std::vector<float> values(static_cast<size_t>(width.count()), 1.0f);
    if (!part.name.empty()) {
      RUDDER_TRY(const View stored, binder_.take(part.name, Shape{part.count}));
      values = norm_values(stored, width, offset);
    }
    for (float& value : values) value *= factor;
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
    RUDDER_TRY(BoundLinear bound, binder_.take_linear(module));
    auto weight = add_linear(bound, module.experts);
    binder_.release_unpacked();
    if (weight) return weight;
    Error error = weight.error();
    if (error.where.empty()) {
      error.where = fmt::format("{}: module '{}'", checkpoint_.name(), module.parts.front().name);
    }
    return tl::unexpected(std::move(error));
  }

  Result<ops::LinearWeight> make_weight(const BoundLinear& bound, int64_t experts) {
    if (experts == 0) return ops_.make_linear(bound.parts);
    if (ops::ExpertOps* const ops = ops_.expert_ops()) {
      return ops->make_experts(bound.parts, experts);
    }
    return fail(ErrorCode::kUnsupported, "this backend runs no mixtures of experts");
  }

  Result<ops::LinearWeight> add_linear(BoundLinear& bound, int64_t experts = 0) {
    auto made = make_weight(bound, experts);
    if (!made && made.error().code == ErrorCode::kUnsupported &&
        binder_.multiply_out_codes(bound)) {
      made = make_weight(bound, experts);
    }
    RUDDER_TRY(ops::LinearWeight weight, std::move(made));
    narrows_inputs_ =
        narrows_inputs_ || (bound.wide_inputs && weight.input == ops::InputForm::kF8Rows);
    out_.bytes += weight.bytes;
    for (const ops::LinearPart& part : bound.parts) {
      done_ += static_cast<int64_t>(part.codes.bytes());
    }
    return weight;
  }

  void log_what_was_chosen() const {
    binder_.log_multiplied();
    if (narrows_inputs_) {
      log_warn("{}: it quantises its weights alone; this backend quantises what they multiply too",
               checkpoint_.name());
    }
    if (ops_.kv_format() != ops::KvFormat{DType::kF8E4M3}) return;
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
  StoredModel stored_;
  Binder& binder_ = stored_.binder;
  int64_t done_ = 0;  // bytes of checkpoint
  bool narrows_inputs_ = false;
  bool has_kv_scales_ = false;
  Weights out_;
};

// Whether both tensors are there with the same bytes, as older exporters write a tied pair.
bool are_equal(const weights::TensorInfo& a, const weights::TensorInfo& b) {
  return a.view.dtype == b.view.dtype && a.view.shape == b.view.shape &&
         std::memcmp(a.view.data, b.view.data, a.view.bytes()) == 0;
}

// Embedding checkpoints often have no head although their config ties none. Their rows are what is
// read; the table stands in for the head, whose tokens nobody may ask for.
// Of a text model inside another one neither config may say whether the head is tied.
Result<void> find_head(const Checkpoint& checkpoint, const weights::HfConfig& config,
                       ModelSpec& spec) {
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  const WeightNames names = names_in(architecture->names, checkpoint);
  const std::string head_name = std::string(names.head) + ".weight";
  const weights::TensorInfo* const head = checkpoint.find(head_name);
  const bool has_head = head != nullptr;
  const weights::TensorInfo* const table = checkpoint.find(names.embedding);
  if (!architecture->wraps.empty() && !config.has("tie_word_embeddings")) {
    spec.tied_head = !has_head;
  }
  if (!spec.tied_head && has_head && names.embedding == head_name) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("the tensor '{}' is missing", architecture->names.embedding),
                checkpoint.name());
  }
  // As in transformers, what the file holds goes before what the config says of it.
  const bool is_plain = has_head && table != nullptr && !head->packed && !table->packed;
  if (spec.tied_head && is_plain && head != table && !are_equal(*head, *table)) {
    log_warn("{}: '{}' is not the embedding, which the config ties it to; the head is its own",
             checkpoint.name(), head_name);
    spec.tied_head = false;
  }
  if (spec.tied_head || has_head) return {};
  RUDDER_TRY(const std::vector<std::string> named, config.strings("architectures"));
  if (named[0] != architecture->base_name && !checkpoint.has_file("modules.json")) return {};
  spec.tied_head = true;
  spec.has_head = false;
  return {};
}

}  // namespace

Result<ModelSpec> read_spec(const Checkpoint& checkpoint) {
  RUDDER_TRY(const std::string text, checkpoint.read_text("config.json"));
  RUDDER_TRY(const weights::HfConfig config,
             weights::HfConfig::parse(text, checkpoint.name() + "/config.json"));
  RUDDER_TRY_VOID(read_quantisation(checkpoint));  // refused before anything else is asked
  RUDDER_TRY(ModelSpec spec, read_config(config));
  RUDDER_TRY_VOID(find_head(checkpoint, config, spec));
  return spec;
}

Result<void> check_tensors(const Checkpoint& checkpoint, const ModelSpec& spec) {
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  const WeightNames names = names_in(architecture->names, checkpoint);
  RUDDER_TRY(const Quantisation quantisation, read_quantisation(checkpoint));
  return StoredModel{checkpoint, spec, names, {}, Binder(checkpoint, quantisation)}.check();
}

Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelSpec& spec, ops::Ops& ops,
                             const ProgressFn& progress, const Stage& stage) {
  RUDDER_TRY(const Architecture* architecture, find_architecture(spec.architecture));
  return load_weights(checkpoint, spec, names_in(architecture->names, checkpoint), ops, progress,
                      stage);
}

Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelSpec& spec,
                             const WeightNames& names, ops::Ops& ops, const ProgressFn& progress,
                             const Stage& stage) {
  RUDDER_TRY(const Quantisation quantisation, read_quantisation(checkpoint));
  return Loader(checkpoint, quantisation, spec, names, ops, progress, stage).load();
}

Result<int64_t> load_list(const Checkpoint& checkpoint, const ModelSpec& spec,
                          const WeightNames& names, const LayerTensors& tensors,
                          std::string_view prefix, ops::Ops& ops) {
  RUDDER_TRY(const Quantisation quantisation, read_quantisation(checkpoint));
  return Loader(checkpoint, quantisation, spec, names, ops, {}, {}).load_list(tensors, prefix);
}

Result<View> upload_table(const View& stored, ops::Ops& ops) {
  RUDDER_TRY(const ops::WeightFormat file, ops::wide_format(stored.dtype));
  RUDDER_TRY(const ops::WeightFormat device, ops.stored_format(file));
  return ops.upload(stored, table_dtype(device));
}

namespace {

// The format of a module in its file. What the checkpoint does not have counts as bf16.
Result<ops::WeightFormat> file_format(const Checkpoint& checkpoint,
                                      const Quantisation& quantisation, std::string_view module) {
  RUDDER_TRY(const Quantisation::Group* const group, quantisation.group_of(module));
  const ModuleTensors tensors(checkpoint, std::string(module), nullptr);
  if (group != nullptr && has_low_bits(tensors, *group)) return low_bit_format(tensors, *group);
  const weights::TensorInfo* tensor = checkpoint.find(fmt::format("{}.weight", module));
  if (tensor == nullptr) tensor = checkpoint.find(module);  // of all experts
  if (tensor == nullptr) return ops::WeightFormat{};
  if (tensor->packed) {
    return format_of_blocks(*tensor->packed->type)
        .value_or(ops::WeightFormat{.codes = ops::Codes::kF32});
  }
  if (tensor->view.dtype == DType::kF8E4M3) {
    const bool has_blocks = group != nullptr && group->as == StoredAs::kFp8Blocks;
    return has_blocks ? low_bit_format(tensors, *group) : ops::kFp8Rows;
  }
  return ops::wide_format(tensor->view.dtype);
}

}  // namespace

FormatOf stored_formats(const Checkpoint& checkpoint, const ops::Ops& ops) {
  const auto quantisation =
      std::make_shared<const Result<Quantisation>>(read_quantisation(checkpoint));
  return [&checkpoint, &ops, quantisation](std::string_view module, ops::ProductUse use,
                                           bool has_factor) -> Result<ops::WeightFormat> {
    if (!*quantisation) return tl::unexpected(quantisation->error());
    RUDDER_TRY(ops::WeightFormat file, file_format(checkpoint, **quantisation, module));
    if (has_factor && (file.is_wide() || file == ops::kFp8Rows)) file = {.codes = ops::Codes::kF32};
    return stored_or_wide(file, ops, use);
  };
}

Result<WeightBudget> budget_weights(const Checkpoint& checkpoint, const ModelSpec& spec,
                                    const ops::Ops& ops, ops::Rank rank, const Stage& stage) {
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  RUDDER_TRY(WeightBudget budget, weight_budget(spec, names_in(architecture->names, checkpoint),
                                                stored_formats(checkpoint, ops), rank, stage));
  if (ops.is_host()) budget.bytes += budget.host_bytes;  // it is the same memory
  return budget;
}

Result<std::vector<Stage>> divide_checkpoint(const Checkpoint& checkpoint, const ModelSpec& spec,
                                             const ops::Ops& ops, int32_t count) {
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  return divide_layers(spec, names_in(architecture->names, checkpoint), count,
                       stored_formats(checkpoint, ops), ops.kv_format());
}

}  // namespace rudder::model
