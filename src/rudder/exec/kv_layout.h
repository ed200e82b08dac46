// KvLayout: which KV group each layer is of, and where its keys and values lie in a block. Worked
// out from the spec before anything is allocated; reasons: docs/adr/0019-kv-groups.md.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"
#include "rudder/step/kv_groups.h"

namespace rudder::exec {

// Which layer of a block of which group a layer of the model is.
struct KvLayerIndex {
  int32_t group = -1;  // -1: the layer keeps no KV
  int32_t index = 0;   // among the layers of the group's blocks
};

struct KvLayout {
  int64_t block_bytes = 0;  // of every group
  // Of these, what its tokens' scales take; each of a group's layers has an equal share.
  int64_t scale_bytes = 0;
  step::KvGroups groups;
  std::vector<KvLayerIndex> layers;  // as ModelSpec.layers

  int64_t number_bytes() const { return block_bytes - scale_bytes; }  // of keys and values
};

struct KvLayoutAsk {
  ops::KvFormat kv;
  int32_t block_size = 16;
  int32_t max_seq_len = 0;  // a window that is no shorter passes no block
  int32_t lookback = 0;     // Ops::attention_lookback
};

// Layers of equal window and shape make one group, or several of equal size where that takes less:
// the fewest groups among the layouts in which the longest sequence takes the fewest bytes. An
// Error: layers are of more kinds than there may be groups.
Result<KvLayout> make_kv_layout(const model::ModelSpec& spec, const KvLayoutAsk& ask);

// The part of a stage (model/stage.h): the same groups, so that block tables are those of the whole
// model, with the stage's layers alone in a block.
KvLayout stage_kv_layout(const KvLayout& whole, const model::Stage& stage);

// What layer `layer` keeps in `pool`, [num_blocks, layout.block_bytes] u8 of the device: first the
// scales of all blocks, then the keys and values of all, so that those of a layer lie evenly apart
// whatever scales take.
ops::KvLayer layer_kv(const KvLayout& layout, const model::KvGeometry& geometry, size_t layer,
                      int32_t block_size, const ops::KvFormat& format, const ops::View& pool);

// The KV cache of a layout's layers.
struct KvMemory {
  ops::View pool;                    // [num_blocks, block_bytes] u8, as layer_kv() divides it
  std::vector<ops::KvLayer> layers;  // of each what it keeps
};
// An Error is the device's.
Result<KvMemory> allocate_kv(const KvLayout& layout, const model::ModelSpec& spec,
                             const step::Capacity& capacity, ops::Ops& ops);

}  // namespace rudder::exec
