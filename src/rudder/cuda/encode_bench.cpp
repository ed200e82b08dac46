// Times whole encodes and the reading of features on a device: a program of its own, so that it
// runs on a bare machine with a GPU. A figure is of a captured graph of kEncodes calls, each behind
// the norm that writes its rows and in front of the norm that runs what stands behind it, less the
// same graph without them; two dictionaries take turns, so that no encoder is in the L2 cache. A
// figure is the median of all rounds. Below it: how long the slowest block took from one mark of
// the kernel to the next, in one call. encode_bench [rounds]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/kernels/features/encode.h"
#include "rudder/cuda/kernels/features/read_features.h"
#include "rudder/cuda/kernels/rows/convert.h"
#include "rudder/cuda/kernels/taps/tapped_rows.h"
#include "rudder/tap/dictionary_head.h"

namespace rudder::cuda {
namespace {

constexpr int kEncodes = 4;
constexpr int kDictionaries = 2;
constexpr int32_t kTop = 8;
constexpr int64_t kMostTokens = 160;

struct Shape {
  const char* name;
  int32_t width;
  int32_t num_features;
  int32_t k;
};

void fill(void* to, int64_t count, uint64_t seed, double deviation, cudaStream_t stream) {
  FillRandomParams params;
  params.to = to;
  params.element = Element::kBf16;
  params.count = count;
  params.seed = seed;
  params.deviation = static_cast<float>(deviation);
  must(launch_fill_random(params, stream), "fill");
}

// Dictionaries in bf16, one behind another as in a table of vectors.
class Dictionaries {
 public:
  Dictionaries(const Shape& shape, cudaStream_t stream) : head_(head_of(shape)) {
    floats_ = head_.decoder + tap::dictionary_floats(true, numbers());
    memory_ = std::make_unique<Buffer<float>>(kDictionaries * floats_);
    const double deviation = 1 / std::sqrt(static_cast<double>(shape.width));
    for (int i = 0; i < kDictionaries; ++i) {
      float* const begin = memory_->data() + offset(i);
      std::vector<float> small(static_cast<size_t>(head_.encoder));
      std::fill_n(small.begin() + head_.scale, shape.num_features, 1.0f);
      std::fill_n(small.begin() + head_.gate, shape.num_features, -1e30f);
      must(cudaMemcpy(begin, small.data(), small.size() * sizeof(float), cudaMemcpyHostToDevice),
           "dictionary");
      must(cudaMemcpy(begin, &head_, sizeof(head_), cudaMemcpyHostToDevice), "head");
      fill(begin + head_.encoder, numbers(), 2 * static_cast<uint64_t>(i), deviation, stream);
      fill(begin + head_.decoder, numbers(), 2 * static_cast<uint64_t>(i) + 1, deviation, stream);
    }
  }

  const tap::DictionaryHead& head() const { return head_; }
  const float* vectors() const { return memory_->data(); }
  int32_t offset(int i) const { return static_cast<int32_t>(i * floats_); }

 private:
  static tap::DictionaryHead head_of(const Shape& shape) {
    tap::DictionaryHead head{.d_in = shape.width,
                             .d_out = shape.width,
                             .num_features = shape.num_features,
                             .k = shape.k};
    head.is_bf16 = 1;
    int32_t next = tap::kDictionaryHeadFloats;
    for (int32_t* const begin : {&head.scale, &head.bias, &head.gate, &head.encoder_sum}) {
      *begin = next;
      next += shape.num_features;
    }
    head.output_bias = next;
    head.encoder = next + shape.width;
    head.decoder = head.encoder + static_cast<int32_t>(tap::dictionary_floats(
                                      true, int64_t{shape.num_features} * shape.width));
    return head;
  }
  int64_t numbers() const { return int64_t{head_.num_features} * head_.d_in; }

  tap::DictionaryHead head_;
  int64_t floats_ = 0;
  std::unique_ptr<Buffer<float>> memory_;
};

enum class Ask { kNothing, kIdle, kClamp, kFull };
constexpr const char* kAskNames[] = {"-", "idle", "clamp", "full"};
const char* name_of(Ask ask) {
  return kAskNames[static_cast<int>(ask)];
}

class EncodeBench {
 public:
  EncodeBench(const Shape& shape, int rounds, const Buffer<uint8_t>& flush, cudaStream_t stream)
      : shape_(shape),
        rounds_(rounds),
        flush_(flush),
        stream_(stream),
        dictionaries_(shape, stream),
        rows_(kMostTokens * shape.width),
        work_(kMostTokens * shape.width),
        before_(tap::kEncodedRows * shape.width * 2),
        features_(tap::kEncodedRows * tap::feature_row_floats(shape.num_features)),
        norm_(std::vector<float>(static_cast<size_t>(shape.width), 1.0f)),
        values_(tap::kEncodedRows * kTop),
        top_(tap::kEncodedRows * kTop) {
    fill(rows_.data(), kMostTokens * shape.width, 77, 1.0, stream);
    must(cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, 0), "device");
    must(cudaDeviceGetAttribute(&kilohertz_, cudaDevAttrClockRate, 0), "device");
  }

