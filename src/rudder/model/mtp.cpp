#include "rudder/model/mtp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/tensor_names.h"
#include "rudder/model/branch.h"
#include "rudder/model/loader.h"
#include "rudder/model/shard.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;
using weights::Checkpoint;

tl::unexpected<Error> unfit(std::string message) {
  return fail(ErrorCode::kUnsupported, std::move(message), "speculative-config.method");
}

// Where the head lies: beside the model's layers, or as the layer behind the last one.
Result<void> find_tensors(const Checkpoint& checkpoint, const ModelSpec& target, MtpSpec& spec) {
  const auto has = [&](const std::string& module) {
    return checkpoint.find(module + ".weight") != nullptr;
  };
  if (has("mtp.fc")) {
    spec.prefix = "mtp.";
    spec.layer_prefix = "mtp.layers.0.";
    spec.fc = "mtp.fc";
    spec.embedding_norm = "mtp.pre_fc_norm_embedding";
    spec.hidden_norm = "mtp.pre_fc_norm_hidden";
    spec.final_norm = "mtp.norm";
    spec.goes_on_normed = true;
    return {};
  }
  const auto layer = [&](size_t index) {
    return layer_behind(spec.names, target.layers.size() + index);
  };
  spec.prefix = spec.layer_prefix = layer(0);
  spec.fc = spec.prefix + "eh_proj";
  spec.embedding_norm = spec.prefix + "enorm";
  spec.hidden_norm = spec.prefix + "hnorm";
  spec.final_norm = spec.prefix + "shared_head.norm";
  if (!has(spec.fc)) {
    return unfit(
        fmt::format("{} has no MTP head, neither 'mtp.fc.weight' nor '{}.weight': with "
                    "\"model\" the method takes an assistant",
                    checkpoint.name(), spec.fc));
  }
  if (has(layer(1) + "eh_proj")) {
    return unfit("an MTP head of several layers: it may have one");
  }
  return {};
}

// The last layer that keeps every token's KV.
const LayerSpec* last_reading_layer(const ModelSpec& target) {
  const LayerSpec* out = nullptr;
  for (const LayerSpec& layer : target.layers) {
    const bool is_one = std::holds_alternative<Attention>(layer.mixer) || latent_of(layer);
    const KvGeometry kept = kv_geometry(layer);
    if (is_one && kept.num_kv_heads > 0 && kept.window == 0) out = &layer;
  }
  return out;
}

struct MtpSizes {
  int64_t rows = 0;      // g, the embedding, normed rows
  int64_t joined = 0;    // likewise what fc takes
  int64_t share = 0;     // of a rank
  int64_t feedback = 0;  // rows that guesses go on from
  int64_t last = 0;      // of the final norm

  MtpSizes(const MtpSpec& spec, const DecoderLimits& limits, int32_t num_feedback, ops::Rank rank)
      : rows(int64_t{limits.max_tokens} * spec.layers.hidden),
        joined(limits.max_tokens * spec.joined_width()),
        share(rank.is_alone()
                  ? 0
                  : limits.max_tokens * input_extent(spec.joined_width(), rank).count()),
        feedback(int64_t{num_feedback} * spec.layers.hidden),
        last(int64_t{limits.max_logits_rows} * spec.layers.hidden) {}

  int64_t act() const { return 3 * rows + 2 * joined + share + feedback + last; }
};

Weights behind_model(const MtpWeights& own, const HeadSource& source) {
  Weights out;
  out.layers = {own.layer};
  out.final_norm = own.final_norm;
  out.head = *source.head;
  return out;
}

View flat(View view) {
  view.shape = {view.shape.numel()};
  return view;
}

}  // namespace

Result<ModelSpec> mtp_layers(const ModelSpec& target) {
  const LayerSpec* const like = last_reading_layer(target);
  if (like == nullptr) return unfit("an MTP head of a model of which no layer keeps every token");
  if (!std::holds_alternative<OneStream>(target.residual)) {
    return unfit("an MTP head of a model whose residual has several rows");
  }
  if (target.layer_embedding.exists()) {
    return unfit("an MTP head of a model whose tokens have a row for each layer");
  }
  LayerSpec layer = *like;
  layer.mlp = target.layers.back().mlp;
  ModelSpec layers = target;
  layers.layers = {std::move(layer)};
  layers.tied_head = false;
  layers.stage = {.index = 1, .count = 2, .first_layer = 0, .num_layers = 1};
  return layers;
}

