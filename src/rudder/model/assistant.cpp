#include "rudder/model/assistant.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "rudder/base/check.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/binder.h"
#include "rudder/model/loader.h"
#include "rudder/model/quantised/quantisation.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;
using weights::Checkpoint;
using weights::HfConfig;

// Its layers as a stage that goes on with rows: the last of two.
Stage stage_behind(const ModelSpec& layers) {
  return {.index = 1,
          .count = 2,
          .first_layer = 0,
          .num_layers = static_cast<int32_t>(layers.layers.size())};
}

tl::unexpected<Error> not_made_for(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), "speculative-config.model");
}

// Limits of its steps: single tokens, each with a row of logits.
DecoderLimits limits_of_rows(int32_t max_rows, int32_t max_seq_len) {
  return {.max_tokens = max_rows, .max_logits_rows = max_rows, .max_seq_len = max_seq_len};
}

int64_t widest_operand(const AssistantSpec& spec) {
  return std::max<int64_t>(spec.joined_width(), spec.layers.hidden);
}

}  // namespace

LayerTensors projection_tensors(const AssistantSpec& spec, AssistantWeights* weights,
                                ops::Rank rank) {
  LayerTensors out;
  out.rank = rank;
  out.add_linear({"pre_projection"}, {spec.layers.hidden}, input_extent(spec.joined_width(), rank),
                 false, target_in(weights, &AssistantWeights::pre));
  out.add_linear({"post_projection"}, {spec.target_hidden}, input_extent(spec.layers.hidden, rank),
                 false, target_in(weights, &AssistantWeights::post));
  return out;
}

Result<AssistantSpec> read_assistant(const Checkpoint& checkpoint) {
  RUDDER_TRY(const std::string text, checkpoint.read_text("config.json"));
  RUDDER_TRY(const HfConfig config, HfConfig::parse(text, checkpoint.name() + "/config.json"));
  RUDDER_TRY_VOID(read_quantisation(checkpoint));
  return read_assistant(config);
}

Result<AssistantSpec> read_assistant(const HfConfig& config) {
  AssistantSpec spec;
  RUDDER_TRY(const int64_t hidden, config.integer("backbone_hidden_size", 1, 1 << 20));
  spec.target_hidden = static_cast<int32_t>(hidden);
  RUDDER_TRY(const bool is_ordered, config.boolean_or("use_ordered_embeddings", false));
  if (is_ordered) {
    return fail(ErrorCode::kUnsupported, "logits of the tokens about a few centroids",
                config.where("use_ordered_embeddings"));
  }
  for (const char* key : {"num_centroids", "centroid_intermediate_top_k"}) config.has(key);
  RUDDER_TRY(spec.layers, read_config(config, assistants()));
  spec.layers.stage = stage_behind(spec.layers);
  return spec;
}

Result<void> fit_assistant(const ModelSpec& target, AssistantSpec& assistant) {
  if (assistant.target_hidden != target.hidden) {
    return not_made_for(fmt::format("the assistant reads rows of {}, the model's have {}",
                                    assistant.target_hidden, target.hidden));
  }
  if (assistant.layers.vocab != target.vocab) {
    return not_made_for(fmt::format("the assistant is of {} tokens, the model of {}",
                                    assistant.layers.vocab, target.vocab));
  }
  if (form_of(assistant.layers.residual).streams > 1) {
    return not_made_for("the assistant's layers carry several streams, what it reads is one row");
  }
  assistant.reads.clear();
  for (size_t i = 0; i < assistant.layers.layers.size(); ++i) {
    const Attention& own = *attention_of(assistant.layers.layers[i]);
    const auto is_of_kind = [&](const LayerSpec& layer) {
      const KvGeometry kept = kv_geometry(layer);
      return kept.num_kv_heads > 0 && softmax_of(layer) != nullptr &&
             (kept.window > 0) == (own.window > 0);
    };
    const auto found = std::find_if(target.layers.rbegin(), target.layers.rend(), is_of_kind);
    if (found == target.layers.rend()) {
      return not_made_for(
          fmt::format("its layer {} reads a layer with{} window, the model has none", i,
                      own.window > 0 ? " a" : "out a"));
    }
    const auto index = static_cast<int32_t>(target.layers.rend() - found) - 1;
    const KvGeometry kept = kv_geometry(*found);
    if (kept.head_dim != own.head_dim || kept.num_kv_heads != own.num_kv_heads) {
      return not_made_for(
          fmt::format("its layer {} reads {} KV heads of {}, layer {} of the model "
                      "keeps {} of {}",
                      i, own.num_kv_heads, own.head_dim, index, kept.num_kv_heads, kept.head_dim));
    }
    if (own.window > kept.window) {
      return not_made_for(
          fmt::format("its layer {} has a window of {} tokens, layer {} of the "
                      "model keeps the last {}",
                      i, own.window, index, kept.window));
    }
    assistant.reads.push_back(index);
  }
  return {};
}

