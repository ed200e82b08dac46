#include "rudder/exec/kept_rows.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::exec {

size_t whole_group(const step::KvGroups& groups) {
  const auto* found = std::ranges::find(groups, 0, &step::KvGroup::window);
  return static_cast<size_t>(found - groups.begin());
}

Result<model::HiddenPool> make_hidden_pool(const model::ModelSpec& model, const RowsRead& read,
                                           ops::Ops& ops, const step::Capacity& capacity) {
  model::HiddenPool pool;
  pool.layers = model.stage.aux_layers;
  if (read.width > 0) {
    const size_t group = whole_group(capacity.kv_groups);
    const int64_t num_rows = int64_t{capacity.num_blocks} * capacity.block_size;
    pool.layers = read.layers;
    pool.final_norm = read.final_norm;
    pool.group = static_cast<int32_t>(group);
    pool.block_size = capacity.block_size;
    pool.group_layers = capacity.kv_groups[group].layers;
    RUDDER_TRY(pool.rows, ops.allocate(ops.act_dtype(), {num_rows, read.width}));
  }
  if (model.stage.aux_layers.empty()) return pool;
  RUDDER_CHECK(pool.layers == model.stage.aux_layers);
  RUDDER_TRY(pool.passed,
             ops.allocate(ops.act_dtype(),
                          {std::ssize(pool.layers) * capacity.max_tokens_per_step, model.hidden}));
  return pool;
}

}  // namespace rudder::exec
