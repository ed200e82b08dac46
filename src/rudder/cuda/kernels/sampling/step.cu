#include "rudder/cuda/kernels/sampling/step.h"

#include "rudder/cuda/kernels/device_vec.cuh"
#include "rudder/cuda/kernels/launch.h"
#include "rudder/cuda/kernels/sampling/sample.h"

namespace rudder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kClearTokens = 4096;  // that a block clears of a slot's counts

__device__ void clear_bytes(void* begin_of, int64_t bytes) {
  auto* begin = static_cast<uint8_t*>(begin_of);
  uint8_t* const end = begin + bytes;
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const int64_t head = min(bytes, static_cast<int64_t>((16 - address % 16) % 16));
  const int64_t middle = (bytes - head) / 16;
  for (int64_t i = threadIdx.x; i < head; i += kThreads) begin[i] = 0;
  for (int64_t i = threadIdx.x; i < middle; i += kThreads) {
    reinterpret_cast<uint4*>(begin + head)[i] = make_uint4(0, 0, 0, 0);
  }
  uint8_t* const tail = begin + head + middle * 16;
  for (int64_t i = threadIdx.x; tail + i < end; i += kThreads) tail[i] = 0;
}

// A slot along x, a part of its counts along y.
__global__ void __launch_bounds__(kThreads) open_slots_kernel(const BeginStepParams p) {
  dependency_wait();
  dependency_trigger();
  const int32_t* entry = p.opened + int64_t{blockIdx.x} * 2;
  const int64_t slot = entry[0];
  if (blockIdx.y == 0 && threadIdx.x == 0) {
    p.state.ended[slot] = 0;
    p.state.carry[slot] = -1;
  }
  if (entry[1] == 0) return;
  const int64_t vocab = p.state.vocab;
  const int64_t begin = blockIdx.y * kClearTokens;
  const int64_t count = min(kClearTokens, vocab - begin);
  if (count <= 0) return;
  clear_bytes(p.state.output_count + slot * vocab + begin, count * int64_t{sizeof(int32_t)});
  clear_bytes(p.state.prompt_seen + slot * vocab + begin, count);
}

__device__ void count_token(const SlotStateParams& state, const int32_t* entry) {
  const int64_t slot = entry[0];
  const int64_t token = entry[1];
  if (token < 0 || token >= state.vocab) return;
  if (entry[2] != 0) {
    state.prompt_seen[slot * state.vocab + token] = 1;
  } else {
    atomicAdd(state.output_count + slot * state.vocab + token, 1);
  }
}

__device__ void keep_token(const SlotStateParams& state, const int32_t* entry) {
  if (entry[1] < 0 || entry[1] >= state.max_len) return;
  state.history[entry[0] * state.max_len + entry[1]] = entry[2];
}

// The n-th token of a slot's guess; below 0: it has none.
__device__ int32_t guessed(const SlotStateParams& state, int64_t slot, int32_t n) {
  return n < state.most_guessed ? state.guess[slot * state.most_guessed + n] : -1;
}

__device__ void resolve_id(const BeginStepParams& p, int64_t t) {
  const int32_t id = p.ids[t];
  if (id >= 0) return;
  const int64_t slot = -1 - int64_t{id};
  p.ids[t] = max(p.state.carry[slot], 0);
  if (p.state.ended[slot] == 0) return;
  for (int32_t group = 0; group < p.num_groups; ++group) p.kv_slot[group * p.rows + t] = -1;
}

