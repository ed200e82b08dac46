#include "rudder/model/kept_hidden.h"

#include <utility>

#include "rudder/model/branch.h"
#include "rudder/model/decoder_buffers.h"
#include "rudder/model/residual_pass.h"

namespace rudder::model {

using tensor::View;

KeptHidden::KeptHidden(const ModelSpec& spec, const ops::NormSpec& final_norm, ops::Ops& ops,
                       const DecoderBuffers& buffers, HiddenPool pool, const View& final_rows)
    : spec_(spec),
      final_norm_(final_norm),
      ops_(ops),
      buffers_(buffers),
      pool_(std::move(pool)),
      final_rows_(final_rows) {}

void KeptHidden::enter(size_t layer, const View& x, ResidualPass& residual,
                       const ForwardBatch& batch) {
  const int32_t entered = spec_.stage.first_layer + static_cast<int32_t>(layer);
  for (size_t i = 0; i < pool_.layers.size(); ++i) {
    if (pool_.layers[i] != entered) continue;
    const View row = residual.as_one_row(x, buffers_.delta);
    if (spec_.stage.is_last()) {
      place(row, static_cast<int64_t>(i) * spec_.hidden, batch);
    } else {
      ops_.copy(pool_.passed_of(i, row.shape[0]), row);
    }
  }
}

void KeptHidden::enter_passed(const ForwardBatch& batch) {
  if (!spec_.stage.is_last()) return;
  for (size_t i = 0; i < pool_.layers.size(); ++i) {
    if (pool_.layers[i] >= spec_.stage.first_layer) continue;
    place(pool_.passed_of(i, batch.ids.num_rows()), static_cast<int64_t>(i) * spec_.hidden, batch);
  }
}

void KeptHidden::norm(const View& x, const View& rows, const ForwardBatch& batch) {
  if (pool_.final_norm) {
    const View normed = shaped(buffers_.delta, x.shape[0], spec_.hidden);
    ops_.residual_norm({.x = x, .norm = final_norm_, .out = normed});
    place(normed, 0, batch);
  }
  if (final_rows_.empty() || rows.num_rows() == 0) return;
  View wanted = x;
  if (x.shape[0] > rows.num_rows()) {
    wanted = shaped(buffers_.rows_residual, rows.num_rows(), x.shape[1]);
    ops_.gather_rows({.x = x, .rows = rows, .out = wanted});
  }
  ops_.residual_norm(
      {.x = wanted, .norm = final_norm_, .out = final_rows_.rows(0, rows.num_rows())});
}

// Copies rows of all tokens to the places in the pool that belong to the tokens' KV slots.
void KeptHidden::place(const View& x, int64_t column, const ForwardBatch& batch) {
  ops_.draft_ops()->place_rows({.x = x,
                                .rows = batch.kv_slot.rows(pool_.group * x.shape[0], x.shape[0]),
                                .out = pool_.rows,
                                .column = column,
                                .block_size = pool_.block_size,
                                .group_layers = pool_.group_layers});
}

}  // namespace rudder::model
