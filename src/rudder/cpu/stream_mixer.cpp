#include "rudder/cpu/stream_mixer.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/double_sums.h"
#include "rudder/cpu/tap_program.h"

namespace rudder::cpu {
namespace {

using tensor::View;

std::span<const float> numbers_in(const View& view) {
  return {view.as<float>(), view.empty() ? 0 : static_cast<size_t>(view.num_rows())};
}

// A row of them.
std::span<const float> numbers_in(const View& view, int64_t row) {
  return {view.as<float>() + row * view.shape[1], static_cast<size_t>(view.shape[1])};
}

// Streams of one token, [n, hidden]. Without `mix` what is in them is not read.
void write_streams(std::span<const float> write, std::span<const float> mix, const float* delta,
                   int64_t width, float* x, std::vector<float>& before) {
  const size_t count = write.size();
  before.assign(x, x + std::ssize(write) * width);
  for (size_t j = 0; j < count; ++j) {
    for (int64_t k = 0; k < width; ++k) {
      float sum = write[j] * delta[k];
      for (size_t i = 0; i < count && !mix.empty(); ++i) {
        sum += mix[i * count + j] * before[i * static_cast<size_t>(width) + static_cast<size_t>(k)];
      }
      x[static_cast<int64_t>(j) * width + k] = sum;
    }
  }
}

void read_streams(std::span<const float> read, const float* x, int64_t width, float* out) {
  for (int64_t k = 0; k < width; ++k) {
    float sum = 0;
    for (int64_t i = 0; i < std::ssize(read); ++i) {
      sum += read[static_cast<size_t>(i)] * x[i * width + k];
    }
    out[k] = sum;
  }
}

// Numbers of one token's streams, f the row of them all.
class TokenNumbers {
 public:
  TokenNumbers(const ops::StreamRule& rule, const ops::StreamMap& map, const float* f)
      : rule_(rule), map_(map), f_(f), count_(rule.streams) {
    const int64_t width = map.fn.shape[1];
    inverse_ = 1 / std::sqrt(sum_of_products(f, f, width) / static_cast<double>(width) +
                             double{rule.norm_eps});
  }

  std::vector<float> pre() const { return sigmoids(0, 1, double{rule_.eps}); }
  std::vector<float> post() const {
    return sigmoids(1, double{rule_.magnitude}, double{rule_.post_eps});
  }
  // [n * n]; none where streams are not mixed.
  std::vector<float> mix() const {
    if (rule_.iterations == 0) return {};
    std::vector<double> c;
    for (int64_t i = 0; i < count_; ++i) append_softmax(i, c);
    divide(c, 1, count_);
    for (int32_t again = 1; again < rule_.iterations; ++again) {
      divide(c, count_, 1);
      divide(c, 1, count_);
    }
    return {c.begin(), c.end()};
  }

 private:
  // Row `row` of the map, of part `part` of it.
  double logit(int64_t row, int64_t part) const {
    const int64_t width = map_.fn.shape[1];
    const double m = sum_of_products(f_, map_.fn.as<float>() + row * width, width) * inverse_;
    return m * double{map_.scale.as<float>()[part]} + double{map_.base.as<float>()[row]};
  }
  std::vector<float> sigmoids(int64_t part, double magnitude, double eps) const {
    std::vector<float> out;
    for (int64_t i = 0; i < count_; ++i) {
      const double sigmoid = 1 / (1 + std::exp(-logit(part * count_ + i, part)));
      out.push_back(static_cast<float>(magnitude * sigmoid + eps));
    }
    return out;
  }
  void append_softmax(int64_t i, std::vector<double>& c) const {
    std::vector<double> row;
    row.reserve(static_cast<size_t>(count_));
    for (int64_t j = 0; j < count_; ++j) row.push_back(logit((2 + i) * count_ + j, 2));
    const double largest = std::ranges::max(row);
    double total = 0;
    for (double& value : row) total += value = std::exp(value - largest);
    for (const double value : row) c.push_back(value / total + double{rule_.eps});
  }
  // Each line of numbers that lie `step` apart by its sum; lines begin `apart` from each other.
  void divide(std::vector<double>& c, int64_t apart, int64_t step) const {
    for (int64_t line = 0; line < count_; ++line) {
      const auto at = [&](int64_t i) { return static_cast<size_t>(line * apart + i * step); };
      double sum = double{rule_.eps};
      for (int64_t i = 0; i < count_; ++i) sum += c[at(i)];
      for (int64_t i = 0; i < count_; ++i) c[at(i)] /= sum;
    }
  }