Result<void> join_assistant(const AssistantSpec& assistant, std::vector<Stage>& stages) {
  if (stages.size() == 1) return {};
  for (const int32_t layer : assistant.reads) {
    if (layer >= stages.back().first_layer) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the assistant reads layer {}, the last of {} stages begins with layer "
                            "{}",
                            layer, stages.size(), stages.back().first_layer),
                "pipeline-parallel-size");
  }
  stages.back().has_table = true;
  return {};
}

Result<AssistantSpec> shard_assistant(const AssistantSpec& whole, ops::Rank rank) {
  AssistantSpec spec = whole;
  RUDDER_TRY(spec.layers, shard_spec(whole.layers, rank));
  for (const int64_t inputs : {whole.joined_width(), int64_t{whole.layers.hidden}}) {
    if (inputs % rank.count == 0) continue;
    return indivisible(fmt::format("the {} inputs of an assistant's projection", inputs), rank);
  }
  return spec;
}

Result<AssistantWeights> load_assistant(const Checkpoint& checkpoint, const AssistantSpec& spec,
                                        ops::Ops& ops) {
  RUDDER_TRY(const Quantisation quantisation, read_quantisation(checkpoint));
  AssistantWeights weights;
  const LayerTensors tensors = projection_tensors(spec, &weights, ops::rank_of(ops));
  // Everything fits before the first byte of it is loaded.
  Binder binder(checkpoint, quantisation);
  for (const LinearModule& linear : tensors.linears) {
    RUDDER_TRY_VOID(binder.take_linear(linear));
  }
  RUDDER_TRY(const Architecture* const architecture,
             find_architecture(spec.layers.architecture, assistants()));
  RUDDER_TRY(weights.layers, load_weights(checkpoint, spec.layers, architecture->names, ops, {},
                                          spec.layers.stage));
  weights.bytes = weights.layers.bytes;
  RUDDER_TRY_VOID(binder.read_for(ops));
  for (const LinearModule& linear : tensors.linears) {
    RUDDER_TRY(const BoundLinear bound, binder.take_linear(linear));
    RUDDER_TRY(*linear.target, ops.make_linear(bound.parts));
    weights.bytes += linear.target->bytes;
  }
  return weights;
}

Result<int64_t> assistant_bytes(const AssistantSpec& spec, const FormatOf& format_of,
                                ops::Rank rank) {
  RUDDER_TRY(const Architecture* const architecture,
             find_architecture(spec.layers.architecture, assistants()));
  RUDDER_TRY(const WeightBudget layers,
             weight_budget(spec.layers, architecture->names, format_of, rank, spec.layers.stage));
  RUDDER_TRY(const int64_t projections,
             tensor_bytes(projection_tensors(spec, nullptr, rank), format_of));
  return layers.bytes + projections;
}

AssistantSource assistant_source(const AssistantSpec& spec, const ModelSpec& target,
                                 const Weights& weights, std::span<const ops::KvLayer> kv) {
  AssistantSource source{.embedding = weights.embedding,
                         .head = &weights.head,
                         .embed_scale = target.embed_scale,
                         .kv = {}};
  for (const int32_t layer : spec.reads) {
    const auto index = static_cast<size_t>(layer - target.stage.first_layer);
    ops::KvLayer read = kv[index];
    const auto& scales = attention_of(weights.layers[index]);
    if (read.format() == ops::KvFormat{DType::kF8E4M3}) {
      read.k_scale = scales.k_scale;
      read.v_scale = scales.v_scale;
    }
    source.kv.push_back(read);
  }
  return source;
}

