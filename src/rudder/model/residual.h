// The residual: what a layer carries to the next one, and how its branches read and write it. One
// of the alternatives of ModelSpec.residual, as mixers and MLPs are of a layer. A kind is a struct
// with nested Weights (of one layer), and these functions beside it: list_tensors, stream_numbers,
// and form_of, by which taps and captures know its points. Its pass: residual_pass.h.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "rudder/ops/args.h"
#include "rudder/ops/stream_args.h"
#include "rudder/tap/site.h"
#include "rudder/tensor/view.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h

// One row of the model's width. A branch reads it, normed, and its output is added.
struct OneStream {
  struct Weights {};
};

// Several rows of the model's width, the streams x_0 ... x_(n-1) (hyper-connections). The embedding
// is in each at first. A branch f with its norm reads and writes all of them:
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

// Streams as those, with numbers of each token, made of its streams (ops::ConnectStreamsArgs): mHC
// of DeepSeek V4 and GLM 5.3 Flash; without a mix iHC of Hunyuan 4. What is left for the final norm
// is read by a map of its own, or is the mean of the streams.
//
// Delayed (DeepSeek V4.1), what is read is read by the numbers of the branch before: those that its
// map has made of the streams that it was to read. The first branch reads stream 0, and the last
// one's numbers are the end's, which has no map.
struct HyperConnections {
  ops::StreamRule rule;
  bool ends_in_mean = false;
  bool is_delayed = false;

  // Of its maps, "_fn", "_base" and "_scale" behind: of a layer, and the end's of the model.
  struct Names {
    std::string_view mixer = "hc_attn";
    std::string_view mlp = "hc_ffn";
    std::string_view end = "hc_head";
  };

  struct Weights {
    ops::StreamMap mixer;
    ops::StreamMap mlp;
    ops::StreamMap end;  // of the last layer alone; empty: their mean, or delayed
  };
};

// Streams that branches read and write by products of them (ops::GateStreamsArgs; gated residual of
// Qwen 3.8 Flash Next). What is read is normed by that: layers have no norms in front of their
// branches, and the model none in front of its head.
struct GatedStreams {
  int32_t count = 4;
  int32_t rank = 320;  // of what opens the streams

  struct Weights {
    ops::StreamGate mixer;
    ops::StreamGate mlp;
    ops::StreamGate end;  // of the last layer alone; it injects nothing
  };
};

// A history of sums (attention residuals, as in Kimi K3): the prefix p, which is the sum of what
// the branches of the block of layers at hand have written, and the sums b_0, b_1 ... of finished
// blocks. The embedding is p at first. A branch reads with attention over all of them, by a query
// of its own:
//   a_s = sum over k of s_k / sqrt(mean(s^2) + eps) * norm_k * query_k     of s in p, b_0, b_1 ...
//   in = sum over s of softmax(a)_s * s
// and its output is added to p. The mixer of a layer with which a block begins (layer % layers = 0)
// finishes the one before: when it has read, p becomes the next b, and its output the new p. What
// is left for the final norm is read likewise.
//
// With normed_values (Inkling 2) the norm has no weight, what is summed is normed too, and a_s is
// divided by sqrt(hidden).
struct BlockSums {
  int32_t layers = 1;  // of a block
  int32_t blocks = 1;  // that the model finishes: its layers / `layers`, rounded up
  bool normed_values = false;

  struct Query {
    ops::NormSpec norm;
    tensor::View query;  // [hidden] f32
  };
  struct Weights {
    Query mixer;
    Query mlp;
    Query end;  // of the last layer alone
  };
};

// One row of the model's width that every branch scales as it is added (ops::ScaleAddArgs): by a
// gate of each channel (Muse Spark), or by depth: with the n-th of n terms x = sqrt((n - 1) / n) x
// + f / sqrt(n), the embedding being the first.
struct ScaledAdds {
  bool by_depth = false;
  float temperature = 1;  // of gates

  struct Weights {
    tensor::View mixer;  // [hidden] f32; not by depth
    tensor::View mlp;
  };
};

using Residual =
    std::variant<OneStream, MixedStreams, HyperConnections, GatedStreams, BlockSums, ScaledAdds>;

