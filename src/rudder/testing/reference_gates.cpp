#include "rudder/testing/reference_gates.h"

#include <cmath>

#include "rudder/testing/reference_streams.h"

namespace rudder::testing {
namespace {

// A token's streams side by side, normed.
std::vector<double> normed_row(const ReferenceStreamGate& gate, const std::vector<Matrix>& streams,
                               int64_t token, GateFault fault) {
  std::vector<double> lengths;
  double all = 0;
  for (const Matrix& stream : streams) {
    double square = 0;
    for (int64_t k = 0; k < stream.cols; ++k) square += stream.at(token, k) * stream.at(token, k);
    lengths.push_back(square / static_cast<double>(stream.cols));
    all += lengths.back() / static_cast<double>(streams.size());
  }
  std::vector<double> row;
  for (size_t i = 0; i < streams.size(); ++i) {
    const double length = fault == GateFault::kNormOfAll ? all : lengths[i];
    for (int64_t k = 0; k < streams[i].cols; ++k) {
      const auto at = static_cast<int64_t>(row.size());
      row.push_back(streams[i].at(token, k) / std::sqrt(length + gate.eps) * gate.norm.at(0, at));
    }
  }
  return row;
}

std::vector<double> products(const Matrix& matrix, const std::vector<double>& row) {
  std::vector<double> out(static_cast<size_t>(matrix.rows));
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t k = 0; k < matrix.cols; ++k) {
      out[static_cast<size_t>(r)] += matrix.at(r, k) * row[static_cast<size_t>(k)];
    }
  }
  return out;
}

double divisor(const std::vector<Matrix>& streams, GateFault fault) {
  return fault == GateFault::kUnshared ? 1 : static_cast<double>(streams.size());
}

}  // namespace

ReferenceStreamGate to_reference(const ops::StreamGate& gate) {
  const auto matrix = [](const tensor::View& view) {
    return view.empty() ? Matrix() : to_matrix(view);
  };
  return {matrix(gate.norm.weight), double{gate.norm.eps}, matrix(gate.down), matrix(gate.up),
          matrix(gate.inject)};
}

Matrix reference_gated_read(const ReferenceStreamGate& gate, const std::vector<Matrix>& streams,
                            GateFault fault) {
  Matrix out(streams[0].rows, streams[0].cols);
  for (int64_t t = 0; t < out.rows; ++t) {
    const std::vector<double> row = normed_row(gate, streams, t, fault);
    std::vector<double> low = products(gate.down, row);
    for (double& value : low) {
      value /= divisor(streams, fault);
      value *= reference_sigmoid(value);
    }
    const std::vector<double> open = products(gate.up, low);
    for (size_t at = 0; at < row.size(); ++at) {
      const auto k = static_cast<int64_t>(at) % out.cols;
      const Matrix& stream = streams[at / static_cast<size_t>(out.cols)];
      const double value = fault == GateFault::kRawValues ? stream.at(t, k) : row[at];
      const double count = fault == GateFault::kSum ? 1 : static_cast<double>(streams.size());
      out.at(t, k) += reference_sigmoid(open[at]) * value / count;
    }
  }
  return out;
}

std::vector<Matrix> reference_gated_write(const ReferenceStreamGate& gate,
                                          const std::vector<Matrix>& streams, const Matrix& branch,
                                          GateFault fault) {
  std::vector<Matrix> out = streams;
  for (int64_t t = 0; t < branch.rows; ++t) {
    const std::vector<double> post = products(gate.inject, normed_row(gate, streams, t, fault));
    for (size_t j = 0; j < out.size(); ++j) {
      const double magnitude = fault == GateFault::kHalfWritten ? 1 : 2;
      const double share = magnitude * reference_sigmoid(post[j] / divisor(streams, fault));
      for (int64_t k = 0; k < branch.cols; ++k) out[j].at(t, k) += share * branch.at(t, k);
    }
  }
  return out;
}

}  // namespace rudder::testing
