// onednn_bench: the linears of a prefill step, ours and oneDNN's bf16 matmul in turn, on weights
// that each has packed in its own layout. Built only where oneDNN is installed; nothing else links
// it. Usage: OMP_NUM_THREADS=n OMP_WAIT_POLICY=passive onednn_bench [tokens [n]]; without "passive"
// oneDNN's idle threads spin through our turns. Times are of the fastest of several passes: wall,
// and CPU time of the process, which is what compares on a machine that others use too.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>

#include "rudder/cpu/device_memory.h"
#include "rudder/cpu/fast_ops.h"

namespace rudder::cpu {
namespace {

using tensor::DType;
using tensor::View;

struct Times {
  double wall = 1e30;
  double cpu = 1e30;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <typename F>
void time_once(F f, Times& best) {
  const auto begin = std::chrono::steady_clock::now();
  const double cpu_begin = cpu_seconds();
  f();
  best.cpu = std::min(best.cpu, cpu_seconds() - cpu_begin);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  best.wall = std::min(best.wall, wall.count());
}

Buffer random_bf16(int64_t count) {
  Buffer buffer = Buffer::make(static_cast<size_t>(count) * 2).value();
  auto* bits = static_cast<uint16_t*>(buffer.data());
  uint32_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    bits[i] = static_cast<uint16_t>((state >> 16 & 0x80ffu) | 0x3c00u);
  }
  return buffer;
}

// oneDNN's product of bf16 rows with its own packing of the weight, f32 out.
class OneDnnLinear {
 public:
  OneDnnLinear(int64_t tokens, int64_t in, int64_t out, void* x, void* weight, void* y)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Memory = dnnl::memory;
    using Tag = Memory::format_tag;
    const Memory::desc source({tokens, in}, Memory::data_type::bf16, Tag::ab);
    const Memory::desc any({in, out}, Memory::data_type::bf16, Tag::any);
    const Memory::desc target({tokens, out}, Memory::data_type::f32, Tag::ab);
    const dnnl::matmul::primitive_desc product(dnnl::matmul::desc(source, any, target), engine_);
    implementation_ = product.impl_info_str();
    Memory plain({{in, out}, Memory::data_type::bf16, Tag::ba}, engine_, weight);
    Memory packed(product.weights_desc(), engine_);
    dnnl::reorder(plain, packed).execute(stream_, plain, packed);
    arguments_ = {{DNNL_ARG_SRC, Memory(source, engine_, x)},
                  {DNNL_ARG_WEIGHTS, packed},
                  {DNNL_ARG_DST, Memory(target, engine_, y)}};
    matmul_ = dnnl::matmul(product);
  }

  void run() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }
  const std::string& implementation() const { return implementation_; }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::string implementation_;
};

void compare(ops::Ops& ops, const char* name, int64_t tokens, int64_t in, int64_t out) {
  const Buffer weight = random_bf16(in * out);
  const Buffer x_bf16 = random_bf16(tokens * in);
  const View x = ops.allocate(DType::kF32, {tokens, in}).value();
  const View y = ops.allocate(DType::kF32, {tokens, out}).value();
  std::fill_n(x.as<float>(), tokens * in, 0.01f);
  const ops::LinearPart part = ops::wide_part({weight.data(), DType::kBF16, {out, in}});
  const ops::LinearWeight linear = ops.make_linear({&part, 1}).value();
  OneDnnLinear library(tokens, in, out, x_bf16.data(), weight.data(), y.data);
  Times ours;
  Times theirs;
  for (int pass = 0; pass < 20; ++pass) {
    time_once([&] { ops.linear({x, {}, &linear, y}); }, ours);
    time_once([&] { library.run(); }, theirs);
  }
  const double gflop = 2e-9 * static_cast<double>(tokens * in * out);
  fmt::print(
      "{:<8} {:>4} x {:>4} -> {:>6}: ours {:>5.0f}, oneDNN {:>5.0f} GFLOP/s, {:>4.0f}%; "
      "per CPU second {:>5.0f}, {:>5.0f}, {:>4.0f}%  ({})\n",
      name, tokens, in, out, gflop / ours.wall, gflop / theirs.wall, 100 * theirs.wall / ours.wall,
      gflop / ours.cpu, gflop / theirs.cpu, 100 * theirs.cpu / ours.cpu, library.implementation());
}

}  // namespace
}  // namespace rudder::cpu

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 512;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  auto ops = rudder::cpu::make_cpu_ops({rudder::tensor::DType::kBF16, threads, {}}).value();
  rudder::cpu::compare(*ops, "qkv", tokens, 896, 1152);
  rudder::cpu::compare(*ops, "out", tokens, 896, 896);
  rudder::cpu::compare(*ops, "gate_up", tokens, 896, 9728);
  rudder::cpu::compare(*ops, "down", tokens, 4864, 896);
  rudder::cpu::compare(*ops, "7B gate", tokens, 3584, 18944);
  return 0;
}