// What a branch reads of it is normed.
inline bool reads_normed(const Residual& residual) {
  return std::holds_alternative<GatedStreams>(residual);
}
// Something of a write goes to the next read beside the rows.
inline bool is_delayed(const Residual& residual) {
  const auto* const hyper = std::get_if<HyperConnections>(&residual);
  return hyper != nullptr && hyper->is_delayed;
}

// What the list of a layer's tensors depends on.
struct ResidualLayer {
  int64_t hidden = 0;
  bool is_last = false;  // of the model
  std::string_view model_prefix = "model.";
  HyperConnections::Names hyper = {};
};

// Appends the tensors of a layer; `weights` is where they are loaded to, null for their description
// alone.
void list_tensors(const OneStream& residual, const ResidualLayer& layer,
                  OneStream::Weights* weights, LayerTensors& out);
void list_tensors(const MixedStreams& residual, const ResidualLayer& layer,
                  MixedStreams::Weights* weights, LayerTensors& out);
void list_tensors(const HyperConnections& residual, const ResidualLayer& layer,
                  HyperConnections::Weights* weights, LayerTensors& out);
void list_tensors(const GatedStreams& residual, const ResidualLayer& layer,
                  GatedStreams::Weights* weights, LayerTensors& out);
void list_tensors(const BlockSums& residual, const ResidualLayer& layer,
                  BlockSums::Weights* weights, LayerTensors& out);
void list_tensors(const ScaledAdds& residual, const ResidualLayer& layer,
                  ScaledAdds::Weights* weights, LayerTensors& out);

inline tap::ResidualForm form_of(const OneStream& /*residual*/) {
  return {tap::ResidualKind::kOneStream, 1};
}
inline tap::ResidualForm form_of(const MixedStreams& residual) {
  return {tap::ResidualKind::kMixedStreams, residual.count};
}
// Taps need not know where the numbers come from.
inline tap::ResidualForm form_of(const HyperConnections& residual) {
  return {.kind = tap::ResidualKind::kMixedStreams,
          .streams = residual.rule.streams,
          .collapses = !residual.is_delayed};
}
inline tap::ResidualForm form_of(const GatedStreams& residual) {
  return {tap::ResidualKind::kMixedStreams, residual.count};
}
inline tap::ResidualForm form_of(const BlockSums& residual) {
  return {tap::ResidualKind::kBlockSums, 1 + residual.blocks, residual.layers};
}
inline tap::ResidualForm form_of(const ScaledAdds& /*residual*/) {
  return {tap::ResidualKind::kOneStream, 1};
}
// The sites of numbers that streams are written by, of each token: tap::Geometry::sites.
inline uint16_t mix_sites_of(const Residual& residual) {
  if (std::holds_alternative<GatedStreams>(residual)) return tap::kPostMixSites;
  const auto* const hyper = std::get_if<HyperConnections>(&residual);
  if (hyper == nullptr) return 0;
  const bool mixes = hyper->rule.iterations > 0;
  return static_cast<uint16_t>(tap::kPostMixSites | (mixes ? tap::kResMixSites : 0));
}
inline tap::ResidualForm form_of(const Residual& residual) {
  return std::visit([](const auto& kind) { return form_of(kind); }, residual);
}

// Of a row that has several streams, a number for each: by which the embedding begins them, and by
// which they are summed to one row for who knows nothing of the kind (their mean; all that branches
// have written); and by which the first branch reads them, where not by its own.
struct StreamNumbers {
  std::vector<float> begin;
  std::vector<float> as_one;
  std::vector<float> first = {};
};
StreamNumbers stream_numbers(const OneStream& residual);
StreamNumbers stream_numbers(const MixedStreams& residual);
StreamNumbers stream_numbers(const HyperConnections& residual);
StreamNumbers stream_numbers(const GatedStreams& residual);
StreamNumbers stream_numbers(const BlockSums& residual);
StreamNumbers stream_numbers(const ScaledAdds& residual);
inline StreamNumbers stream_numbers(const Residual& residual) {
  return std::visit([](const auto& kind) { return stream_numbers(kind); }, residual);
}

}  // namespace rudder::model
