// KvRows: a KV cache whose rows follow one another, [num_blocks, parts (k, v, or both in one),
// num_kv_heads, block_size, head_dim] of any ops::KvFormat: what plain_attention.h works on, and
// how both CPU backends keep codes and rows of one part. A view; any thread, each slot by one at a
// time.
#pragma once

#include <cstdint>

#include "rudder/ops/args.h"

namespace rudder::cpu {

class KvRows {
 public:
  explicit KvRows(const ops::KvLayer& kv);

  // Of a token's head: k (part 0) or v (1), which are the same row where there is one part.
  void write(int64_t slot, int part, int64_t head, const float* from) const;
  // As it is stored, without scales; `room` [head_dim] is for a row that is not stored as float32.
  const float* row(int64_t slot, int part, int64_t head, float* room) const;
  // What was written, as near as the format has it: [head_dim].
  void read(int64_t slot, int part, int64_t head, float* out) const;
  // All parts and heads.
  void move(int64_t from, int64_t to) const;

  // What a stored row is multiplied with: the scale of all its tokens, and that of its own.
  float head_scale(int part, int64_t head) const;
  float token_scale(int64_t slot, int part, int64_t head) const;

 private:
  int stored(int part) const { return kv_.parts == 1 ? 0 : part; }
  int64_t index(int64_t slot, int part, int64_t head) const;  // of its first number
  float* scale_at(int64_t slot, int part, int64_t head) const;

  const ops::KvLayer& kv_;
};

}  // namespace rudder::cpu