  void run() {
    for (const Ask ask : {Ask::kIdle, Ask::kClamp, Ask::kFull}) {
      for (const int64_t tokens : {1, 8, 64, 160}) encode(ask, tokens);
    }
    for (const int64_t rows : {1, 8, 64}) read(rows);
  }

 private:
  double encoder_us() const {
    return 1e6 * 2.0 * shape_.width * shape_.num_features / kReadBytesPerSecond;
  }

  // The ops of a token: those that encode by each of the dictionaries; entry i leads to the i-th.
  void put_table(Ask ask, int64_t tokens) {
    std::vector<tap::TapOp> ops;
    std::vector<ops::TapEntry> entries(static_cast<size_t>(tokens) * kDictionaries);
    for (int i = 0; i < kDictionaries; ++i) {
      const auto first = static_cast<int64_t>(ops.size());
      ops::TapEntry entry;
      tap::TapOp op;
      op.kind = tap::OpKind::kEncode;
      op.v1 = dictionaries_.offset(i);
      op.lo = ask == Ask::kFull ? 1.0f : 0.0f;
      op.run = ask == Ask::kFull ? 1 : 2;
      for (int64_t n = 0; n < op.run; ++n) {
        ops.push_back(op);
        entry.add(first + n, op);
        op.kind = tap::OpKind::kEncoded;
        op.edit = tap::FeatureEdit::kSet;
        op.value = 2;
        op.feature = 5;
        op.run = 0;
      }
      if (ask == Ask::kIdle) entry = {};
      for (int64_t t = 0; t < tokens; ++t) {
        entries[static_cast<size_t>(t * kDictionaries + i)] = entry;
      }
    }
    ops_ = std::make_unique<Buffer<tap::TapOp>>(ops);
    entries_ = std::make_unique<Buffer<ops::TapEntry>>(entries);
    zeros_ = std::make_unique<Buffer<int32_t>>(tokens);
  }
  TapTableParams table() const {
    TapTableParams table;
    table.ops = ops_->data();
    table.relays = relays_.data();
    table.vectors = dictionaries_.vectors();
    table.num_points = kDictionaries;
    return table;
  }
  TapBatchParams batch() const {
    TapBatchParams batch;
    batch.entries = entries_->data();
    batch.since_prompt = batch.slot = batch.token = zeros_->data();
    return batch;
  }

  ResidualNormParams rows_of(int64_t tokens) const {
    ResidualNormParams params;
    params.rows = tokens;
    params.hidden = shape_.width;
    return params;
  }
  cudaError_t enqueue(Ask ask, int64_t tokens, int dictionary, int64_t* marks) {
    ResidualNormParams norm = rows_of(tokens);
    norm.x = rows_.data();
    norm.norm = norm_.data();
    norm.out = work_.data();
    const cudaError_t normed = launch_residual_norm(norm, stream_);
    if (normed != cudaSuccess || ask == Ask::kNothing) return normed;
    EncodeParams params;
    params.table = table();
    params.batch = batch();
    params.point = dictionary;
    params.num_blocks = num_sms_;
    params.x = work_.data();
    params.rows = tokens;
    params.width = shape_.width;
    params.features = features_.data();
    params.feature_stride = tap::feature_row_floats(shape_.num_features);
    params.largest = params.features + tap::feature_tiles_begin(params.feature_stride);
    params.before = before_.data();
    params.marks = marks;
    const cudaError_t encoded = launch_encode(params, stream_);
    if (encoded != cudaSuccess) return encoded;
    TapParams<kResidualPoints> behind{table(), {-1, dictionary, -1, -1}, batch()};
    behind.batch.is_behind_encode = true;
    ResidualNormParams rest = rows_of(tokens);
    rest.x = work_.data();
    return launch_tapped_residual_norm(rest, behind, stream_);
  }
  std::unique_ptr<Graph> graph_of(Ask ask, int64_t tokens) {
    return std::make_unique<Graph>(stream_, [&] {
      for (int call = 0; call < kEncodes; ++call) {
        must(enqueue(ask, tokens, call % kDictionaries, nullptr), name_of(ask));
      }
    });
  }

