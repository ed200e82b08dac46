// Times products that give an element the same bits in any number of rows beside the fastest that
// there are, and checks their bits and values: a program of its own, so that it runs on a bare
// machine with a GPU. A figure is of a captured graph of products with small kernels between them,
// as the Tuner measures; weights take turns, so that none is in the L2 cache.
// product_bench [bf16|fp8] [all]
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/kernels/measure/pause.h"
#include "rudder/cuda/kernels/products/ring_product.h"
#include "rudder/cuda/kernels/products/tile_product.h"
#include "rudder/cuda/kernels/rows/convert.h"
#include "rudder/cuda/shape_kernels.h"

namespace rudder::cuda {
namespace {

using tensor::DType;

constexpr int64_t kTimedTokens = 8192;
constexpr int64_t kMostIn = 18944;
constexpr int64_t kMostWeightBytes = int64_t{1100} << 20;

struct TimedProduct {
  const char* name;
  int64_t out;
  int64_t in;
  bool is_f32 = false;
};

struct Variant {
  std::string name;
  int32_t splits = 0;  // 0: of the library, or a GEMV
  bool is_guess = false;
  double microseconds = 0;
};

std::vector<uint8_t> random_bytes(size_t count, bool is_fp8) {
  std::vector<uint8_t> bytes(count);
  uint64_t state = 0x9E3779B97F4A7C15;
  const auto next = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 16;
  };
  if (is_fp8) {
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(next()) & 0xBF;  // below 1
    return bytes;
  }
  for (size_t i = 0; i + 1 < count; i += 2) {
    // Sums of uniform numbers, about normal.
    const uint64_t r = next();
    const float value =
        (static_cast<float>(r & 0xffff) + static_cast<float>(r >> 16 & 0xffff) - 65535.0f) /
        65536.0f;
    const auto bits = std::bit_cast<uint32_t>(value) >> 16;
    bytes[i] = static_cast<uint8_t>(bits);
    bytes[i + 1] = static_cast<uint8_t>(bits >> 8);
  }
  return bytes;
}

double stored_value(const uint8_t* data, size_t i, bool is_fp8) {
  if (!is_fp8) {
    return std::bit_cast<float>(static_cast<uint32_t>(data[2 * i] | data[2 * i + 1] << 8) << 16);
  }
  const uint8_t byte = data[i];
  const int exponent = byte >> 3 & 15;
  const double mantissa = byte & 7;
  const double value = exponent == 0 ? mantissa / 512 : std::ldexp(1 + mantissa / 8, exponent - 7);
  return (byte & 0x80) != 0 ? -value : value;
}

class Bench {
 public:
  explicit Bench(bool is_fp8)
      : is_fp8_(is_fp8),
        bytes_(random_bytes((size_t{16} << 20) + 13 * 16, is_fp8)),
        weights_(kMostWeightBytes + (kMostIn << 4)),
        x_(kTimedTokens * kMostIn * 2),
        y_(kTimedTokens * 37888 * 4),
        scales_(std::vector<float>(200'000, 0.37f)),
        workspace_(kWorkspaceBytes) {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    fill(weights_);
    fill(x_);
    std::vector<float> scales(200'000);
    for (size_t i = 0; i < scales.size(); ++i)
      scales[i] = 0.5f + 0.001f * static_cast<float>(i % 777);
    must(cudaMemcpy(scales_.data(), scales.data(), scales.size() * 4, cudaMemcpyHostToDevice), "s");
    host_scales_ = scales;
    const Result<const CublasLtApi*> api = load_cublaslt("");
    if (!api) {
      fmt::print("no library: {}\n", api.error().message);
      return;
    }
    api_ = *api;
    api_->create(&handle_);
  }

  int check() {
    int failures = 0;
    struct Case {
      int64_t out, in, tokens;
      bool bias, f32;
    };
    for (const Case& c : {Case{4608, 3584, 700, true, false}, Case{1000, 208, 300, true, false},
                          Case{1008, 4096, 1000, false, true}, Case{3584, 18944, 520, false, false},
                          Case{1001, 336, 200, true, false}, Case{100, 64, 130, false, true}}) {
      for (const int32_t splits : kRingSplits) {
        if (over(c.in * width(), kRingChunkBytes) < 4 * splits && splits > 1) continue;
        const TimedProduct shape{"", c.out, c.in, c.f32};
        GemvParams all = params_of(shape, c.tokens, 0);
        if (c.bias) all.bias = x_.data() + 64;
        const size_t row_bytes = static_cast<size_t>(c.out) * (c.f32 ? 4 : 2);
        std::vector<uint8_t> want;
        std::string who;
        const auto compare = [&](const std::string& name, int64_t first, int64_t tokens,
                                 const auto& launch) {
          GemvParams p = all;
          p.x = static_cast<const uint8_t*>(all.x) + first * c.in * width();
          if (is_fp8_) p.x_scale = all.x_scale + first;
          p.tokens = static_cast<int32_t>(tokens);
          must(cudaMemsetAsync(y_.data(), 0xff, static_cast<size_t>(c.tokens) * row_bytes, stream_),
               "poison");
          const cudaError_t launched = launch(p);
          if (launched != cudaSuccess) {
            fmt::print("FAILED {} [{} x {}] {} tokens: {}\n", name, c.out, c.in, tokens,
                       cudaGetErrorString(launched));
            ++failures;
            return;
          }
          must(cudaStreamSynchronize(stream_), name.c_str());
          std::vector<uint8_t> got(static_cast<size_t>(tokens) * row_bytes);
          must(cudaMemcpy(got.data(), y_.data(), got.size(), cudaMemcpyDeviceToHost), "y");
          if (want.empty()) {
            want = got;
            who = name;
            failures += !is_right(got, all, c.tokens, shape, name);
            return;
          }
          if (std::equal(
                  got.begin(), got.end(),
                  want.begin() + static_cast<int64_t>(static_cast<size_t>(first) * row_bytes))) {
            return;
          }
          ++failures;
          fmt::print("DIFFERS {} from {} [{} x {}] {} tokens from {}\n", name, who, c.out, c.in,
                     tokens, first);
        };
        for (const bool side_by_side : {false, true}) {
          for (const int32_t rows : kTileRows) {
            const TileShape tile{rows, splits, side_by_side};
            if (!tile_takes(all, tile)) continue;
            for (const int64_t tokens : {c.tokens, int64_t{1}, int64_t{65}, int64_t{129}}) {
              compare(name_of(tile), c.tokens - tokens, tokens, [&](const GemvParams& p) {
                return launch_tile_product(p, tile, kMultiprocessors, stream_);
              });
            }
          }
        }
        for (const int32_t rows : kRingRows) {
          const RingShape ring{rows, splits};
          GemvParams few = all;
          few.tokens = 64;
          if (!ring_takes(few, ring)) continue;
          for (const int64_t tokens : {int64_t{1}, int64_t{64}, int64_t{33}}) {
            compare(name_of(ring), c.tokens - tokens - 1, tokens, [&](const GemvParams& p) {
              return launch_ring_product(p, ring, kMultiprocessors, stream_);
            });
          }
        }
      }
    }
    fmt::print("{}: {} failures\n", is_fp8_ ? "fp8" : "bf16", failures);
    return failures;
  }

  void time(const TimedProduct& shape, int64_t tokens, bool all) {
    std::vector<Variant> variants;
    add_library(shape, tokens, variants);
    const GemvParams p = params_of(shape, tokens, 0);
    if (tokens <= kRingMaxTokens) {
      for (const int32_t splits : kRingSplits) {
        bool is_first = true;
        int of_it = 0;
        for (int n = 0; n < 33; ++n) {
          const RingShape ring = guess_ring_shape(p, kMultiprocessors, n);
          if (ring.rows == 0) break;
          if (ring.splits != splits || ++of_it > 5) continue;
          const double us = microseconds(shape, tokens, true, [&](const GemvParams& q) {
            return launch_ring_product(q, ring, kMultiprocessors, stream_) == cudaSuccess;
          });
          variants.push_back({name_of(ring), splits, is_first, us});
          is_first = false;
        }
      }
    }
    if (tokens >= kRingMaxTokens) {
      for (const int32_t splits : kRingSplits) {
        for (int n = 0; n < 21; ++n) {
          const TileShape tile = guess_tile_shape(p, splits, kMultiprocessors, n);
          if (tile.rows == 0) break;
          const double us = microseconds(shape, tokens, false, [&](const GemvParams& q) {
            return launch_tile_product(q, tile, kMultiprocessors, stream_) == cudaSuccess;
          });
          variants.push_back({name_of(tile), splits, n == 0, us});
        }
      }
    }
    std::string line = fmt::format("{:<5} {:>6}x{:<5} {} T={:<4}", shape.name, shape.out, shape.in,
                                   is_fp8_ ? "fp8 " : "bf16", tokens);
    for (const int32_t splits : {0, 1, 2, 4}) {
      const Variant* best = nullptr;
      const Variant* guess = nullptr;
      for (const Variant& v : variants) {
        if (v.splits != splits) continue;
        if (best == nullptr || v.microseconds < best->microseconds) best = &v;
        if (v.is_guess) guess = &v;
      }
      if (best == nullptr) continue;
      line += fmt::format(" | {}{} {:.1f}",
                          splits == fixed_splits(shape.out, shape.in, is_fp8_) ? "*" : "",
                          best->name, best->microseconds);
      if (guess != nullptr && guess != best) {
        line += fmt::format(" (guess {} {:.1f})", guess->name, guess->microseconds);
      }
    }
    fmt::print("{}\n", line);
    if (all) {
      line = "     ";
      for (const Variant& v : variants) line += fmt::format(" {} {:.1f}", v.name, v.microseconds);
      fmt::print("{}\n", line);
    }
    std::fflush(stdout);
  }

 private:
  static int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }
  int64_t width() const { return is_fp8_ ? 1 : 2; }
  static std::string name_of(const TileShape& s) {
    return fmt::format("t{}{}{}", s.rows,
                       s.splits == 1    ? ""
                       : s.side_by_side ? "c"
                                        : "s",
                       s.splits == 1 ? "" : std::to_string(s.splits));
  }
  static std::string name_of(const RingShape& s) { return fmt::format("r{}/{}", s.rows, s.splits); }
  void fill(const Buffer<uint8_t>& to) {
    for (size_t at = 0; at < to.bytes(); at += bytes_.size()) {
      must(cudaMemcpy(to.data() + at, bytes_.data(), std::min(bytes_.size(), to.bytes() - at),
                      cudaMemcpyHostToDevice),
           "fill");
    }
  }
  GemvParams params_of(const TimedProduct& shape, int64_t tokens, int64_t turn) const {
    const int64_t bytes = shape.out * shape.in * width();
    const int64_t many = std::max<int64_t>(1, kMostWeightBytes / bytes);
    GemvParams p;
    p.weight = weights_.data() + turn % many * bytes;
    p.x = x_.data();
    if (is_fp8_) {
      p.x_scale = scales_.data() + 5;
      p.w_scale = scales_.data() + 1000;
    }
    p.y = y_.data();
    p.out = shape.out;
    p.in = shape.in;
    p.tokens = static_cast<int32_t>(tokens);
    p.is_fp8 = is_fp8_;
    p.y_is_f32 = shape.is_f32;
    return p;
  }
  // Some elements, in fp64 on the host.
  bool is_right(const std::vector<uint8_t>& y, const GemvParams& p, int64_t tokens,
                const TimedProduct& shape, const std::string& name) const {
    double worst = 0;
    const auto at = [&](int64_t i) {
      return stored_value(bytes_.data(), static_cast<size_t>(i) % (bytes_.size() / width()),
                          is_fp8_);
    };
    for (int64_t n = 0; n < 400; ++n) {
      const int64_t t = n * 7919 % tokens;
      const int64_t o = n == 0 ? shape.out - 1 : n * 104729 % shape.out;
      double sum = 0;
      double squares = 1e-9;
      for (int64_t k = 0; k < shape.in; ++k) {
        const double product = at(t * shape.in + k) * at(o * shape.in + k);
        sum += product;
        squares += product * product;
      }
      double scale = 1;
      if (is_fp8_) {
        scale = double{host_scales_[static_cast<size_t>(t + 5)]} *
                double{host_scales_[static_cast<size_t>(o + 1000)]};
      }
      sum *= scale;
      if (p.bias != nullptr) sum += bf16_at(bytes_.data() + 64, o);
      const size_t i = static_cast<size_t>(t * shape.out + o);
      float got = 0;
      if (shape.is_f32) {
        std::memcpy(&got, y.data() + 4 * i, 4);
      } else {
        got = static_cast<float>(bf16_at(y.data(), static_cast<int64_t>(i)));
      }
      const double error = std::abs(double{got} - sum) /
                           (std::abs(sum) / 128 + 0.01 * scale * std::sqrt(squares) + 1e-6);
      worst = error <= worst ? worst : error;
    }
    if (worst <= 1) return true;
    fmt::print("WRONG {} [{} x {}]: error {:.2f}\n", name, shape.out, shape.in, worst);
    return false;
  }
  static double bf16_at(const uint8_t* data, int64_t i) {
    return stored_value(data, static_cast<size_t>(i), false);
  }

  template <typename Launch>
  double microseconds(const TimedProduct& shape, int64_t tokens, bool lets_next_begin,
                      Launch launch) {
    const int repeats = tokens >= 2048 ? 2 : tokens >= 512 ? 4 : 12;
    if (!launch(params_of(shape, tokens, 0))) return 1e9;
    must(cudaStreamSynchronize(stream_), "run");
    const Graph graph(stream_, [&] {
      for (int i = 0; i < repeats; ++i) {
        launch(params_of(shape, tokens, i));
        must(launch_pause(kIdleCycles, lets_next_begin, kMultiprocessors, stream_), "pause");
      }
    });
    const Graph pauses(stream_, [&] {
      for (int i = 0; i < repeats; ++i) {
        must(launch_pause(kIdleCycles, lets_next_begin, kMultiprocessors, stream_), "pause");
      }
    });
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    const auto least = [&](const Graph& of) {
      double best = 1e9;
      of.launch(stream_);
      for (int i = 0; i < 3; ++i) {
        must(cudaEventRecord(begin, stream_), "record");
        of.launch(stream_);
        must(cudaEventRecord(end, stream_), "record");
        must(cudaEventSynchronize(end), "wait");
        float ms = 0;
        must(cudaEventElapsedTime(&ms, begin, end), "time");
        best = std::min(best, 1e3 * double{ms} / repeats);
      }
      return best;
    };
    const double us = least(graph) - least(pauses);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return us;
  }

  void add_library(const TimedProduct& shape, int64_t tokens, std::vector<Variant>& variants) {
    if (api_ == nullptr) return;
    PolicyKey key;
    key.out = shape.out;
    key.in = shape.in;
    key.dtype = is_fp8_ ? DType::kF8E4M3 : DType::kBF16;
    key.out_dtype = shape.is_f32 ? DType::kF32 : DType::kBF16;
    Result<std::unique_ptr<ShapeKernels>> kernels = ShapeKernels::make(
        {api_, handle_, stream_, {workspace_.data(), workspace_.bytes()}, kMultiprocessors}, key);
    if (!kernels) return;
    const Result<std::vector<PolicyEntry>> found = (*kernels)->candidates(tokens, 8);
    if (!found) return;
    for (const PolicyEntry& entry : *found) {
      const bool is_ring = entry.kernel == ProductKernel::kRing;
      const double us = microseconds(shape, tokens, is_ring, [&](const GemvParams& p) {
        return static_cast<bool>((*kernels)->run({.x = p.x,
                                                  .x_scale = p.x_scale,
                                                  .weight = p.weight,
                                                  .w_scale = p.w_scale,
                                                  .bias = p.bias,
                                                  .y = p.y,
                                                  .tokens = p.tokens,
                                                  .softcap = 0,
                                                  .reader_scales = !shape.is_f32},
                                                 entry));
      });
      constexpr const char* kNames[] = {"gemv", "lib", "lib,scales", "ring"};
      variants.push_back({kNames[static_cast<size_t>(entry.kernel)], 0, false, us});
    }
  }

  const bool is_fp8_;
  const std::vector<uint8_t> bytes_;
  const Buffer<uint8_t> weights_;
  const Buffer<uint8_t> x_;
  const Buffer<uint8_t> y_;
  const Buffer<float> scales_;
  const Buffer<uint8_t> workspace_;
  std::vector<float> host_scales_;
  cudaStream_t stream_ = nullptr;
  const CublasLtApi* api_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
};

int time_all(int argc, char** argv) {
  const std::string dtype = argc > 1 ? argv[1] : "bf16";
  const bool all = argc > 2;
  Bench bench(dtype == "fp8");
  const int failures = bench.check();
  const TimedProduct shapes[] = {
      {"7B q", 4608, 3584},  {"7B o", 3584, 3584},         {"7B g", 37888, 3584},
      {"7B d", 3584, 18944}, {"7B h", 152064, 3584, true}, {"8B q", 6144, 4096},
      {"8B o", 4096, 4096},  {"8B g", 28672, 4096},        {"8B d", 4096, 14336}};
  for (const TimedProduct& shape : shapes) {
    for (const int64_t tokens : {1, 8, 32, 64, 128, 256, 512, 2048, 8192}) {
      if (shape.is_f32 && tokens > 512) continue;
      const bool is_one = tokens == 1 || tokens == 128 || tokens == 2048;
      bench.time(shape, tokens, all && shape.name[0] == '7' && is_one);
    }
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::time_all(argc, argv);
}
