// StepLayout: where the parts of a packed step lie in its buffer, in bytes from the start. Part of
// step_buffers.h, on the executor's worker thread. Pure functions.
#pragma once

#include <cstdint>

#include "rudder/exec/pack.h"
#include "rudder/ops/adapter_batch.h"

namespace rudder::exec {

// Every part starts on a 64-byte line.
inline int64_t aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

template <typename T>
int64_t part_bytes(int64_t count) {
  return aligned(count * static_cast<int64_t>(sizeof(T)));
}

// What is fixed by the step's counts comes first, so that a captured step finds all that it reads
// at the same addresses; lists are as long as they are, and what begin_step alone reads follows
// them.
struct StepLayout {
  int64_t q_begin = 0;
  int64_t kv_len = 0;
  int64_t table_row = 0;
  int64_t state = 0;
  int64_t num_draft = 0;
  int64_t ids = 0;
  int64_t positions = 0;
  int64_t kv_slot = 0;
  int64_t ancestors = 0;
  int64_t adapters = 0;
  int64_t taps = 0;
  int64_t logits_rows = 0;
  int64_t rows_taps = 0;
  int64_t sample_rows = 0;
  int64_t feedback_rows = 0;
  int64_t goes_on_rows = 0;
  int64_t rows_adapters = 0;
  int64_t lists = 0;
};

// Of an ops::AdapterBatch of `count` rows: its arrays, one behind another.
inline int64_t adapter_batch_bytes(int64_t count) {
  return 2 * part_bytes<int32_t>(count) + part_bytes<ops::AdapterGroup>(count);
}

// Arrays of ops::TapBatch, one behind another.
inline constexpr int64_t kTapArrays = 6;

// What the parts that not every step has are as long as.
struct RareParts {
  int64_t states = 0;
  int64_t feedback_rows = 0;
  int64_t goes_on_rows = 0;
  int64_t ancestors = 0;
  bool adapters = false;
};

StepLayout layout_of(int64_t num_tokens, int64_t num_seqs, int64_t num_sampled, int64_t num_groups,
                     bool has_taps, const RareParts& rare);
StepLayout layout_of(const PackedStep& packed);

}  // namespace rudder::exec
