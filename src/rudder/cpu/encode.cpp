#include "rudder/cpu/encode.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/tap_program.h"

namespace rudder::cpu {
namespace {

using tap::TapOp;

// Features that a thread computes at a time: their encoder rows are read once for all rows.
constexpr int64_t kFeaturesAtOnce = 64;

// A token and what is left of its ops; the first is kEncode, or there is none of that kind any
// more.
struct Job {
  int64_t token = 0;
  std::span<const TapOp> ops;

  bool encodes() const { return !ops.empty() && ops[0].kind == tap::OpKind::kEncode; }
  std::span<const TapOp> run() const { return ops.first(static_cast<size_t>(ops[0].run)); }
};

class Encoder {
 public:
  Encoder(const ops::EncodeArgs& args, ThreadPool* pool)
      : args_(args), table_(*args.taps.table), width_(args.x.shape[1]), pool_(pool) {}

  void run() {
    std::vector<Job> jobs;
    for (int64_t t = 0; t < args_.x.shape[0]; ++t) {
      const std::span<const TapOp> ops = encoded_ops(args_.taps, t);
      if (!ops.empty()) jobs.push_back({t, ops});
    }
    while (!jobs.empty()) {
      std::erase_if(jobs, [&](const Job& job) {
        if (job.encodes()) return false;
        finish_taps(args_.taps, job.token, job.ops, row(job.token), width_);
        return true;
      });
      std::ranges::sort(jobs, {},
                        [](const Job& job) { return std::pair(job.ops[0].v1, job.token); });
      for (size_t begin = 0; begin < jobs.size();)
        begin += encode_some(std::span(jobs).subspan(begin));
    }
  }

 private:
  float* row(int64_t token) const { return args_.x.as<float>() + token * width_; }
  std::span<float> features(int64_t i, int64_t count) const {
    return {table_.features.as<float>() + i * table_.features.shape[1], static_cast<size_t>(count)};
  }

  // The first of them that have one dictionary; how many these are.
  size_t encode_some(std::span<Job> jobs) {
    const int32_t offset = jobs[0].ops[0].v1;
    size_t count = 1;
    while (count < jobs.size() && count < size_t{tap::kEncodedRows} &&
           jobs[count].ops[0].v1 == offset) {
      ++count;
    }
    const DictionaryView dictionary = dictionary_at(table_, offset);
    const tap::DictionaryHead& head = *dictionary.head;
    RUDDER_CHECK(head.d_in == width_ && head.num_features <= table_.features.shape[1],
                 "a dictionary of {} features of rows of {}", head.num_features, head.d_in);
    const std::span<Job> batch = jobs.first(count);
    normalise(batch, head);
    multiply(count, dictionary);
    const auto run_one = [&](int64_t i) {
      Job& job = batch[static_cast<size_t>(i)];
      const std::span<float> values = features(i, head.num_features);
      if (head.k > 0) keep_largest(values, head.k);
      run_encoded(args_.taps, job.token, job.run(), values, row(job.token), width_);
      job.ops = job.ops.subspan(job.run().size());
    };
    for_each(std::ssize(batch), run_one);
    return count;
  }

  void normalise(std::span<const Job> jobs, const tap::DictionaryHead& head) const {
    for (size_t i = 0; i < jobs.size(); ++i) {
      normalise_row(head.norm, row(jobs[i].token), width_, normed(static_cast<int64_t>(i)));
    }
  }

  float* normed(int64_t i) const {
    return table_.encoded_rows.as<float>() + i * table_.encoded_rows.shape[1];
  }

  // The features of the normed rows, each with its activation, but for the k largest.
  void multiply(size_t rows, const DictionaryView& dictionary) {
    const tap::DictionaryHead& head = *dictionary.head;
    for_each((head.num_features + kFeaturesAtOnce - 1) / kFeaturesAtOnce, [&](int64_t piece) {
      const int64_t begin = piece * kFeaturesAtOnce;
      const int64_t end = std::min<int64_t>(begin + kFeaturesAtOnce, head.num_features);
      for (int64_t f = begin; f < end; ++f) {
        for (int64_t i = 0; i < static_cast<int64_t>(rows); ++i) {
          features(i, head.num_features)[static_cast<size_t>(f)] =
              feature_of(dictionary, f, normed(i));
        }
      }
    });
  }

  template <typename F>
  void for_each(int64_t count, const F& f) {
    if (pool_ != nullptr && count > 1) return pool_->parallel_for(count, f);
    for (int64_t i = 0; i < count; ++i) f(i);
  }

  const ops::EncodeArgs& args_;
  const ops::TapTable& table_;
  const int64_t width_;
  ThreadPool* const pool_;
};

}  // namespace

void normalise_row(tap::FeatureNorm norm, const float* h, int64_t width, float* out) {
  const RowScale scale = row_scale(norm, h, width);
  for (int64_t i = 0; i < width; ++i) {
    out[i] = static_cast<float>((double{h[i]} - scale.mean) * scale.by);
  }
}

float feature_of(const DictionaryView& dictionary, int64_t feature, const float* normed) {
  const tap::DictionaryHead& head = *dictionary.head;
  const double y = dictionary.with_encoder_row(
      feature, [&](const auto* weights) { return dot_f64(normed, weights, head.d_in); });
  const auto number = [&](int32_t begin) { return double{dictionary.values[begin + feature]}; };
  const double value =
      y > number(head.gate) ? std::max(number(head.scale) * y + number(head.bias), 0.0) : 0.0;
  return static_cast<float>(value);
}

void keep_largest(std::span<float> values, int32_t k) {
  const auto kept = static_cast<size_t>(k);
  if (kept >= values.size()) return;
  std::vector<float> sorted(values.begin(), values.end());
  std::ranges::nth_element(sorted, sorted.begin() + k - 1, std::ranges::greater());
  const float least = sorted[kept - 1];
  // Of those that are `least`, so many are kept.
  auto equal = k - std::ranges::count_if(values, [&](float value) { return value > least; });
  for (float& value : values) {
    if (value > least || (value == least && equal-- > 0)) continue;
    value = 0;
  }
}

void encode_rows(const ops::EncodeArgs& args, ThreadPool* pool) {
  Encoder(args, pool).run();
}

}  // namespace rudder::cpu
