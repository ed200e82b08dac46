#include "rudder/cpu/stream_mixer.h"

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

}  // namespace rudder::cpu