  void encode(Ask ask, int64_t tokens) {
    put_table(ask, tokens);
    std::vector<std::unique_ptr<Graph>> graphs;
    for (const Ask one : {Ask::kNothing, ask}) graphs.push_back(graph_of(one, tokens));
    const std::vector<double> us = time_graphs(graphs, rounds_, flush_, stream_);
    const int64_t passes = (tokens + tap::kEncodedRows - 1) / tap::kEncodedRows;
    const double floor = ask == Ask::kIdle ? 0 : encoder_us() * static_cast<double>(passes);
    std::printf("%-22s %-6s%5lld rows %9.2f us, floor %6.2f\n", shape_.name, name_of(ask),
                static_cast<long long>(tokens), (us[1] - us[0]) / kEncodes, floor);
    if (ask != Ask::kIdle && tokens <= tap::kEncodedRows) show_marks(ask, tokens);
  }

  // From the mark before to each, of the block that took longest, and of the one in the middle.
  void show_marks(Ask ask, int64_t tokens) {
    constexpr const char* kNames[] = {"",      "found",  "multiplied", "met",
                                      "taken", "chosen", "listed",     "end"};
    const Buffer<int64_t> marks(int64_t{num_sms_} * kNumEncodeMarks);
    must(cudaMemsetAsync(flush_.data(), 1, flush_.bytes(), stream_), "flush");
    must(enqueue(ask, tokens, 0, marks.data()), "marks");
    must(cudaStreamSynchronize(stream_), "marks");
    std::vector<int64_t> all(static_cast<size_t>(num_sms_) * kNumEncodeMarks);
    must(cudaMemcpy(all.data(), marks.data(), marks.bytes(), cudaMemcpyDeviceToHost), "marks");
    std::printf("   ");
    for (int mark = 1; mark < kNumEncodeMarks; ++mark) {
      std::vector<double> took;
      for (int block = 0; block < num_sms_; ++block) {
        const int64_t* const own = all.data() + block * kNumEncodeMarks;
        int before = mark - 1;
        while (before > 0 && own[before] == 0) --before;
        if (own[mark] != 0)
          took.push_back(1e3 * static_cast<double>(own[mark] - own[before]) / kilohertz_);
      }
      if (took.empty()) continue;
      std::ranges::sort(took);
      std::printf(" %s %.2f (%.2f)", kNames[mark], took.back(), took[took.size() / 2]);
    }
    std::printf("\n");
  }

  void read(int64_t rows) {
    std::vector<std::unique_ptr<Graph>> graphs;
    for (const int32_t top : {0, kTop}) {
      graphs.push_back(std::make_unique<Graph>(stream_, [&] {
        for (int call = 0; call < kEncodes; ++call) {
          must(enqueue_read(rows, call % kDictionaries, top), "read");
        }
      }));
    }
    const std::vector<double> us = time_graphs(graphs, rounds_, flush_, stream_);
    std::printf("%-22s read  %5lld rows %9.2f us, %d largest, %9.2f without them, floor %6.2f\n",
                shape_.name, static_cast<long long>(rows), us[1] / kEncodes, kTop, us[0] / kEncodes,
                encoder_us());
  }
  cudaError_t enqueue_read(int64_t rows, int dictionary, int32_t top) {
    ReadFeaturesParams params;
    params.product.x = rows_.data();
    params.product.rows = rows;
    params.product.width = shape_.width;
    params.product.num_blocks = num_sms_;
    params.product.features = features_.data();
    params.product.feature_stride = tap::feature_row_floats(shape_.num_features);
    params.product.largest =
        params.product.features + tap::feature_tiles_begin(params.product.feature_stride);
    params.image = dictionaries_.vectors() + dictionaries_.offset(dictionary);
    params.num_features = shape_.num_features;
    params.k = shape_.k;
    params.top = top_.data();
    params.num_top = top;
    return launch_read_features(params, stream_);
  }

  const Shape& shape_;
  const int rounds_;
  const Buffer<uint8_t>& flush_;
  const cudaStream_t stream_;
  const Dictionaries dictionaries_;
  const Buffer<uint16_t> rows_, work_, before_;
  const Buffer<float> features_, norm_, values_;
  const Buffer<ops::TopFeature> top_;
  const Buffer<float> relays_{tap::kNumRelays};
  std::unique_ptr<Buffer<tap::TapOp>> ops_;
  std::unique_ptr<Buffer<ops::TapEntry>> entries_;
  std::unique_ptr<Buffer<int32_t>> zeros_;
  int num_sms_ = 0;
  int kilohertz_ = 0;
};

int bench_encodes(int rounds) {
  constexpr Shape kShapes[] = {{"2304 x 16384, k 64", 2304, 16384, 64},
                               {"2560 x 65536, k 64", 2560, 65536, 64}};
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const Buffer<uint8_t> flush(kFlushBytes);
  for (const Shape& shape : kShapes) EncodeBench(shape, rounds, flush, stream).run();
  cudaStreamDestroy(stream);
  return 0;
}

}  // namespace
}  // namespace rudder::cuda

int main(int argc, char** argv) {
  return rudder::cuda::bench_encodes(argc > 1 ? std::atoi(argv[1]) : 15);
}
