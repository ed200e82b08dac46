// A table in memory of the host, where the device reads its rows: embeddings by layer that the
// device need not have room for (LayerEmbedding.on_host). The loader makes it.
#pragma once

#include "rudder/base/result.h"
#include "rudder/ops/ops.h"

namespace rudder::model {

// A table [rows, width] of f32, f16 or bf16 with the numbers that upload_table() would give the
// device, in staging memory of `ops`, which a GPU reads by the same address.
Result<ops::View> place_table_on_host(const ops::View& stored, ops::Ops& ops);

}  // namespace rudder::model