Result<std::unique_ptr<Assistant>> Assistant::make(const AssistantSpec& spec,
                                                   const AssistantWeights& weights,
                                                   const AssistantSource& source, ops::Ops& ops,
                                                   int32_t max_rows, int32_t max_seq_len) {
  const ops::Rank rank = ops::rank_of(ops);
  RUDDER_CHECK(source.kv.size() == spec.layers.layers.size() &&
               spec.reads.size() == source.kv.size() &&
               weights.pre.in == input_extent(spec.joined_width(), rank).count() &&
               weights.post.out == spec.target_hidden);
  std::unique_ptr<Assistant> out(new Assistant(spec, weights, source, ops));
  const DType act = ops.act_dtype();
  const int64_t rows = max_rows;
  for (View* const buffer : {&out->rows_, &out->embedded_}) {
    RUDDER_TRY(*buffer, ops.allocate(act, {rows * spec.target_hidden}));
  }
  RUDDER_TRY(out->joined_, ops.allocate(act, {rows * spec.joined_width()}));
  RUDDER_TRY(out->final_, ops.allocate(act, {rows, spec.layers.hidden}));
  RUDDER_TRY(out->operand_, ops.allocate(act, {rows * widest_operand(spec)}));
  if (!rank.is_alone()) {
    RUDDER_TRY(out->share_, ops.allocate(act, {rows * widest_operand(spec)}));
  }
  RUDDER_TRY(out->scales_, ops.allocate(DType::kF32, {rows}));
  RUDDER_TRY(out->columns_, ColumnShare::make(ops, rows));
  RUDDER_TRY(out->decoder_, Decoder::make(spec.layers, weights.layers, source.kv, ops,
                                          limits_of_rows(max_rows, max_seq_len), {}, out->final_));
  const std::array linears = {weights.pre, weights.post};
  RUDDER_TRY_VOID(ops.prepare({.max_tokens = max_rows,
                               .max_rows = max_rows,
                               .max_seqs = max_rows,
                               .hidden = spec.target_hidden,
                               .max_linear_in = widest_operand(spec),
                               .linears = linears}));
  return out;
}

int64_t Assistant::device_bytes(const AssistantSpec& spec, int32_t max_rows, int32_t max_seq_len,
                                DType act, ops::Rank rank) {
  const int64_t act_elements = 2 * int64_t{spec.target_hidden} + spec.joined_width() +
                               spec.layers.hidden +
                               (rank.is_alone() ? 1 : 2) * widest_operand(spec);
  return max_rows * (act_elements * static_cast<int64_t>(tensor::dtype_bytes(act)) +
                     static_cast<int64_t>(sizeof(float))) +
         ColumnShare::device_bytes(max_rows, rank) +
         Decoder::workspace_bytes(spec.layers, limits_of_rows(max_rows, max_seq_len), act, rank);
}

Assistant::Begun Assistant::begin(const ForwardBatch&) {
  RUDDER_CHECK(false, "an assistant has one part");
}
View Assistant::finish(const Begun&, const ForwardBatch&) {
  RUDDER_CHECK(false, "an assistant has one part");
}
View Assistant::hidden(int64_t) const {
  RUDDER_CHECK(false, "an assistant has no stages");
}
View Assistant::more_logits(const View&) {
  RUDDER_CHECK(false, "an assistant scores nothing");
}

void Assistant::pick(const View& normed, const View& rows) {
  ops_.gather_rows(
      {.x = normed, .rows = rows, .out = shaped(rows_, rows.num_rows(), spec_.target_hidden)});
}

// On a rank the ranks' parts are added.
void Assistant::multiply(const ops::LinearWeight& weight, const View& in, const View& out) {
  const Products products(ops_, scales_);
  const View share = columns_.of(in, share_);
  columns_.sum(products.project(weight, products.operand_of(weight, share, operand_), out));
}

View Assistant::forward(const ForwardBatch& batch) {
  const int64_t rows = batch.ids.num_rows();
  RUDDER_CHECK(batch.logits_rows.num_rows() == rows);
  const View h = shaped(rows_, rows, spec_.target_hidden);
  const View embedded = shaped(embedded_, rows, spec_.target_hidden);
  const View joined = shaped(joined_, rows, spec_.joined_width());
  ops_.embed({.table = source_.embedding,
              .tied = source_.embedding.empty() ? source_.head : nullptr,
              .ids = batch.ids,
              .scale = table_scale(source_.embed_scale, table_dtype(ops_)),
              .out = embedded});
  ops_.draft_ops()->place_rows({.x = embedded, .out = joined});
  ops_.draft_ops()->place_rows({.x = h, .out = joined, .column = spec_.target_hidden});
  const auto flat = [](View view) {
    view.shape = {view.shape.numel()};
    return view;
  };
  multiply(weights_.pre, joined, flat(decoder_->hidden(rows)));
  const View logits = decoder_->forward(batch);
  multiply(weights_.post, final_.rows(0, rows), rows_);
  return logits;
}

}  // namespace rudder::model