// The first of `rows`, which rise, that is not below `token`.
__device__ int64_t first_row_of(const PlacementParams& placement, int32_t token) {
  int64_t low = 0;
  int64_t high = placement.num_rows;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (placement.logits_rows[middle] < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Moves a sequence that begins with its slot's carry to where that stands; a warp has it.
__device__ void place_sequence(const BeginStepParams& p, int64_t seq, int lane) {
  const PlacementParams& placement = p.placement;
  const int32_t begin = placement.q_begin[seq];
  const int32_t end = placement.q_begin[seq + 1];
  if (begin == end || p.ids[begin] >= 0) return;
  const int64_t slot = -1 - int64_t{p.ids[begin]};
  const bool has_ended = p.state.ended[slot] != 0;
  const int32_t back = has_ended ? 0 : placement.positions[begin] - p.state.carry_position[slot];
  if (back < 0) __trap();  // the plan is behind its slot
  const int32_t first = placement.positions[begin] - back;
  __syncwarp();  // all lanes have read what is written now
  if (lane == 0) {
    p.ids[begin] = max(p.state.carry[slot], 0);
    placement.kv_len[seq] -= back;
  }
  for (int64_t t = begin + lane; t < end; t += 32) {
    const int32_t position = placement.positions[t] - back;
    placement.positions[t] = position;
    if (t > begin && p.ids[t] < 0) {
      p.ids[t] = max(guessed(p.state, slot, static_cast<int32_t>(t) - begin - 1), 0);
    }
    if (placement.since_prompt != nullptr) placement.since_prompt[t] -= back;
    for (int32_t group = 0; group < p.num_groups; ++group) {
      int32_t kv_slot = -1;
      if (!has_ended) {
        const int64_t table_row = int64_t{group} * (placement.num_slots + 1) + slot;
        const int32_t offset = first + static_cast<int32_t>(t) - begin;  // as they lie: of a tree
        const int32_t block =
            p.state.block_table[table_row * p.state.max_blocks + offset / placement.block_size];
        kv_slot = block * placement.block_size + offset % placement.block_size;
      }
      p.kv_slot[group * p.rows + t] = kv_slot;
    }
  }
  for (int64_t r = first_row_of(placement, begin) + lane; r < placement.num_rows; r += 32) {
    if (placement.logits_rows[r] >= end) break;
    ops::SampleRow& row = placement.sample_rows[r];
    row.position -= back;
    if (row.draft == ops::kNoDraft) {
      const int32_t token = guessed(p.state, slot, placement.logits_rows[r] - begin);
      if (token >= 0) row.draft = token;
    }
    if (placement.rows_since_prompt != nullptr) placement.rows_since_prompt[r] -= back;
  }
}

__global__ void __launch_bounds__(kThreads) place_sequences_kernel(const BeginStepParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t seq = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (seq < p.placement.num_seqs) place_sequence(p, seq, static_cast<int>(threadIdx.x) % 32);
}

// A token is a block's.
__device__ void gather_taps(const GatherTapsParams& p, int64_t token) {
  const ops::TapEntry* from = p.points + int64_t{p.row[token]} * p.num_points;
  ops::TapEntry* to = p.entries + token * p.num_points;
  const int64_t set = p.capture_set[token];
  const int2* offsets = reinterpret_cast<const int2*>(p.captures) + set * p.num_points;
  for (int i = static_cast<int>(threadIdx.x); i < p.num_points; i += kThreads) {
    int4 entry = reinterpret_cast<const int4*>(from)[i];
    if (set >= 0 && (offsets[i].x >= 0 || offsets[i].y >= 0)) entry.w |= ops::TapEntry::kCaptured;
    reinterpret_cast<int4*>(to)[i] = entry;
  }
}

// The first blocks gather taps. Of the others a thread has an entry; the lists touch different
// memory.
__global__ void __launch_bounds__(kThreads) begin_step_kernel(const BeginStepParams p) {
  dependency_wait();
  dependency_trigger();
  int64_t block = blockIdx.x;
  for (const GatherTapsParams& taps : p.taps) {
    if (block < taps.tokens) {
      gather_taps(taps, block);
      return;
    }
    block -= taps.tokens;
  }
  int64_t i = block * kThreads + threadIdx.x;
  const int64_t num_ids = p.placement.num_seqs > 0 ? 0 : p.rows;
  if (i < num_ids) {
    resolve_id(p, i);
    return;
  }
  i -= num_ids;
  if (i < p.num_blocks) {
    const int32_t* entry = p.blocks + i * 3;
    p.state.block_table[entry[0] * p.state.max_blocks + entry[1]] = entry[2];
    return;
  }
  i -= p.num_blocks;
  if (i < p.num_history) {
    count_token(p.state, p.history + i * 3);
    return;
  }
  i -= p.num_history;
  if (i < p.num_kept) keep_token(p.state, p.kept + i * 3);
}

__global__ void __launch_bounds__(kThreads) advance_step_kernel(const AdvanceStepParams p) {
  dependency_wait();
  dependency_trigger();
  const int64_t r = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (r >= p.rows) return;
  ops::SampleRow& row = p.sample_rows[r];
  const int64_t slot = row.slot;
  if (slot >= p.num_slots || p.state.ended[slot] != 0) {
    for (int32_t group = 0; group < p.num_groups; ++group) p.kv_slot[group * p.rows + r] = -1;
    return;
  }
  const int32_t position = p.positions[r] + 1;
  p.ids[r] = max(p.state.carry[slot], 0);
  p.positions[r] = position;
  for (int32_t group = 0; group < p.num_groups; ++group) {
    const int64_t table_row = int64_t{group} * (p.num_slots + 1) + slot;
    const int32_t block =
        p.state.block_table[table_row * p.state.max_blocks + position / p.block_size];
    p.kv_slot[group * p.rows + r] = block * p.block_size + position % p.block_size;
  }
  p.kv_len[r] += 1;
  if (p.since_prompt != nullptr) p.since_prompt[r] += 1;
  row.position += 1;
}

}  // namespace

cudaError_t launch_advance_step(const AdvanceStepParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.rows + kThreads - 1) / kThreads));
  return launch_pdl(advance_step_kernel, grid, dim3(kThreads), 0, stream, p);
}

cudaError_t launch_begin_step(const BeginStepParams& p, cudaStream_t stream) {
  if (p.num_opened > 0) {
    const int64_t parts = (p.state.vocab + kClearTokens - 1) / kClearTokens;
    const dim3 grid(static_cast<unsigned>(p.num_opened),
                    static_cast<unsigned>(max(parts, int64_t{1})));
    const cudaError_t error = launch_pdl(open_slots_kernel, grid, dim3(kThreads), 0, stream, p);
    if (error != cudaSuccess) return error;
  }
  const bool has_placement = p.placement.num_seqs > 0;
  const int64_t entries = (has_placement ? 0 : p.rows) + p.num_blocks + p.num_history + p.num_kept;
  const int64_t tapped = p.taps[0].tokens + p.taps[1].tokens;
  for (const GatherTapsParams& taps : p.taps) {
    if (taps.tokens == 0) continue;
    if (!is_aligned(taps.points) || !is_aligned(taps.entries) || !is_aligned(taps.captures)) {
      return cudaErrorInvalidValue;
    }
  }
  if (entries + tapped > 0) {
    const dim3 grid(static_cast<unsigned>(tapped + (entries + kThreads - 1) / kThreads));
    const cudaError_t error = launch_pdl(begin_step_kernel, grid, dim3(kThreads), 0, stream, p);
    if (error != cudaSuccess) return error;
  }
  if (!has_placement) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.placement.num_seqs * 32 + kThreads - 1) / kThreads));
  return launch_pdl(place_sequences_kernel, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace rudder::cuda
