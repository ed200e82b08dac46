#include "rudder/cuda/kernels/experts/open_experts.h"

#include <algorithm>

#include "rudder/cuda/kernels/experts/gate_experts.cuh"
#include "rudder/cuda/kernels/experts/open_sums.cuh"
#include "rudder/cuda/kernels/experts/route.cuh"
#include "rudder/cuda/kernels/launch.h"

namespace rudder::cuda {
namespace {

constexpr int kOpenWarps = 4;   // which share the inputs of a block's rows
constexpr int kCloseWarps = 8;  // which share the experts, or an expert's inputs
// Blocks on a multiprocessor, and pieces that a lane asks for before it multiplies: as many as
// there are registers for. Instructions of e4m3 take some beside theirs, in which they make f16 of
// it; so do codes, of which bf16 is made.
constexpr int kOpenBlocks = 6;
template <ExpertForm kForm>
constexpr int kOpenAhead = kForm == ExpertForm::kE4m3   ? 2
                           : kForm == ExpertForm::kE2m1 ? 3
                                                        : 4;
template <ExpertForm kForm, int kBlocks>
constexpr int kCloseAhead = kForm == ExpertForm::kE4m3&& kBlocks > 1 ? 4 : 6;
// Runs of a row that a lane of close holds: of 768 inputs and of 512, all.
template <int kBlocks>
constexpr int kHeldRuns = kBlocks > 1 ? 1 : 3;
template <int kBlocks>
constexpr int kHeldShared = kBlocks > 1 ? 1 : 2;

// Grid: some tiles of eight columns of y, by the chosen experts, behind which is the shared one.
// Every block chooses as far as its own expert; of the last one the first writes the choice.
template <ExpertForm kForm, int kEach>
__global__ void __launch_bounds__(kOpenWarps * 32, kOpenBlocks)
    open_kernel(const __grid_constant__ OpenExpertsParams p) {
  extern __shared__ float of_router[];
  __shared__ float sums[kOpenWarps][kRows];
  __shared__ int32_t chosen;
  constexpr int kColumns = kRows / 2;
  dependency_wait();
  dependency_trigger();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int k = p.route.k;
  const auto slot = static_cast<int>(blockIdx.y);
  const bool is_shared = slot == k;
  const OpenWeight& product = is_shared ? p.shared : p.product;
  const auto width = static_cast<int32_t>(product.out / 2);
  const auto tiles = width / kColumns;
  auto tile = static_cast<int32_t>(blockIdx.x);
  if (tile >= tiles) return;
  Router<kEach> router(p.route, of_router, of_router + p.route.experts);
  int32_t choice = 0;
  if (is_shared) {
    if (threadIdx.x == 0) chosen = 0;
  } else if (p.route.logits == nullptr) {
    if (threadIdx.x == 0) chosen = p.route.chosen[slot];
  } else if (warp == 0) {
    const auto* const logits = static_cast<const Bf16*>(p.route.logits);
    choice = router.choose(slot + 1, [&](int e) { return __bfloat162float(logits[e]); });
    if (lane == slot) chosen = choice;
  }
  __syncthreads();
  const int32_t expert = chosen;
  const auto r = static_cast<int>(threadIdx.x) % kColumns;
  TokenSums<kForm, kOpenAhead<kForm>> own;
  own.begin(product, {expert, tile, tile * kColumns, width + tile * kColumns}, warp, kOpenWarps);
  if (tile == 0 && slot == k - 1 && warp == 0 && p.route.logits != nullptr) {
    router.write(0, choice);
    if (lane == 0) count_hits(p.route, k);
  }
  for (; tile < tiles; tile += static_cast<int32_t>(gridDim.x)) {
    const int64_t row = expert * product.out + tile * kColumns + r;
    const RowTerms of_gate = terms_of<kForm>(product, row);
    const RowTerms of_up = terms_of<kForm>(product, row + width);
    own.run(static_cast<const char*>(p.x));
    if (lane % 4 == 0) {
      sums[warp][lane / 4] = own.low();
      sums[warp][lane / 4 + kColumns] = own.high();
    }
    const int32_t next = tile + static_cast<int32_t>(gridDim.x);
    if (next < tiles) {
      own.begin(product, {expert, next, next * kColumns, width + next * kColumns}, warp,
                kOpenWarps);
    }
    __syncthreads();
    if (threadIdx.x < kColumns) {
      float gate = 0;
      float up = 0;
#pragma unroll
      for (int w = 0; w < kOpenWarps; ++w) {
        gate += sums[w][r];
        up += sums[w][r + kColumns];
      }
      const float x_scale = kForm == ExpertForm::kE4m3 ? p.x_scale[0] : 1.0f;
      auto* const y =
          is_shared ? static_cast<Bf16*>(p.shared_y) : static_cast<Bf16*>(p.y) + slot * width;
      y[tile * kColumns + r] =
          __float2bfloat16_rn(gated(of_gate.of(gate, x_scale), of_up.of(up, x_scale),
                                    is_shared ? p.shared_activation : p.activation));
    }
    __syncthreads();  // they have been read
  }
}

// A row of bf16 that a warp puts into shared memory as e4m3. Its first runs are asked for ahead.
template <int kHeld>
class QuantisedRow {
 public:
  __device__ void begin(const Bf16* row, int64_t width) {
    row_ = row;
    width_ = static_cast<int>(width);
#pragma unroll
    for (int u = 0; u < kHeld; ++u) held_[u] = load_run<true>(row_ + at(u), width_ - at(u));
  }

