// Where the model's decoder keeps rows for a source of drafts to read (RowsRead): in the blocks of
// a KV group that keeps every token, beside the token's KV. The executor makes the pool once, at
// start.
#pragma once

#include <cstddef>

#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/model/decoder.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"
#include "rudder/step/kv_groups.h"

namespace rudder::exec {

// The first group that keeps every token; the number of groups: none does.
size_t whole_group(const step::KvGroups& groups);

// For the decoder of `model`: what its source reads, and what its stage brings to another one.
Result<model::HiddenPool> make_hidden_pool(const model::ModelSpec& model, const RowsRead& read,
                                           ops::Ops& ops, const step::Capacity& capacity);

}  // namespace rudder::exec
