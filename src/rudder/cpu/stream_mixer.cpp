#include "rudder/cpu/stream_mixer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "rudder/base/check.h"

namespace rudder::cpu {
namespace {

using tensor::View;

// Streams of one token, [n, hidden].
void write_streams(const ops::MixStreamsArgs& args, const float* delta, float* x,
                   std::vector<float>& before) {
  const int64_t count = args.write.num_rows();
  const int64_t width = args.delta.shape[1];
  before.assign(x, x + count * width);
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t k = 0; k < width; ++k) {
      float sum = args.write.as<float>()[j] * delta[k];
      for (int64_t i = 0; i < count && !args.mix.empty(); ++i) {
        sum += args.mix.as<float>()[i * count + j] * before[static_cast<size_t>(i * width + k)];
      }
      x[j * width + k] = sum;
    }
  }
}

void read_streams(const View& read, const float* x, int64_t width, float* out) {
  for (int64_t k = 0; k < width; ++k) {
    float sum = 0;
    for (int64_t i = 0; i < read.num_rows(); ++i) sum += read.as<float>()[i] * x[i * width + k];
    out[k] = sum;
  }
}

void add_to_sums(const ops::SumBlocksArgs& args, const float* delta, int64_t width, float* x) {
  if (args.finished < 0) {
    for (int64_t k = 0; k < width; ++k) x[k] += delta[k];
    return;
  }
  std::copy_n(x, width, x + (1 + args.finished) * width);
  std::copy_n(delta, width, x);
}

// What the query's softmax is of: the normed sum times it.
float score_of(const ops::SumBlocksArgs& args, const float* sum, int64_t width) {
  float square = 0;
  float dot = 0;
  for (int64_t k = 0; k < width; ++k) {
    square += sum[k] * sum[k];
    dot += sum[k] * (args.norm.weight.as<float>()[k] * args.query.as<float>()[k]);
  }
  return dot / std::sqrt(square / static_cast<float>(width) + args.norm.eps);
}

void attend_to_sums(const ops::SumBlocksArgs& args, const float* x, int64_t width, float* out) {
  std::vector<float> weights;
  for (int64_t s = 0; s <= args.blocks; ++s) {
    weights.push_back(score_of(args, x + s * width, width));
  }
  const float largest = std::ranges::max(weights);
  float total = 0;
  for (float& weight : weights) {
    weight = std::exp(weight - largest);
    total += weight;
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
      write_streams(args, args.delta.as<float>() + t * width, x, before);
    }
    if (!args.out.empty()) read_streams(args.read, x, width, args.out.as<float>() + t * width);
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