  // Its scale.
  __device__ float run(char* to) const {
    float most = 0;
#pragma unroll
    for (const Packed& run : held_) most = fmaxf(most, most_of(run));
    for (int i = at(kHeld); i < width_; i += 32 * kRun) {
      most = fmaxf(most, most_of(load_run<true>(row_ + i, kRun)));
    }
    const Fp8RowScale scale(warp_max(most));
    auto* const stored = reinterpret_cast<uint8_t*>(to);
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      store_run_fp8<true>(stored + at(u), width_ - at(u), scale.stored(unpack(held_[u])));
    }
    for (int i = at(kHeld); i < width_; i += 32 * kRun) {
      store_run_fp8<true>(stored + i, kRun, scale.stored(unpack(load_run<true>(row_ + i, kRun))));
    }
    __syncwarp();
    return scale.value();
  }

 private:
  __device__ static int at(int run) {
    return (static_cast<int>(threadIdx.x) % 32 + 32 * run) * kRun;
  }
  __device__ static float most_of(const Packed& run) {
    const Floats x = unpack(run);
    float most = 0;
#pragma unroll
    for (const float value : x.v) most = fmaxf(most, fabsf(value));
    return most;
  }

  const Bf16* row_;
  int width_;
  Packed held_[kHeld];
};

// What the experts of a token make of a tile of outputs.
struct Tile {
  float sums[kMostChosen][kRows];  // of a unit: an expert's, or a part of its inputs'
  RowTerms terms[kMostChosen][kRows];
  float shared[kCloseWarps][kRows];  // of the parts of the shared expert's inputs
};
// And what is not of its outputs.
struct Token {
  float weights[kMostChosen];
  float x_scales[kMostChosen];
  float shared_x_scale;
  float gate[kCloseWarps];  // parts of the shared expert's
};
static_assert(kMostChosen >= kCloseWarps);

// A warp's part of a row of W times x, both bf16.
__device__ float dot_part(const void* weight, const void* x, int64_t in) {
  float sum = 0;
  for (int64_t i = int64_t{threadIdx.x} * kRun; i < in; i += kCloseWarps * 32 * kRun) {
    const Floats a = unpack(load_run<true>(static_cast<const Bf16*>(weight) + i, kRun));
    const Floats b = unpack(load_run<true>(static_cast<const Bf16*>(x) + i, kRun));
#pragma unroll
    for (int j = 0; j < kRun; ++j) sum = fmaf(a.v[j], b.v[j], sum);
  }
  return warp_sum(sum);
}

// kJoins: the shared expert runs along. kBlocks: on a multiprocessor.
template <ExpertForm kForm, bool kJoins, int kBlocks>
class Close {
 public:
  // `quantised`: of e4m3, for each warp a row of an expert, and the shared one's.
  __device__ Close(const CloseExpertsParams& p, char* quantised, Tile& tile, Token& token)
      : p_(p),
        quantised_(quantised),
        tile_(tile),
        token_(token),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        parts_(max(1, kCloseWarps / p.k)) {}

  // All that comes from memory is asked for before any of it is used: no kernel writes the shared
  // W, so it is on its way before open has ended.
  __device__ void run() {
    if constexpr (kJoins) begin_shared();
    dependency_wait();
    dependency_trigger();
    const int units = p_.k * parts_;
    if constexpr (kIsFp8 && kJoins) {
      shared_row_.begin(static_cast<const Bf16*>(p_.shared_x), p_.shared_weight.in);
    }
    if (warp_ < units) begin(warp_);
    begin_token();
    for (int unit = warp_; unit < units; unit += kCloseWarps) {
      if (unit != warp_) begin(unit);
      add_unit(unit);
    }
    if constexpr (kJoins) add_shared();
    __syncthreads();
    if (threadIdx.x < kRows) finish(static_cast<int>(threadIdx.x));
  }

 private:
  static constexpr bool kIsFp8 = kForm == ExpertForm::kE4m3;

