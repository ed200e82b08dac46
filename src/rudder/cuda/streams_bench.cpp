// Times the boundary between two branches of a residual of four streams (hyper-connections): what
// the last branch left is written, and the next one's input is read, normed and quantised. Beside
// the floor of its bytes. A program of its own, so that it runs on a bare machine with a GPU. A
// figure is of a captured graph of many boundaries, each by maps of its own: they come from memory,
// as in a model whose weights pass the L2 cache between two of them; rows may lie in that.
// streams_bench [part of a shape's name]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/experts_bench.h"
#include "rudder/cuda/kernels/rows/rows.h"
#include "rudder/cuda/kernels/streams/streams.h"

namespace rudder::cuda {
namespace {

constexpr double kRowBytesPerSecond = 4.0e12;  // one H200
constexpr int32_t kStreams = 4;
constexpr int32_t kMapRows = 2 * kStreams + kStreams * kStreams;
constexpr int32_t kSites = 80;  // 126 MB of maps at 4 x 4,096

struct StreamsModel {
  const char* name;
  int64_t width;
  int32_t iterations;  // 0: streams are not mixed

  int32_t map_rows() const { return iterations > 0 ? kMapRows : 2 * kStreams; }
};

std::vector<float> random_floats(int64_t count, float scale) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = (static_cast<float>(next_random() % 2001) / 1000.0f - 1.0f) * scale;
  }
  return values;
}
std::vector<uint16_t> random_rows(int64_t count) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  // Of 0.5 ... 2 and either sign.
  for (uint16_t& value : values) {
    const uint64_t bits = next_random();
    value = static_cast<uint16_t>((bits & 0x8000u) | (0x3f00u + (bits & 0xffu)));
  }
  return values;
}

// Rows, maps and tables of a figure.
class Boundaries {
 public:
  Boundaries(const StreamsModel& model, int64_t rows)
      : model_(model),
        rows_(rows),
        fn_(repeated(random_floats(model.map_rows() * kStreams * model.width, 0.02f))),
        base_(random_floats(kMapRows, 1.0f)),
        scale_(random_floats(3, 1.0f)),
        norm_(std::vector<float>(static_cast<size_t>(model.width), 1.0f)),
        x_(random_rows(rows * kStreams * model.width)),
        delta_(random_rows(rows * model.width)),
        collapsed_(rows * model.width),
        normed_(rows * model.width),
        normed_scale_(rows),
        entries_(std::vector<ops::TapEntry>(static_cast<size_t>(rows) * kStreamPoints,
                                            {.flags = ops::TapEntry::kCaptured})),
        sets_(std::vector<int32_t>(static_cast<size_t>(rows), 0)),
        begins_(multiples(rows)),
        offsets_(std::vector<int32_t>{0, -1, 1, -1}),
        ring_(rows * 2 * tap::kCaptureAlign) {}

  double bytes() const {
    const double row = static_cast<double>(model_.width) * 2;
    return static_cast<double>(rows_) * row * (2 * kStreams + 1 + 0.5) +
           4.0 * static_cast<double>(model_.map_rows() * kStreams * model_.width);
  }

  // What of a boundary a graph has.
  struct Parts {
    bool captures = false;
    bool norms = true;
    bool is_apart = false;  // the norm is a launch of its own, where it need not be
    bool is_fp8 = true;
  };
  std::unique_ptr<Graph> graph(const Parts& parts, cudaStream_t stream) const {
    return std::make_unique<Graph>(stream, [&] {
      for (int32_t i = 0; i < kSites; ++i) enqueue(i, parts, stream);
    });
  }

 private:
  static std::vector<float> repeated(const std::vector<float>& one) {
    std::vector<float> all;
    for (int32_t i = 0; i < kSites; ++i) all.insert(all.end(), one.begin(), one.end());
    return all;
  }
  static std::vector<int32_t> multiples(int64_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(2 * i);
    return values;
  }
  StreamMapParams map(int32_t site) const {
    const int64_t each = model_.map_rows() * kStreams * model_.width;
    return {fn_.data() + site % kSites * each, base_.data(), scale_.data()};
  }
  TapParams<kStreamPoints> taps(bool captures) const {
    TapParams<kStreamPoints> taps;
    for (int i = 0; i < kStreamPoints; ++i) taps.point[i] = captures ? i : -1;
    taps.table.captures = offsets_.data();
    taps.table.ring = ring_.data();
    taps.table.num_points = kStreamPoints;
    taps.batch.entries = entries_.data();
    taps.batch.capture_set = sets_.data();
    taps.batch.capture_begin = begins_.data();
    return taps;
  }

