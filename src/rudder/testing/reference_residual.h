// The residual of a model in double precision, of every kind (model/residual.h): what branches read
// and write. Tests only; the spec and its weights outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

class ReferenceResidual {
 public:
  using Streams = std::vector<Matrix>;               // [T, hidden] each
  enum class Part : uint8_t { kMixer, kMlp, kEnd };  // who reads or writes it

  ReferenceResidual(const model::ModelSpec& spec, const model::Weights& weights)
      : spec_(spec), weights_(weights) {}

  Streams begun(const Matrix& embedded) const;
  // Before the branch's norm.
  Matrix read(const Streams& x, size_t layer, Part part) const;
  void write(Streams& x, size_t layer, Part part, const Matrix& branch);

  // The sum of the streams, each times its number.
  static Matrix sum_of(const Streams& x, const std::vector<double>& numbers);

 private:
  // Of the kind, or null.
  template <typename Kind>
  const typename Kind::Weights* weights_of(size_t layer) const {
    return std::get_if<typename Kind::Weights>(&weights_.layers[layer].residual);
  }
  // Blocks that are finished when the part reads.
  std::ptrdiff_t blocks_at(size_t layer, Part part) const;

  const model::ModelSpec& spec_;
  const model::Weights& weights_;
  Matrix written_pre_;  // of a delayed residual, [T, n]: of the last write; empty before it
};

}  // namespace rudder::testing