  // A unit is an expert, or a part of its inputs.
  __device__ int slot_of(int unit) const { return unit / parts_; }
  __device__ int part_of(int unit) const { return unit - slot_of(unit) * parts_; }
  // Of the tile, of an expert.
  __device__ FewRows rows_of(int32_t expert) const {
    const auto tile = static_cast<int32_t>(blockIdx.x);
    return {expert, tile, tile * kRows, tile * kRows + kRows / 2};
  }
  __device__ const Bf16* row_of(int slot) const {
    return static_cast<const Bf16*>(p_.x) + slot * p_.product.in;
  }

  __device__ void begin(int unit) {
    const int slot = slot_of(unit);
    if constexpr (kIsFp8) row_.begin(row_of(slot), p_.product.in);
    const int32_t expert = p_.chosen[slot];
    own_.begin(p_.product, rows_of(expert), part_of(unit), parts_);
    if (!has_terms(unit)) return;
    terms_ = terms_of<kForm>(p_.product, expert * p_.product.out + blockIdx.x * kRows + lane_);
  }
  __device__ void begin_shared() {
    shared_.begin(p_.shared_weight, rows_of(0), warp_, kCloseWarps);
    if (threadIdx.x < kRows) {
      shared_terms_ = terms_of<kForm>(p_.shared_weight, blockIdx.x * kRows + threadIdx.x);
    }
  }
  // Whether the lane has those of a row of the unit's expert.
  __device__ bool has_terms(int unit) const { return part_of(unit) == 0 && lane_ < kRows; }

  // What is not of an expert.
  __device__ void begin_token() {
    if (static_cast<int>(threadIdx.x) < p_.k) {
      token_.weights[threadIdx.x] = p_.weights[threadIdx.x];
    }
    if (kJoins && p_.gate_weight != nullptr) {
      const float part = dot_part(p_.gate_weight, p_.gate_x, p_.gate_in);
      if (lane_ == 0) token_.gate[warp_] = part;
    }
  }

  __device__ void add_unit(int unit) {
    const int slot = slot_of(unit);
    if constexpr (kIsFp8) {
      char* const row = quantised_ + warp_ * p_.product.in;
      const float scale = row_.run(row);
      if (lane_ == 0) token_.x_scales[slot] = scale;
      own_.run(row);
    } else {
      own_.run(reinterpret_cast<const char*>(row_of(slot)));
    }
    if (has_terms(unit)) tile_.terms[slot][lane_] = terms_;
    if (lane_ % 4 != 0) return;
    tile_.sums[unit][lane_ / 4] = own_.low();
    tile_.sums[unit][lane_ / 4 + kRows / 2] = own_.high();
  }

  __device__ void add_shared() {
    if constexpr (kIsFp8) {
      char* const row = quantised_ + kCloseWarps * p_.product.in + warp_ * p_.shared_weight.in;
      const float scale = shared_row_.run(row);
      if (threadIdx.x == 0) token_.shared_x_scale = scale;
      shared_.run(row);
    } else {
      shared_.run(static_cast<const char*>(p_.shared_x));
    }
    if (lane_ % 4 != 0) return;
    tile_.shared[warp_][lane_ / 4] = shared_.low();
    tile_.shared[warp_][lane_ / 4 + kRows / 2] = shared_.high();
  }

  // Of output r of the tile.
  __device__ void finish(int r) const {
    const auto output = static_cast<int32_t>(blockIdx.x) * kRows + r;
    const float shared = shared_of(output);  // what it reads is on its way
    float sum = 0;
    for (int slot = 0; slot < p_.k; ++slot) {
      float made = 0;
      for (int part = 0; part < parts_; ++part) made += tile_.sums[slot * parts_ + part][r];
      const float x_scale = kIsFp8 ? token_.x_scales[slot] : 1.0f;
      made = tile_.terms[slot][r].of(made, x_scale);
      sum = fmaf(token_.weights[slot], __bfloat162float(__float2bfloat16_rn(made)), sum);
    }
    static_cast<Bf16*>(p_.y)[output] = __float2bfloat16_rn(sum + shared);
  }

  // What the shared expert adds to an output; 0 without one.
  __device__ float shared_of(int32_t output) const {
    if constexpr (kJoins) return joined(output);
    if (p_.shared == nullptr) return 0;
    const auto* const gate = static_cast<const Bf16*>(p_.shared_gate);
    const float share = gate == nullptr ? 1.0f : sigmoid(__bfloat162float(*gate));
    return share * __bfloat162float(static_cast<const Bf16*>(p_.shared)[output]);
  }
  __device__ float joined(int32_t output) const {
    float made = 0;
    float gate = 0;
#pragma unroll
    for (int w = 0; w < kCloseWarps; ++w) made += tile_.shared[w][output % kRows];
    made = shared_terms_.of(made, kIsFp8 ? token_.shared_x_scale : 1.0f);
    made = __bfloat162float(__float2bfloat16_rn(made));
    if (p_.gate_weight == nullptr) return made;
#pragma unroll
    for (const float part : token_.gate) gate += part;
    return sigmoid(__bfloat162float(__float2bfloat16_rn(gate))) * made;
  }

