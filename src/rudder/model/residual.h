// The residual: what a layer carries to the next one, and how its branches read and write it. One
// of the alternatives of ModelSpec.residual, as mixers and MLPs are of a layer. A kind is a struct
// with nested Weights (of one layer), and these functions beside it: list_tensors, and form_of, by
// which taps and captures know its points. Its pass: residual_pass.h.
#pragma once

#include <cstdint>
#include <variant>

#include "rudder/tap/site.h"
#include "rudder/tensor/view.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h

// One row of the model's width. A branch reads it, normed, and its output is added.
struct OneStream {
  struct Weights {};
};

// Several rows of the model's width, the streams x_0 ... x_(n-1) (hyper-connections, with numbers
// that are the same for every token). The embedding is in each at first. A branch f with its norm
// reads and writes all of them:
//   x_j = write_j * f(sum over i of read_i * x_i) + sum over i of mix_ij * x_i
// What is left for the final norm is sum over i of end_i * x_i.
struct MixedStreams {
  int32_t count = 2;

  struct Site {
    tensor::View read;   // [n] f32
    tensor::View write;  // [n] f32
    tensor::View mix;    // [n * n] f32, mix_ij at i * n + j
  };
  struct Weights {
    Site mixer;
    Site mlp;
    tensor::View end;  // [n] f32, of the last layer alone
  };
};

using Residual = std::variant<OneStream, MixedStreams>;

// Appends the tensors of a layer; `weights` is where they are loaded to, null for their description
// alone.
void list_tensors(const OneStream& residual, bool is_last_layer, OneStream::Weights* weights,
                  LayerTensors& out);
void list_tensors(const MixedStreams& residual, bool is_last_layer, MixedStreams::Weights* weights,
                  LayerTensors& out);

inline tap::ResidualForm form_of(const OneStream& /*residual*/) {
  return {tap::ResidualKind::kOneStream, 1};
}
inline tap::ResidualForm form_of(const MixedStreams& residual) {
  return {tap::ResidualKind::kMixedStreams, residual.count};
}
inline tap::ResidualForm form_of(const Residual& residual) {
  return std::visit([](const auto& kind) { return form_of(kind); }, residual);
}

}  // namespace rudder::model
