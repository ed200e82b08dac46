// The ops of a residual of several rows (ops/stream_args.h has the formulas) on bf16 rows. Called
// by StreamOps of this room, on the thread that owns the stream.
//
// Sums are in fp32, in an order that the widths and the numbers of streams alone decide: a row has
// the same bits in any company. Numbers of streams are made in fp32 and never rounded further.
//
// connect_streams is what steps are full of: one launch does a write and the read behind it.
// - Four streams of a width of whole runs of 8 (connect_four.cu): a cluster of kStreamCluster
//   blocks has up to 8 rows, and a block of it a slice of every stream's columns. The write's map
//   comes to shared memory while the kernel in front ends. Blocks send their parts of the dots to
//   each other, once for the write's numbers and once for the read's, and make all numbers
//   themselves. Then each row comes together in a block, which norms it with the bits of
//   residual_norm. Floor at 64 rows of 4 x 4,096: rows are read and written once, 4.2 MB and 0.5 MB
//   of branches, 0.5 MB of what is read, and 1.6 MB of maps: 1.7 us at 4.0 TB/s; 25 M products in
//   fp32: 0.8 us of all multiprocessors.
// - Others (connect_any.cu): a block has a row.
//
// gate_streams gives a row to a cluster of 8 blocks, which read the gate's products for each row
// anew: 42 MB at 4 x 4,096 and 320. The other ops are one pass over their rows.
//
// Reference: cpu/stream_mixer.cpp, cpu/gate_streams.cpp; testing/reference_streams.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rudder/cuda/kernels/taps/taps.h"

namespace rudder::cuda {

inline constexpr int32_t kMostStreams = 16;  // but of a history of sums
inline constexpr int kStreamCluster = 16;

// ops::StreamMap; no fn: none.
struct StreamMapParams {
  const float* fn = nullptr;
  const float* base = nullptr;
  const float* scale = nullptr;
};

// The points of numbers that a write passes.
inline constexpr int kStreamPoints = 2;
enum StreamPoint : uint8_t { kPostPoint, kMixPoint };

// What is read as residual_norm makes it: an RMS norm of `out`, in bf16, or in fp8 with a scale.
struct StreamNormParams {
  const float* weight = nullptr;  // null: that is not asked for
  float eps = 0;
  bool rounds = false;  // as of ResidualNormParams
  void* out = nullptr;
  float* out_scale = nullptr;
};

struct ConnectStreamsParams {
  void* x = nullptr;            // [rows, streams * width] bf16
  const void* delta = nullptr;  // [rows, width] bf16; null: nothing is written
  StreamMapParams write;
  StreamMapParams read;
  float* pre = nullptr;     // [rows, streams], or one row for all
  bool pre_is_one = false;  // of a read alone
  void* out = nullptr;      // [rows, width] bf16; null: nothing is read
  int64_t rows = 0;
  int64_t width = 0;  // of a stream
  // ops::StreamRule.
  int32_t streams = 4;
  int32_t iterations = 0;
  float eps = 0;
  float norm_eps = 0;
  float magnitude = 1;
  float post_eps = 0;
  StreamNormParams norm;  // where takes_norm(), behind `out`
};
// Without taps every point is -1.
cudaError_t launch_connect_streams(const ConnectStreamsParams& params,
                                   const TapParams<kStreamPoints>& taps, cudaStream_t stream);
// Its two kernels; the first takes what takes_four() says, and may norm what is read.
bool takes_four(const ConnectStreamsParams& params);
bool takes_norm(const ConnectStreamsParams& params);
cudaError_t launch_connect_four(const ConnectStreamsParams& params,
                                const TapParams<kStreamPoints>& taps, cudaStream_t stream);
cudaError_t launch_connect_any(const ConnectStreamsParams& params,
                               const TapParams<kStreamPoints>& taps, cudaStream_t stream);

struct MixStreamsParams {
  void* x = nullptr;
  const void* delta = nullptr;
  const float* write = nullptr;
  const float* mix = nullptr;
  const float* read = nullptr;
  void* out = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int32_t streams = 1;
};
cudaError_t launch_mix_streams(const MixStreamsParams& params, cudaStream_t stream);

struct BlockReadParams {
  void* x = nullptr;
  int64_t stride = 0;  // of its rows
  const void* delta = nullptr;
  int32_t finished = -1;
  int32_t blocks = 0;
  const float* norm = nullptr;
  const float* query = nullptr;
  float eps = 0;
  float score_scale = 1;
  bool normed_values = false;
  void* out = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
};
inline constexpr int32_t kMostSums = 1024;
cudaError_t launch_block_read(const BlockReadParams& params, cudaStream_t stream);

struct ScaleAddParams {
  void* x = nullptr;
  const void* delta = nullptr;
  const float* gate = nullptr;  // [width], or one for all
  bool gate_is_one = false;
  float temperature = 1;
  float keep = 1;
  float add = 1;
  int64_t rows = 0;
  int64_t width = 0;
};
cudaError_t launch_scale_add(const ScaleAddParams& params, cudaStream_t stream);

// ops::StreamGate; what an op does not use is null.
struct StreamGateParams {
  const float* norm = nullptr;
  float eps = 0;
  const float* down = nullptr;
  const float* up = nullptr;
  const float* inject = nullptr;
};
inline constexpr int32_t kMostGateRank = 8192;
struct GateStreamsParams {
  void* x = nullptr;
  const void* delta = nullptr;
  StreamGateParams write;
  StreamGateParams read;
  void* out = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int32_t streams = 1;
  int32_t rank = 0;
};
cudaError_t launch_gate_streams(const GateStreamsParams& params, const TapParams<1>& taps,
                                cudaStream_t stream);

}  // namespace rudder::cuda