Result<MtpSpec> read_mtp(const Checkpoint& checkpoint, const ModelSpec& target) {
  RUDDER_TRY(const Architecture* const architecture, find_architecture(target.architecture));
  MtpSpec spec;
  spec.names = names_in(architecture->names, checkpoint);
  spec.names.ignored_prefixes.clear();  // the model passes its head over
  RUDDER_TRY_VOID(find_tensors(checkpoint, target, spec));
  RUDDER_TRY(spec.layers, mtp_layers(target));
  return spec;
}

LayerTensors mtp_tensors(const MtpSpec& spec, MtpWeights* weights, ops::Rank rank) {
  const int64_t hidden = spec.layers.hidden;
  if (weights != nullptr) weights->layer = empty_weights(spec.layers, 0);
  LayerTensors out = layer_tensors_behind(spec.layer_prefix, spec.layers, spec.names, 0,
                                          target_in(weights, &MtpWeights::layer), rank);
  out.prefix.clear();
  const auto norm = [&](const std::string& name, ops::NormSpec MtpWeights::*member) {
    out.add_norm(name, hidden, spec.layers.norm, target_in(weights, member));
  };
  norm(spec.embedding_norm, &MtpWeights::embedding_norm);
  norm(spec.hidden_norm, &MtpWeights::hidden_norm);
  norm(spec.final_norm, &MtpWeights::final_norm);
  out.add_linear({spec.fc}, {hidden}, input_extent(spec.joined_width(), rank), false,
                 target_in(weights, &MtpWeights::fc));
  // Copies of the model's.
  out.unread.push_back(spec.prefix + "embed_tokens.weight");
  out.unread.push_back(spec.prefix + "shared_head.head.weight");
  return out;
}

Result<MtpSpec> shard_mtp(const MtpSpec& whole, ops::Rank rank) {
  MtpSpec spec = whole;
  RUDDER_TRY(spec.layers, shard_spec(whole.layers, rank));
  if (whole.joined_width() % rank.count != 0) {
    return indivisible(fmt::format("the {} inputs of '{}'", whole.joined_width(), whole.fc), rank);
  }
  return spec;
}

Result<MtpWeights> load_mtp(const Checkpoint& checkpoint, const MtpSpec& spec, ops::Ops& ops) {
  MtpWeights weights;
  const LayerTensors tensors = mtp_tensors(spec, &weights, ops::rank_of(ops));
  RUDDER_TRY(weights.bytes,
             load_list(checkpoint, spec.layers, spec.names, tensors, spec.prefix, ops));
  return weights;
}

MtpHead::MtpHead(const MtpSpec& spec, const MtpWeights& weights, const HeadSource& source,
                 ops::Ops& ops)
    : spec_(spec),
      weights_(weights),
      source_(source),
      ops_(ops),
      layer_weights_(behind_model(weights, source)) {}

Result<std::unique_ptr<Decoder>> MtpHead::make(const MtpSpec& spec, const MtpWeights& weights,
                                               const HeadSource& source, const ops::KvLayer& kv,
                                               ops::Ops& ops, const DecoderLimits& limits,
                                               int32_t num_feedback) {
  const ops::Rank rank = ops::rank_of(ops);
  RUDDER_CHECK(source.head != nullptr && source.rows.shape[1] == spec.layers.hidden &&
               weights.fc.in == input_extent(spec.joined_width(), rank).count());
  std::unique_ptr<MtpHead> out(new MtpHead(spec, weights, source, ops));
  const MtpSizes sizes(spec, limits, num_feedback, rank);
  const DType act = ops.act_dtype();
  Buffers& to = out->buffers_;
  for (View* const buffer : {&to.g, &to.embedded, &to.normed}) {
    RUDDER_TRY(*buffer, ops.allocate(act, {sizes.rows}));
  }
  for (View* const buffer : {&to.joined, &to.operand}) {
    RUDDER_TRY(*buffer, ops.allocate(act, {sizes.joined}));
  }
  if (sizes.share > 0) {
    RUDDER_TRY(to.share, ops.allocate(act, {sizes.share}));
  }
  RUDDER_TRY(to.scales, ops.allocate(DType::kF32, {limits.max_tokens}));
  RUDDER_TRY(to.feedback, ops.allocate(act, {num_feedback, spec.layers.hidden}));
  RUDDER_TRY(to.final_row, ops.allocate(act, {limits.max_logits_rows, spec.layers.hidden}));
  RUDDER_TRY(out->columns_, ColumnShare::make(ops, limits.max_tokens));
  const std::array kept = {kv};
  RUDDER_TRY(out->decoder_,
             Decoder::make(spec.layers, out->layer_weights_, kept, ops, limits, {}, to.final_row));
  const std::array linears = {weights.fc};
  RUDDER_TRY_VOID(ops.prepare({.max_tokens = limits.max_tokens,
                               .max_rows = limits.max_logits_rows,
                               .max_seqs = limits.max_logits_rows,
                               .hidden = spec.layers.hidden,
                               .max_linear_in = weights.fc.in,
                               .linears = linears}));
  return out;
}

