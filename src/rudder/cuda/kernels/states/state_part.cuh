// One sequence of a step, as an op with a state finds it. Included by .cu files only.
#pragma once

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/states/states.h"

namespace rudder::cuda {

struct StatePart {
  int32_t begin = 0;  // of its tokens in the step
  int32_t count = 0;
  int32_t position = 0;         // of the first
  int32_t accepted = 0;         // kept rows that the state is moved over first
  bool has_drafts = false;      // the state stays in front of the tokens
  uint8_t* of_pool = nullptr;   // null: padding
  const float* kept = nullptr;  // the first row

  __device__ float* state() const { return reinterpret_cast<float*>(of_pool + ops::kStateLine); }
};

__device__ inline StatePart load_part(const StateParams& p, int seq) {
  StatePart part;
  part.begin = p.q_begin[seq];
  part.count = p.q_begin[seq + 1] - part.begin;
  const int32_t index = p.state[seq];
  if (index < 0 || part.count <= 0) return part;
  part.of_pool = p.pool + index * p.pool_stride;
  part.position = p.positions[part.begin];
  if (p.kept == nullptr) return part;
  part.has_drafts = p.num_draft[seq] > 0;
  part.kept = p.kept + p.table_row[seq] * p.slot_stride;
  if (part.position > 0) {
    const int32_t behind = part.position - *reinterpret_cast<const int32_t*>(part.of_pool);
    part.accepted = max(0, min(behind, p.kept_rows));
  }
  return part;
}

// Where no drafts are taken nobody else reads the number: one thread notes it at once.
__device__ inline void note_if_alone(const StateParams& p, const StatePart& part) {
  if (p.kept != nullptr || part.of_pool == nullptr) return;
  *reinterpret_cast<int32_t*>(part.of_pool) = part.position + part.count;
}

// With no step that one kernel might fuse and another not, as all that is rounded here.
__device__ inline float sigmoid(float x) {
  return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
}

}  // namespace rudder::cuda
