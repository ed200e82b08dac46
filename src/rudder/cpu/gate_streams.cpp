// StreamMixer::gate_streams(): streams that are read and written through products.
#include <cmath>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/double_sums.h"
#include "rudder/cpu/stream_mixer.h"
#include "rudder/cpu/tap_program.h"

namespace rudder::cpu {
namespace {

using tensor::View;

// How far a gate is open: the sigmoid.
double opened(double x) {
  return 1 / (1 + std::exp(-x));
}

// One token's streams, each normed.
std::vector<float> normed_streams(const ops::NormSpec& norm, const float* x, int64_t row,
                                  int64_t width) {
  std::vector<float> f(static_cast<size_t>(row));
  for (int64_t begin = 0; begin < row; begin += width) {
    const float* const stream = x + begin;
    const double mean = sum_of_products(stream, stream, width) / static_cast<double>(width);
    const double inverse = 1 / std::sqrt(mean + double{norm.eps});
    for (int64_t k = begin; k < begin + width; ++k) {
      f[static_cast<size_t>(k)] =
          static_cast<float>(double{x[k]} * inverse * double{norm.weight.as<float>()[k]});
    }
  }
  return f;
}

// matrix f, a number a row of the matrix.
std::vector<double> products(const View& matrix, const std::vector<float>& f) {
  const int64_t columns = matrix.shape[1];
  std::vector<double> out;
  out.reserve(static_cast<size_t>(matrix.shape[0]));
  for (int64_t r = 0; r < matrix.shape[0]; ++r) {
    out.push_back(sum_of_products(matrix.as<float>() + r * columns, f.data(), columns));
  }
  return out;
}

std::vector<float> injections(const View& inject, const std::vector<float>& f) {
  std::vector<float> post;
  for (const double sum : products(inject, f)) {
    post.push_back(static_cast<float>(2 * opened(sum / static_cast<double>(inject.shape[0]))));
  }
  return post;
}

// By which every number of f is read.
std::vector<float> openings(const ops::StreamGate& gate, const std::vector<float>& f,
                            int64_t streams) {
  std::vector<float> low;
  for (const double sum : products(gate.down, f)) {
    const double shared = sum / static_cast<double>(streams);
    low.push_back(static_cast<float>(shared * opened(shared)));
  }
  std::vector<float> open;
  for (const double sum : products(gate.up, low)) open.push_back(static_cast<float>(opened(sum)));
  return open;
}

}  // namespace

void StreamMixer::gate_streams(const ops::GateStreamsArgs& args) {
  const int64_t row = args.x.shape[1];
  const int64_t width = (args.delta.empty() ? args.out : args.delta).shape[1];
  RUDDER_CHECK(row % width == 0, "rows of {} in streams of {}", row, width);
  const int64_t streams = row / width;
  for (int64_t t = 0; t < args.x.shape[0]; ++t) {
    float* const x = args.x.as<float>() + t * row;
    if (!args.delta.empty()) {
      const float* const delta = args.delta.as<float>() + t * width;
      std::vector<float> post =
          injections(args.write.inject, normed_streams(args.write.norm, x, row, width));
      run_taps(args.post_taps, t, post.data(), std::ssize(post));
      for (int64_t k = 0; k < row; ++k) {
        x[k] += post[static_cast<size_t>(k / width)] * delta[k % width];
      }
    }
    if (args.out.empty()) continue;
    const std::vector<float> f = normed_streams(args.read.norm, x, row, width);
    const std::vector<float> open = openings(args.read, f, streams);
    float* const out = args.out.as<float>() + t * width;
    for (int64_t k = 0; k < width; ++k) {
      float sum = 0;
      for (int64_t at = k; at < row; at += width) {
        sum += open[static_cast<size_t>(at)] * f[static_cast<size_t>(at)];
      }
      out[k] = sum / static_cast<float>(streams);
    }
  }
}

}  // namespace rudder::cpu