int64_t MtpHead::device_bytes(const MtpSpec& spec, const DecoderLimits& limits,
                              int32_t num_feedback, DType act, ops::Rank rank) {
  return MtpSizes(spec, limits, num_feedback, rank).act() *
             static_cast<int64_t>(tensor::dtype_bytes(act)) +
         limits.max_tokens * static_cast<int64_t>(sizeof(float)) +
         ColumnShare::device_bytes(limits.max_tokens, rank) +
         Decoder::workspace_bytes(spec.layers, limits, act, rank);
}

MtpHead::Begun MtpHead::begin(const ForwardBatch& /*batch*/) {
  RUDDER_CHECK(false, "an MTP head has one part");
}
View MtpHead::finish(const Begun& /*begun*/, const ForwardBatch& /*batch*/) {
  RUDDER_CHECK(false, "an MTP head has one part");
}
View MtpHead::hidden(int64_t /*num_tokens*/) const {
  RUDDER_CHECK(false, "an MTP head has no stages");
}
View MtpHead::more_logits(const View& /*rows*/) {
  RUDDER_CHECK(false, "an MTP head scores nothing");
}

// g of every token, [T, hidden]. The model's row of a token lies where the head's KV of it does.
View MtpHead::rows_of(const ForwardBatch& batch) {
  const int64_t tokens = batch.ids.num_rows();
  const View g = shaped(buffers_.g, tokens, spec_.layers.hidden);
  if (batch.goes_on_rows.empty()) {
    ops_.gather_rows({.x = source_.rows, .rows = batch.kv_slot.rows(0, tokens), .out = g});
  } else {
    ops_.gather_rows({.x = buffers_.feedback, .rows = batch.goes_on_rows, .out = g});
  }
  return g;
}

View MtpHead::embed(const ForwardBatch& batch) {
  const View embedded = shaped(buffers_.embedded, batch.ids.num_rows(), spec_.layers.hidden);
  ops_.embed({.table = source_.embedding,
              .tied = source_.embedding.empty() ? source_.head : nullptr,
              .ids = batch.ids,
              .scale = table_scale(spec_.layers.embed_scale, table_dtype(ops_)),
              .out = embedded});
  return embedded;
}

// Norms `x` [T, hidden] into columns of `joined` [T, 2 * hidden].
void MtpHead::join(const View& x, const ops::NormSpec& norm, int64_t column, const View& joined) {
  const View normed = shaped(buffers_.normed, x.shape[0], x.shape[1]);
  ops_.residual_norm({.x = x, .norm = norm, .out = normed});
  ops_.draft_ops()->place_rows({.x = normed, .out = joined, .column = column});
}

// What guesses behind the rows of logits begin with.
void MtpHead::keep_feedback(const ForwardBatch& batch) {
  const int64_t rows = batch.feedback_rows.num_rows();
  View from = buffers_.final_row.rows(0, rows);
  if (!spec_.goes_on_normed) {
    from = shaped(buffers_.normed, rows, spec_.layers.hidden);
    ops_.gather_rows(
        {.x = decoder_->hidden(batch.ids.num_rows()), .rows = batch.logits_rows, .out = from});
  }
  ops_.draft_ops()->place_rows({.x = from, .rows = batch.feedback_rows, .out = buffers_.feedback});
}

View MtpHead::forward(const ForwardBatch& batch) {
  const int64_t tokens = batch.ids.num_rows();
  const View joined = shaped(buffers_.joined, tokens, spec_.joined_width());
  join(embed(batch), weights_.embedding_norm, 0, joined);
  join(rows_of(batch), weights_.hidden_norm, spec_.layers.hidden, joined);
  const Products products(ops_, buffers_.scales);
  const View share = columns_.of(joined, buffers_.share);
  columns_.sum(products.project(weights_.fc,
                                products.operand_of(weights_.fc, share, buffers_.operand),
                                flat(decoder_->hidden(tokens))));
  ForwardBatch own = batch;
  own.keep_all_rows = !spec_.goes_on_normed;  // the residual of rows that guesses go on from
  const View logits = decoder_->forward(own);
  if (!batch.feedback_rows.empty()) keep_feedback(batch);
  return logits;
}

}  // namespace rudder::model
