// Arguments of LatentOps (facets.h): the ops of attention whose keys and values are made of one
// short row of each token (model/latent_attention.h).
#pragma once

#include <cstdint>

#include "rudder/ops/args.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// A token keeps c, of `rank` elements, and the rotated part of its key, of `rope_dim`, which all
// heads share. Of head h the key is (K_h c, rotated part) and the value V_h c, with K_h [nope_dim,
// rank] and V_h [value_dim, rank].
struct LatentShape {
  int32_t num_heads = 0;
  int32_t nope_dim = 0;  // elements of a head's key that do not turn
  int32_t rope_dim = 0;
  int32_t value_dim = 0;
  int32_t rank = 0;

  int64_t query_dim() const { return int64_t{nope_dim} + rope_dim; }
  int64_t row() const { return int64_t{rank} + rope_dim; }  // that is kept of a token
};

// Makes the row that the cache keeps of a token, and queries that read such rows as they are:
//   row = (norm(latent_c), rotate(latent_r));  q_out_h = (K_h^T q_h,nope, rotate(q_h,rope)) * scale
// so that q_out_h . row = q_h . (the key of head h). Sums are in double, rounded once.
struct LatentPrepArgs {
  LatentShape shape;
  View q;                            // [T, num_heads * query_dim()] act; a head's rope part is last
  View latent;                       // [T, row()] act: c before its norm, then what turns
  const LinearWeight* up = nullptr;  // [num_heads * (nope_dim + value_dim), rank]: K_h, V_h by head
  NormSpec norm;                     // of c, [rank]
  View rope;                // [rope_rows, 2, rope_dim / 2] f32 (QkvPrepArgs); empty: no turn
  View rope_row;            // [T] i32
  bool neighbours = false;  // pairs that turn are neighbours, else they pair halves
  View q_scale = {};        // [rope_rows] f32 (QkvPrepArgs); empty: 1
  View kv_slot;             // [T] i32; -1 = do not write
  KvLayer kv;               // of one part and one head, as wide as row()
  View q_out;               // [T, num_heads * row()] act: q of attention() over `kv`
};

// out_h = V_h read_h of what attention() over rows read: the first `rank` elements of each head.
struct LatentValuesArgs {
  LatentShape shape;
  View read;                         // [T, num_heads * row()] act
  const LinearWeight* up = nullptr;  // of LatentPrepArgs
  View out;                          // [T, num_heads * value_dim] act
};

}  // namespace rudder::ops
