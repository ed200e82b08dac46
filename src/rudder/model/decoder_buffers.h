// The decoder's device memory: flat buffers, each large enough for every layer of the largest step,
// and the rope tables. Decoder::make allocates it once; only decoder.cpp reads it.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/decoder.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"

namespace rudder::model {

// Rows that a rank's taps put together at a time.
inline constexpr int64_t kWholeRows = 64;

struct DecoderBuffers {
  ops::View residual;       // [max_tokens * residual_width] act
  ops::View rows_residual;  // [max_logits_rows * residual_width] act
  // Of a residual of n streams alone: a row of the model's width that is made of them, and numbers
  // by which they begin and are summed.
  ops::View collapsed;           // [max_tokens * hidden] act
  ops::View stream_begin;        // [n] f32: StreamNumbers
  ops::View stream_as_one;       // [n] f32
  ops::View stream_first;        // [1, n] f32; empty: the first branch reads by its own numbers
  ops::View stream_pre;          // [max_tokens * n] f32, of a delayed read; else empty
  ops::View normed;              // [max_tokens * hidden] act
  ops::View act;                 // likewise, beside a quantised form; empty: no branch reads it
  ops::View delta;               // [max_tokens * hidden] act
  ops::View scratch;             // act; of the branch at hand (branch.h): no two live at once
  ops::View scale;               // [max_tokens] f32, of the operand at hand
  ops::View logits;              // [max_logits_rows * vocab] f32
  ops::View logits_part;         // this rank's columns of them, f32; empty for one that is alone
  ops::View whole_rows;          // act, of TapSharesArgs; empty where nothing is tapped so
  std::vector<ops::View> ropes;  // [max_seq_len, 2, rotary_dim / 2] f32, one per ModelSpec.ropes
  // Of embeddings by layer: what the table and the projection give of each token, and the rows of
  // layer l in them when each layer's row counts, of T tokens from l * max_tokens on.
  ops::View layer_rows;      // [max_tokens * layers * width] act
  ops::View layer_products;  // likewise
  ops::View layer_index;     // [layers * max_tokens] i32
  ops::View query_scales;    // [max_seq_len] f32; empty: queries do not grow

  // Errors are the backend's: kOutOfMemory.
  static Result<DecoderBuffers> allocate(const ModelSpec& spec, const DecoderLimits& limits,
                                         ops::Ops& ops);
  // Device bytes that allocate() takes.
  static int64_t bytes(const ModelSpec& spec, const DecoderLimits& limits, tensor::DType act,
                       ops::Rank rank);
};

}  // namespace rudder::model