  void enqueue(int32_t site, const Parts& parts, cudaStream_t stream) const {
    ConnectStreamsParams p;
    p.x = x_.data();
    p.delta = delta_.data();
    p.write = map(site);
    p.read = map(site + 1);
    p.out = collapsed_.data();
    p.rows = rows_;
    p.width = model_.width;
    p.streams = kStreams;
    p.iterations = model_.iterations;
    p.eps = p.norm_eps = 1e-6f;
    if (parts.norms && !parts.is_apart) {
      p.norm.weight = norm_.data();
      p.norm.out = normed_.data();
      p.norm.out_scale = parts.is_fp8 ? normed_scale_.data() : nullptr;
      if (!takes_norm(p)) p.norm = {};
    }
    must(launch_connect_streams(p, taps(parts.captures), stream), "connect_streams");
    if (!parts.norms || p.norm.weight != nullptr) return;
    ResidualNormParams n;
    n.x = collapsed_.data();
    n.norm = norm_.data();
    n.rows = rows_;
    n.hidden = model_.width;
    n.out = normed_.data();
    n.out_scale = parts.is_fp8 ? normed_scale_.data() : nullptr;
    must(launch_residual_norm(n, stream), "residual_norm");
  }

  const StreamsModel model_;
  const int64_t rows_;
  const Buffer<float> fn_;
  const Buffer<float> base_;
  const Buffer<float> scale_;
  const Buffer<float> norm_;
  const Buffer<uint16_t> x_;
  const Buffer<uint16_t> delta_;
  const Buffer<uint16_t> collapsed_;
  const Buffer<uint16_t> normed_;
  const Buffer<float> normed_scale_;
  const Buffer<ops::TapEntry> entries_;
  const Buffer<int32_t> sets_;
  const Buffer<int32_t> begins_;
  const Buffer<int32_t> offsets_;
  const Buffer<uint16_t> ring_;
};

void bench_rows(const StreamsModel& model, int64_t rows, const Buffer<uint8_t>& flush,
                cudaStream_t stream) {
  const Boundaries all(model, rows);
  std::vector<std::unique_ptr<Graph>> graphs;
  graphs.push_back(all.graph({}, stream));
  graphs.push_back(all.graph({.is_fp8 = false}, stream));
  graphs.push_back(all.graph({.captures = true}, stream));
  graphs.push_back(all.graph({.is_apart = true}, stream));
  graphs.push_back(all.graph({.norms = false}, stream));
  const std::vector<double> us = time_graphs(graphs, 11, flush, stream);
  const double floor = all.bytes() / kRowBytesPerSecond * 1e6;
  std::printf(
      "  %5d rows: %7.2f us a boundary (bf16 %7.2f, numbers captured %7.2f, norm apart %7.2f, "
      "without it %7.2f)  floor %6.2f  %5.1f %%\n",
      static_cast<int>(rows), us[0] / kSites, us[1] / kSites, us[2] / kSites, us[3] / kSites,
      us[4] / kSites, floor, 100 * floor * kSites / us[0]);
  std::fflush(stdout);
}

int run_streams_bench(std::string_view part) {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "stream");
  const Buffer<uint8_t> flush(kFlushBytes);
  for (const StreamsModel& model : {StreamsModel{"4 x 4096", 4096, 20},
                                    {"4 x 7168", 7168, 20},
                                    {"4 x 4096, not mixed", 4096, 0}}) {
    if (std::string_view(model.name).find(part) == std::string_view::npos) continue;
    std::printf("%s\n", model.name);
    for (const int64_t rows : {1, 8, 16, 32, 64, 128, 1024, 4096}) {
      bench_rows(model, rows, flush, stream);
    }
  }
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::run_streams_bench(argc > 1 ? argv[1] : "");
}