  const CloseExpertsParams& p_;
  char* const quantised_;
  Tile& tile_;
  Token& token_;
  const int warp_;
  const int lane_;
  const int parts_;  // of an expert's inputs
  TokenSums<kForm, kCloseAhead<kForm, kBlocks>> own_;
  TokenSums<kForm, 1> shared_;
  RowTerms terms_;         // of the unit
  RowTerms shared_terms_;  // of the thread's output
  QuantisedRow<kHeldRuns<kBlocks>> row_;
  QuantisedRow<kHeldShared<kBlocks>> shared_row_;
};

// Grid: tiles of 16 outputs.
template <ExpertForm kForm, bool kJoins, int kBlocks>
__global__ void __launch_bounds__(kCloseWarps * 32, kBlocks)
    close_kernel(const __grid_constant__ CloseExpertsParams p) {
  extern __shared__ __align__(16) char quantised[];
  __shared__ Tile tile;
  __shared__ Token token;
  Close<kForm, kJoins, kBlocks>(p, quantised, tile, token).run();
}

// Blocks in a row of the grid, of as many rows, so that all are on a multiprocessor at once, each
// with as many tiles as the others but for one.
unsigned blocks_of(int64_t tiles, int64_t rows, int64_t most) {
  const int64_t turns = (tiles * rows + most - 1) / most;
  return static_cast<unsigned>((tiles + turns - 1) / turns);
}

template <ExpertForm kForm>
cudaError_t launch_open(const OpenExpertsParams& p, cudaStream_t stream) {
  const auto kernel = p.route.experts <= 128   ? open_kernel<kForm, 4>
                      : p.route.experts <= 256 ? open_kernel<kForm, 8>
                                               : open_kernel<kForm, kMostExperts / 32>;
  const bool has_shared = p.shared.weight != nullptr;
  const int64_t tiles = std::max(p.product.out, has_shared ? p.shared.out : 0) / kRows;
  const int64_t rows = p.route.k + (has_shared ? 1 : 0);
  const dim3 grid(blocks_of(tiles, rows, int64_t{p.num_sms} * kOpenBlocks),
                  static_cast<unsigned>(rows));
  const size_t bytes =
      p.route.logits == nullptr ? 0 : sizeof(float) * 2 * static_cast<size_t>(p.route.experts);
  return launch_pdl(kernel, grid, dim3(kOpenWarps * 32), bytes, stream, p);
}

template <ExpertForm kForm, int kBlocks>
cudaError_t launch_close_blocks(const CloseExpertsParams& p, cudaStream_t stream) {
  const int64_t shared_in = p.shared_x == nullptr ? 0 : p.shared_weight.in;
  const int64_t bytes = kForm == ExpertForm::kE4m3 ? kCloseWarps * (p.product.in + shared_in) : 0;
  const auto kernel = p.shared_x == nullptr ? close_kernel<kForm, false, kBlocks>
                                            : close_kernel<kForm, true, kBlocks>;
  return launch_pdl(kernel, dim3(static_cast<unsigned>(p.product.out / kRows)),
                    dim3(kCloseWarps * 32), static_cast<size_t>(bytes), stream, p);
}

template <ExpertForm kForm>
cudaError_t launch_close(const CloseExpertsParams& p, cudaStream_t stream) {
  return p.product.out / kRows <= p.num_sms ? launch_close_blocks<kForm, 1>(p, stream)
                                            : launch_close_blocks<kForm, 2>(p, stream);
}

}  // namespace

cudaError_t launch_open_experts(const OpenExpertsParams& p, cudaStream_t stream) {
  if (p.route.tokens != 1 || !is_routable(p.route)) return cudaErrorInvalidValue;
  switch (p.product.form) {
    case ExpertForm::kBf16:
      return launch_open<ExpertForm::kBf16>(p, stream);
    case ExpertForm::kE4m3:
      return launch_open<ExpertForm::kE4m3>(p, stream);
    case ExpertForm::kE2m1:
      return launch_open<ExpertForm::kE2m1>(p, stream);
    case ExpertForm::kLow:
      break;
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_close_experts(const CloseExpertsParams& p, cudaStream_t stream) {
  if (p.k < 1 || p.k > kMostChosen) return cudaErrorInvalidValue;
  switch (p.product.form) {
    case ExpertForm::kBf16:
      return launch_close<ExpertForm::kBf16>(p, stream);
    case ExpertForm::kE4m3:
      return launch_close<ExpertForm::kE4m3>(p, stream);
    case ExpertForm::kE2m1:
      return launch_close<ExpertForm::kE2m1>(p, stream);
    case ExpertForm::kLow:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace rudder::cuda
