#include "rudder/model/layer_embedding.h"

#include <cmath>

#include "rudder/model/branch.h"
#include "rudder/model/decoder_buffers.h"
#include "rudder/model/tensors.h"
#include "rudder/model/weight_budget.h"

namespace rudder::model {

using tensor::View;

namespace {

// The same memory in rows of `width`.
View as_runs(View view, int64_t width) {
  view.shape = {view.shape.numel() / width, width};
  return view;
}

}  // namespace

void list_tensors(const LayerEmbedding& embedding, int64_t hidden,
                  const LayerEmbedding::Names& names, LayerEmbedding::ModelWeights* weights,
                  LayerTensors& out) {
  using Weights = LayerEmbedding::ModelWeights;
  if (!embedding.exists()) return;
  const int64_t width = embedding.row_width();
  out.tables.push_back({out.prefix + std::string(names.table), embedding.vocab, width,
                        target_in(weights, &Weights::table), embedding.on_host});
  out.add_linear({names.projection}, {width}, hidden, false,
                 target_in(weights, &Weights::projection));
  out.add_norm(names.norm, embedding.width, RmsNorm{}, target_in(weights, &Weights::norm));
}

void list_tensors(const LayerEmbedding& embedding, int64_t hidden,
                  const LayerEmbedding::Names& names, LayerEmbedding::Weights* weights,
                  LayerTensors& out) {
  using Weights = LayerEmbedding::Weights;
  if (!embedding.exists()) return;
  out.add_linear({names.gate}, {embedding.width}, hidden, false,
                 target_in(weights, &Weights::gate));
  out.add_linear({names.out}, {hidden}, embedding.width, false, target_in(weights, &Weights::out));
  out.add_norm(names.post_norm, hidden, RmsNorm{}, target_in(weights, &Weights::post_norm));
}

std::array<int64_t, 4> scratch_widths(const LayerEmbedding& embedding) {
  const int64_t width = embedding.width;
  return {width, width, 2 * width, width};
}

void LayerRows::begin(const View& x, const View& ids) {
  resume(x.num_rows());
  const auto width = static_cast<float>(embedding_.width);
  ops_.embed({.table = weights_.table,
              .ids = ids,
              .scale = table_scale(std::sqrt(width), weights_.table.dtype),
              .out = rows_});
  const View made = products_.project(weights_.projection,
                                      products_.operand_of(weights_.projection, x, buffers_.normed),
                                      buffers_.layer_products);
  // The norm of what is divided by sqrt(hidden) is that of what is not, with an eps as much larger.
  ops::NormSpec norm = weights_.norm;
  norm.eps *= static_cast<float>(x.shape[1]);
  ops_.residual_norm({.x = as_runs(rows_, embedding_.width),
                      .delta = as_runs(made, embedding_.width),
                      .delta_norm = norm,
                      .sum_scale = std::sqrt(0.5f)});
}

void LayerRows::resume(int64_t tokens) {
  rows_ = shaped(buffers_.layer_rows, tokens, embedding_.row_width());
}

void LayerRows::keep(const View& rows) {
  const View kept = shaped(buffers_.layer_products, rows.num_rows(), embedding_.row_width());
  ops_.gather_rows({.x = rows_, .rows = rows, .out = kept});
  rows_ = kept;
}

View LayerRows::read(size_t layer, const LayerEmbedding::Weights& weights, const Operand& in,
                     const View& out) {
  const int64_t tokens = in.rows();
  const int64_t width = embedding_.width;
  const Scratch scratch(buffers_.scratch, max_tokens_, scratch_widths(embedding_));
  const View gate = products_.project(weights.gate, in, scratch[0]);
  const View own = shaped(scratch[1], tokens, width);
  ops_.gather_rows(
      {.x = as_runs(rows_, width),
       .rows = buffers_.layer_index.rows(static_cast<int64_t>(layer) * max_tokens_, tokens),
       .out = own});
  const View both = shaped(scratch[2], tokens, 2 * width);
  ops_.draft_ops()->place_rows({.x = gate, .out = both});
  ops_.draft_ops()->place_rows({.x = own, .out = both, .column = width});
  const View activated = shaped(scratch[3], tokens, width);
  ops_.gated_act(
      {.x = both, .activation = embedding_.activation, .out = activated, .out_scale = {}});
  return products_.project(weights.out, products_.operand_of(weights.out, activated, scratch[2]),
                           out);
}

}  // namespace rudder::model
