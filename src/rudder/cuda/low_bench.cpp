// Times products of low-bit weights in every way that they are multiplied, beside those of fp8 and
// bf16 weights, and checks their values: a program of its own, so that it runs on a bare machine
// with a GPU. A figure is of a captured graph of products with small kernels between them, as the
// Tuner measures; weights take turns, so that none is in the L2 cache.
// low_bench check|time all|FORM [tokens ...]; FORM as kForms has it
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/kernels/measure/pause.h"
#include "rudder/cuda/kernels/products/low_product.h"
#include "rudder/cuda/kernels/products/ring_product.h"
#include "rudder/cuda/kernels/products/ring_shape.h"
#include "rudder/cuda/kernels/rows/pack_low_bits.h"

namespace rudder::cuda {
namespace {

constexpr int64_t kTurnBytes = int64_t{512} << 20;  // of weights that take turns
constexpr int64_t kMostOut = 28672;
constexpr int64_t kWidest = 14336;
constexpr int64_t kMostBatch = 2048;
constexpr int64_t kRoomBytes = int64_t{64} << 20;

struct Form {
  const char* name;
  LowBits bits;
};
constexpr Form kForms[] = {{"4/128", {LowCode::kU4, 128, true, false}},
                           {"4/32m", {LowCode::kU4, 32, false, false}},
                           {"8/row", {LowCode::kI8, 128, true, true}},
                           {"8/16", {LowCode::kI8, 16, true, false}},
                           {"e4m3/128", {LowCode::kE4M3, 128, true, false}}};

bool is_wanted(const std::string& wanted, const Form& form) {
  return wanted == "all" || wanted == form.name;
}

float bf16_value(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
double e4m3_value(uint8_t byte) {
  const int exponent = byte >> 3 & 15;
  const double mantissa = byte & 7;
  const double value = exponent == 0 ? mantissa / 512 : std::ldexp(1 + mantissa / 8, exponent - 7);
  return (byte & 0x80) != 0 ? -value : value;
}
class Random {
 public:
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ >> 16;
  }

 private:
  uint64_t state_ = 0x9E3779B97F4A7C15;
};
std::vector<uint16_t> random_bf16(int64_t count) {
  Random random;
  std::vector<uint16_t> out(static_cast<size_t>(count));
  for (uint16_t& bits : out) {
    const uint64_t r = random.next();  // sums of uniform numbers, about normal
    const float value =
        (static_cast<float>(r & 0xffff) + static_cast<float>(r >> 16 & 0xffff) - 65535.0f) /
        65536.0f;
    bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
  return out;
}

// A weight of random codes, on the host too where it is small.
class Weight {
 public:
  Weight(const Form& form, int64_t out, int64_t in, cudaStream_t stream)
      : form_(form.bits),
        in_(in),
        groups_((in + form_.group - 1) / form_.group),
        codes_(static_cast<size_t>(out * in)),
        scales_(static_cast<size_t>(out * groups_)),
        offsets_(static_cast<size_t>(out * groups_)),
        packed_(low_weight_bytes(form_, out, in)),
        factors_(out) {
    Random random;
    for (int8_t& code : codes_) {
      const uint64_t r = random.next();
      code = static_cast<int8_t>(form_.code == LowCode::kU4     ? r & 15
                                 : form_.code == LowCode::kE4M3 ? r & 0xBF
                                                                : r);
    }
    for (size_t i = 0; i < scales_.size(); ++i) {
      const float scale = std::ldexp(static_cast<float>(random.next() % 128 + 128), -14);
      const bool is_of_row = form_.is_by_row && i % static_cast<size_t>(groups_) != 0;
      scales_[i] = is_of_row ? scales_[i - 1] : scale;
      const auto zero = static_cast<float>(random.next() % 16);
      offsets_[i] = form_.code != LowCode::kU4 ? 0 : form_.is_zero ? zero : zero * scale;
    }
    const Buffer<int8_t> codes(codes_);
    const Buffer<float> scales(scales_);
    const Buffer<float> offsets(offsets_);
    PackLowBitsParams pack;
    pack.from = {codes.data(), scales.data(), offsets.data(), out, in, form_.group};
    pack.form = form_;
    pack.to = packed_.data();
    pack.row_factor = factors_.data();
    must(launch_pack_low_bits(pack, stream), "pack");
    must(cudaStreamSynchronize(stream), "pack");
  }
  double number(int64_t row, int64_t k) const {
    const auto group = static_cast<size_t>(row * groups_ + k / form_.group);
    const int8_t byte = codes_[static_cast<size_t>(row * in_ + k)];
    const double code =
        form_.code == LowCode::kE4M3 ? e4m3_value(static_cast<uint8_t>(byte)) : byte;
    const double scale = scales_[group];
    const double offset = offsets_[group];
    return form_.is_zero ? scale * (code - offset) : scale * code - offset;
  }
  const Buffer<uint8_t>& packed() const { return packed_; }
  const float* factors() const { return factors_.data(); }

 private:
  const LowBits form_;
  const int64_t in_;
  const int64_t groups_;
  std::vector<int8_t> codes_;
  std::vector<float> scales_;
  std::vector<float> offsets_;
  const Buffer<uint8_t> packed_;
  const Buffer<float> factors_;
};

std::string text_of(const LowShape& s) {
  if (s.way == LowWay::kGemv) return fmt::format("v{}", s.blocks);
  constexpr const char* kWays[] = {"n", "c", "s", "w"};
  return fmt::format("{}{}x{}{}", kWays[static_cast<size_t>(s.way)], s.tokens, s.blocks,
                     s.splits ? "e" : "");
}

class LowBench {
 public:
  LowBench()
      : host_x_(random_bf16(kMostBatch * kWidest)),
        x_(host_x_),
        y_(kMostBatch * kMostOut * 4),
        turns_(kTurnBytes + (int64_t{128} << 20)),
        scales_(std::vector<float>(kMostOut + kMostBatch, 0.37f)),
        room_(kRoomBytes),
        parts_(low_parts_bytes(kMultiprocessors) / 4),
        flags_(low_num_flags(kMultiprocessors)) {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    Random random;
    std::vector<uint8_t> bytes(size_t{16} << 20);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next()) & 0xBF;  // no infinities
    for (size_t at = 0; at < turns_.bytes(); at += bytes.size()) {
      must(cudaMemcpy(turns_.data() + at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
           "fill");
    }
  }

  int check(const std::string& wanted) {
    int failures = 0;
    struct Case {
      int64_t out, in;
      bool bias, f32;
    };
    for (const Case& c : {Case{4096, 4096, false, false}, Case{1000, 1096, true, false},
                          Case{72, 14336, false, true}, Case{2240, 328, true, true}}) {
      for (const Form& form : kForms) {
        if (!is_wanted(wanted, form)) continue;
        const Weight weight(form, c.out, c.in, stream_);
        for (const int64_t tokens : {1, 3, 8, 13, 16, 32, 40, 64, 100, 130, 300}) {
          LowProductParams p = params(form, weight, c.out, c.in, tokens);
          p.y_is_f32 = c.f32;
          if (c.bias) p.bias = x_.data() + 8;
          for (int n = 0;; ++n) {
            const LowShape shape = low_shape(form.bits, tokens, n);
            if (shape.tokens == 0) break;
            failures += is_right(weight, p, shape, form) ? 0 : 1;
          }
        }
      }
    }
    fmt::print("low products, {}: {} failures\n", wanted, failures);
    return failures;
  }

  void time(const std::string& wanted, const std::vector<int64_t>& tokens) {
    struct Shape {
      const char* name;
      int64_t out, in;
    };
    constexpr Shape kShapes[] = {
        {"q", 6144, 4096}, {"o", 4096, 4096}, {"g", 28672, 4096}, {"d", 4096, 14336}};
    for (const Form& form : kForms) {
      if (!is_wanted(wanted, form)) continue;
      for (const int64_t count : tokens) {
        double best_of_all = 0;
        std::string lines;
        for (const Shape& shape : kShapes) {
          const int64_t bytes = low_weight_bytes(form.bits, shape.out, shape.in);
          std::string line = fmt::format("{:<7} T={:<4} {}", form.name, count, shape.name);
          double best = 1e9;
          LowProductParams p;
          p.form = form.bits;
          const Buffer<float>& factors = scales_;
          p.row_factor = factors.data();
          p.x = x_.data();
          p.y = y_.data();
          p.out = shape.out;
          p.in = shape.in;
          p.tokens = static_cast<int32_t>(count);
          set_room(p);
          for (int n = 0;; ++n) {
            const LowShape low = low_shape(form.bits, count, n);
            if (low.tokens == 0) break;
            const double us = microseconds(bytes, count, [&](const uint8_t* from) {
              p.weight = from;
              return launch_low_product(p, low, kMultiprocessors, stream_) == cudaSuccess;
            });
            best = std::min(best, us);
            line += fmt::format(" {} {:.1f}", text_of(low), us);
          }
          best_of_all += best;
          lines +=
              fmt::format("{} | {:.0f} GB/s\n", line, 1e-3 * static_cast<double>(bytes) / best);
        }
        fmt::print("{}{:<7} T={:<4} a layer {:.1f}\n", lines, form.name, count, best_of_all);
        std::fflush(stdout);
      }
    }
    if (wanted != "all" && wanted != kForms[0].name) return;
    for (const bool is_fp8 : {true, false}) {
      for (const int64_t count : tokens) {
        if (count > kRingMaxTokens) continue;
        double best_of_all = 0;
        std::string line = fmt::format("{} ring T={:<4}", is_fp8 ? "fp8 " : "bf16", count);
        for (const Shape& shape : kShapes) {
          const double us = ring_microseconds(shape.out, shape.in, count, is_fp8);
          best_of_all += us;
          line += fmt::format(" {} {:.1f}", shape.name, us);
        }
        fmt::print("{} | a layer {:.1f}\n", line, best_of_all);
      }
    }
  }

 private:
  void set_room(LowProductParams& p) const {
    p.room = room_.data();
    p.room_bytes = kRoomBytes;
    p.parts = parts_.data();
    p.flags = flags_.data();
  }
  LowProductParams params(const Form& form, const Weight& weight, int64_t out, int64_t in,
                          int64_t tokens) const {
    LowProductParams p;
    p.weight = weight.packed().data();
    p.row_factor = weight.factors();
    p.x = x_.data();
    p.y = y_.data();
    p.form = form.bits;
    p.out = out;
    p.in = in;
    p.tokens = static_cast<int32_t>(tokens);
    set_room(p);
    return p;
  }
  // Some elements, in fp64 on the host.
  bool is_right(const Weight& weight, const LowProductParams& p, const LowShape& shape,
                const Form& form) {
    const std::string what =
        fmt::format("{} {} [{} x {}] {} tokens", form.name, text_of(shape), p.out, p.in, p.tokens);
    must(cudaMemsetAsync(y_.data(), 0xff, y_.bytes(), stream_), "poison");
    const cudaError_t launched = launch_low_product(p, shape, kMultiprocessors, stream_);
    if (launched != cudaSuccess) {
      fmt::print("FAILED {}: {}\n", what, cudaGetErrorString(launched));
      return false;
    }
    must(cudaStreamSynchronize(stream_), what.c_str());
    const size_t width = p.y_is_f32 ? 4 : 2;
    std::vector<uint8_t> y(static_cast<size_t>(p.tokens * p.out) * width);
    must(cudaMemcpy(y.data(), y_.data(), y.size(), cudaMemcpyDeviceToHost), "y");
    double worst = 0;
    for (int64_t n = 0; n < 120; ++n) {
      const int64_t t = n == 0 ? p.tokens - 1 : n * 7919 % p.tokens;
      const int64_t o = n == 0 ? p.out - 1 : n * 104729 % p.out;
      double sum = 0;
      double squares = 1e-9;
      for (int64_t k = 0; k < p.in; ++k) {
        const double product =
            double{bf16_value(host_x_[static_cast<size_t>(t * p.in + k)])} * weight.number(o, k);
        sum += product;
        squares += product * product;
      }
      if (p.bias != nullptr) sum += double{bf16_value(host_x_[static_cast<size_t>(8 + o)])};
      const auto i = static_cast<size_t>(t * p.out + o);
      double got = 0;
      if (p.y_is_f32) {
        got = double{reinterpret_cast<const float*>(y.data())[i]};
      } else {
        got = double{bf16_value(reinterpret_cast<const uint16_t*>(y.data())[i])};
      }
      // Tokens of 8 bits cost 2^-8 of the largest input each, numbers of bf16 2^-9 of themselves.
      const double rounding = shape.way == LowWay::kWhole ? 0.04 : 0.01;
      const double error = std::abs(got - sum) / (std::abs(sum) / (p.y_is_f32 ? 1000 : 200) +
                                                  rounding * std::sqrt(squares) + 1e-6);
      worst = error <= worst ? worst : error;
    }
    if (worst <= 1) return true;
    fmt::print("WRONG {}: error {:.2f}\n", what, worst);
    return false;
  }

  double ring_microseconds(int64_t out, int64_t in, int64_t tokens, bool is_fp8) {
    GemvParams p;
    p.x = x_.data();
    p.y = y_.data();
    if (is_fp8) {
      p.x_scale = scales_.data();
      p.w_scale = scales_.data() + kMostBatch;
    }
    p.out = out;
    p.in = in;
    p.tokens = static_cast<int32_t>(tokens);
    p.is_fp8 = is_fp8;
    p.weight = turns_.data();
    double best = 1e9;
    for (int n = 0; n < 4; ++n) {
      const RingShape shape = guess_ring_shape(p, kMultiprocessors, n);
      if (shape.rows == 0) break;
      best = std::min(
          best, microseconds(out * in * (is_fp8 ? 1 : 2), tokens, [&](const uint8_t* from) {
            p.weight = from;
            return launch_ring_product(p, shape, kMultiprocessors, stream_) == cudaSuccess;
          }));
    }
    return best;
  }

  template <typename Launch>
  double microseconds(int64_t bytes, int64_t tokens, Launch launch) {
    const int repeats = tokens >= 512 ? 4 : 12;
    const int64_t stride = (bytes + 1023) / 1024 * 1024;
    const int64_t many = std::max<int64_t>(1, kTurnBytes / stride);
    const auto turn = [&](int64_t i) { return turns_.data() + i % many * stride; };
    if (!launch(turn(0))) return 1e9;
    must(cudaStreamSynchronize(stream_), "run");
    const bool lets_next_begin = tokens <= 64;
    const auto pause = [&] {
      must(launch_pause(kIdleCycles, lets_next_begin, kMultiprocessors, stream_), "pause");
    };
    int64_t at = 0;
    const Graph graph(stream_, [&] {
      for (int i = 0; i < repeats; ++i) {
        launch(turn(at++));
        pause();
      }
    });
    const Graph pauses(stream_, [&] {
      for (int i = 0; i < repeats; ++i) pause();
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

  const std::vector<uint16_t> host_x_;
  const Buffer<uint16_t> x_;
  const Buffer<uint8_t> y_;
  const Buffer<uint8_t> turns_;
  const Buffer<float> scales_;
  const Buffer<uint8_t> room_;
  const Buffer<float> parts_;
  const Buffer<uint32_t> flags_;
  cudaStream_t stream_ = nullptr;
};

int run_low_bench(int argc, char** argv) {
  if (argc < 3) {
    fmt::print("low_bench check|time all|FORM [tokens ...]\n");
    return 2;
  }
  std::vector<int64_t> tokens;
  for (int i = 3; i < argc; ++i) tokens.push_back(std::stoll(argv[i]));
  if (tokens.empty()) tokens = {1, 8, 32, 128, 512};
  LowBench bench;
  if (argv[1] == std::string("check")) return bench.check(argv[2]) == 0 ? 0 : 1;
  bench.time(argv[2], tokens);
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::run_low_bench(argc, argv);
}