  const ops::StreamRule& rule_;
  const ops::StreamMap& map_;
  const float* const f_;
  const int64_t count_;
  double inverse_ = 1;
};

void add_to_sums(const ops::SumBlocksArgs& args, const float* delta, int64_t width, float* x) {
  if (args.finished < 0) {
    for (int64_t k = 0; k < width; ++k) x[k] += delta[k];
    return;
  }
  std::copy_n(x, width, x + (1 + args.finished) * width);
  std::copy_n(delta, width, x);
}

// A sum as a query meets it.
struct MetSum {
  float score = 0;   // what the softmax is of: the normed sum times the query
  float length = 1;  // the sum's root mean square
};

MetSum meet(const ops::SumBlocksArgs& args, const float* sum, int64_t width) {
  float square = 0;
  float dot = 0;
  for (int64_t k = 0; k < width; ++k) {
    square += sum[k] * sum[k];
    dot += sum[k] * (args.norm.weight.as<float>()[k] * args.query.as<float>()[k]);
  }
  const float length = std::sqrt(square / static_cast<float>(width) + args.norm.eps);
  return {args.score_scale * dot / length, length};
}

void attend_to_sums(const ops::SumBlocksArgs& args, const float* x, int64_t width, float* out) {
  std::vector<MetSum> sums;
  for (int64_t s = 0; s <= args.blocks; ++s) sums.push_back(meet(args, x + s * width, width));
  const float largest = std::ranges::max(sums, {}, &MetSum::score).score;
  std::vector<float> weights;
  float total = 0;
  for (const MetSum& sum : sums) {
    const float weight = std::exp(sum.score - largest);
    total += weight;
    weights.push_back(args.normed_values ? weight / sum.length : weight);
  }
  for (int64_t k = 0; k < width; ++k) {
    float sum = 0;
    for (int64_t s = 0; s <= args.blocks; ++s) {
      sum += weights[static_cast<size_t>(s)] * x[s * width + k];
    }
    out[k] = sum / total;
  }
}

}  // namespace

void StreamMixer::mix_streams(const ops::MixStreamsArgs& args) {
  const int64_t row = args.x.shape[1];
  const View& narrow = args.delta.empty() ? args.out : args.delta;
  const int64_t width = narrow.shape[1];
  const auto is_wide = [&](const View& each) { return each.num_rows() * width == row; };
  RUDDER_CHECK(args.delta.empty() || is_wide(args.write), "{} numbers for rows of {}",
               args.write.num_rows(), row);
  RUDDER_CHECK(args.out.empty() || is_wide(args.read), "{} numbers for rows of {}",
               args.read.num_rows(), row);
  std::vector<float> before;
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    float* const x = args.x.as<float>() + t * row;
    if (!args.delta.empty()) {
      write_streams(numbers_in(args.write), numbers_in(args.mix),
                    args.delta.as<float>() + t * width, width, x, before);
    }
    if (args.out.empty()) continue;
    read_streams(numbers_in(args.read), x, width, args.out.as<float>() + t * width);
  }
}

void StreamMixer::connect_streams(const ops::ConnectStreamsArgs& args) {
  const int64_t row = args.x.shape[1];
  const int64_t width = (args.delta.empty() ? args.out : args.delta).shape[1];
  const int32_t streams = args.rule.streams;
  RUDDER_CHECK(row == width * streams, "{} streams in rows of {}", streams, row);
  const std::vector<float> mean(static_cast<size_t>(streams), 1 / static_cast<float>(streams));
  std::vector<float> before;
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    float* const x = args.x.as<float>() + t * row;
    if (!args.delta.empty()) {
      const float* const delta = args.delta.as<float>() + t * width;
      const TokenNumbers numbers(args.rule, args.write, x);
      std::vector<float> post = numbers.post();
      std::vector<float> mix = numbers.mix();
      run_taps(args.post_taps, t, post.data(), std::ssize(post));
      run_taps(args.mix_taps, t, mix.data(), std::ssize(mix));
      if (!args.pre.empty()) {
        RUDDER_CHECK(args.pre.shape[0] == args.x.shape[0], "{} rows of numbers for {}",
                     args.pre.shape[0], args.x.shape[0]);
        std::ranges::copy(numbers.pre(), args.pre.as<float>() + t * streams);
      }
      if (mix.empty()) {
        for (int64_t i = 0; i < row; ++i) {
          x[i] += post[static_cast<size_t>(i / width)] * delta[i % width];
        }
      } else {
        write_streams(post, mix, delta, width, x, before);
      }
    }
    if (args.out.empty()) continue;
    float* const out = args.out.as<float>() + t * width;
    if (!args.pre.empty()) {
      const int64_t at = args.pre.shape[0] == 1 ? 0 : t;
      read_streams(numbers_in(args.pre, at), x, width, out);
    } else {
      read_streams(args.read.empty() ? mean : TokenNumbers(args.rule, args.read, x).pre(), x, width,
                   out);
    }
  }
}

void StreamMixer::scale_add(const ops::ScaleAddArgs& args) {
  const int64_t width = args.x.shape[1];
  const int64_t count = args.gate.empty() ? 0 : args.gate.num_rows();
  RUDDER_CHECK(count <= 1 || count == width, "{} gates for rows of {}", count, width);
  std::vector<float> keep(static_cast<size_t>(std::max<int64_t>(count, 1)), args.keep);
  std::vector<float> add(keep.size(), args.add);
  for (int64_t i = 0; i < count; ++i) {
    const double w = double{args.gate.as<float>()[i]} / double{args.temperature};
    const double open = 1 / (1 + std::exp(-w));
    const double kept = (1 - open) * (1 + open);
    add[static_cast<size_t>(i)] = static_cast<float>(open);
    keep[static_cast<size_t>(i)] = static_cast<float>(std::sqrt(std::max(kept, 1e-3)));
  }
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    float* const x = args.x.as<float>() + t * width;
    const float* const delta = args.delta.as<float>() + t * width;
    for (int64_t k = 0; k < width; ++k) {
      const size_t at = keep.size() == 1 ? 0 : static_cast<size_t>(k);
      x[k] = keep[at] * x[k] + add[at] * delta[k];
    }
  }
}

void StreamMixer::sum_blocks(const ops::SumBlocksArgs& args) {
  const int64_t row = args.x.shape[1];
  const int64_t width = (args.delta.empty() ? args.out : args.delta).shape[1];
  const int64_t last = std::max(args.blocks, args.finished + 1);
  RUDDER_CHECK(row % width == 0 && last < row / width, "{} blocks in rows of {}", last, row);
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    float* const x = args.x.as<float>() + t * row;
    if (!args.delta.empty()) add_to_sums(args, args.delta.as<float>() + t * width, width, x);
    if (!args.out.empty()) attend_to_sums(args, x, width, args.out.as<float>() + t * width);
  }
}

}  // namespace rudder::cpu
