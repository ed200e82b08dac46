// What a backend may have beside the dense forward pass, each an interface of its own that Ops
// hands out by pointer (null: the backend has none of it). Who needs one asks when the executor is
// made, and refuses by name what nobody can run; behind that the pointer is there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "rudder/ops/adapter_args.h"
#include "rudder/ops/args.h"
#include "rudder/ops/comm.h"
#include "rudder/ops/copy_lane.h"
#include "rudder/ops/expert_args.h"
#include "rudder/ops/feature_args.h"
#include "rudder/ops/latent_args.h"
#include "rudder/ops/look_up_args.h"
#include "rudder/ops/state_args.h"
#include "rudder/ops/stream_args.h"
#include "rudder/ops/tail_args.h"

namespace rudder::ops {

class Ops;

// Trees of drafts: attention() heeds AttentionBatch.ancestors, sample() follows
// SampleRow.parent_up, and what was sampled then lies as a chain does.
class TreeOps {
 public:
  virtual ~TreeOps() = default;
  virtual void keep_paths(const KeepPathsArgs& args) = 0;
};

// What guesses on the device: heads, what follows repeated tokens, and passes that read and write
// the slots.
class DraftOps {
 public:
  virtual ~DraftOps() = default;
  virtual void place_rows(const PlaceRowsArgs& args) = 0;
  virtual void spread_logits(const SpreadLogitsArgs& args) = 0;
  virtual void residual_act(const ResidualActArgs& args) = 0;
  virtual void look_up(const LookUpArgs& args) = 0;
  virtual void place_tails(const PlaceTailsArgs& args) = 0;
  virtual void keep_guess(const KeepGuessArgs& args) = 0;
};

// Dictionaries of features.
class FeatureOps {
 public:
  virtual ~FeatureOps() = default;
  virtual void encode(const EncodeArgs& args) = 0;
  virtual void read_features(const ReadFeaturesArgs& args) = 0;
};

// Low-rank changes of products, token by token (adapter_args.h). Ops that have run are as without
// them: what an adapter adds is added behind.
class AdapterOps {
 public:
  virtual ~AdapterOps() = default;
  // Writes `mid`; in front of the product, where a backend may run it beside the product.
  virtual void shrink_adapters(const AdaptArgs& args) = 0;
  // Adds to `out`, behind the product, with the same arguments and nothing in between that writes
  // `mid`.
  virtual void expand_adapters(const AdaptArgs& args) = 0;
};

// Captures of attention patterns.
class PatternOps {
 public:
  virtual ~PatternOps() = default;
  virtual void patterns(const PatternArgs& args) = 0;
  // Once a step, behind its last patterns(): until then records may lack the sums of rows, and the
  // rows of other ranks.
  virtual void end_patterns(const EndPatternsArgs& args) = 0;
};

// A residual of several rows: mixed streams, sums of blocks, hyper-connections, gated streams; and
// one of a single row that every branch scales.
class StreamOps {
 public:
  virtual ~StreamOps() = default;
  virtual void mix_streams(const MixStreamsArgs& args) = 0;
  virtual void sum_blocks(const SumBlocksArgs& args) = 0;
  virtual void connect_streams(const ConnectStreamsArgs& args) = 0;
  // That and residual_norm() of what it reads, in fewer launches, where a device has some for such
  // rows; false: it has none, and has done nothing. The bits are those of the two.
  virtual bool connect_and_norm(const ConnectStreamsArgs& /*args*/,
                                const ResidualNormArgs& /*norm*/) {
    return false;
  }
  virtual void gate_streams(const GateStreamsArgs& args) = 0;
  virtual void scale_add(const ScaleAddArgs& args) = 0;
};

// Attention over one row of each token, of which keys and values are made. attention(), patterns()
// and keep_paths() of a backend that has this take a KvLayer of one part.
class LatentOps {
 public:
  virtual ~LatentOps() = default;
  virtual void latent_prep(const LatentPrepArgs& args) = 0;
  virtual void latent_values(const LatentValuesArgs& args) = 0;
};

// Mixers that keep a state of each sequence, by convolutions and linear recurrences; and gates of
// what mixers read.
class StateOps {
 public:
  virtual ~StateOps() = default;
  virtual void convolve(const ConvolveArgs& args) = 0;
  virtual void recur(const RecurArgs& args) = 0;
  virtual void gate_rows(const GateRowsArgs& args) = 0;
  virtual LatentOps* latent_ops() { return nullptr; }  // null: it has no latent rows
  virtual StateLimits state_limits() const { return {}; }
};

inline LatentOps* latent_ops_of(StateOps* states) {
  return states == nullptr ? nullptr : states->latent_ops();
}

// Steering and captures of what routers make.
class RouterTapOps {
 public:
  virtual ~RouterTapOps() = default;
  virtual void route_tapped(const RouteTappedArgs& args) = 0;
};

// Mixtures of experts: a token's row goes through the products of the experts that a router chose.
class ExpertOps {
 public:
  virtual ~ExpertOps() = default;
  // As Ops::make_linear, of parts of so many experts one after the other, as many of each: `in` and
  // `out` of the weight are those of one expert.
  virtual Result<LinearWeight> make_experts(std::span<const LinearPart> parts, int64_t experts) = 0;
  virtual void route(const RouteArgs& args) = 0;
  virtual void expert_linear(const ExpertLinearArgs& args) = 0;
  virtual void combine_experts(const CombineExpertsArgs& args) = 0;
  // The same in fewer launches, where a device has some for as many tokens; false: it has none, and
  // has done nothing. Which it is depends on shapes alone. Bits may be others.
  virtual bool open_experts(const OpenExpertsArgs& /*args*/) { return false; }
  virtual bool close_experts(const CloseExpertsArgs& /*args*/) { return false; }
  virtual RouterTapOps* router_taps() { return nullptr; }  // null: it taps no routers
};

inline RouterTapOps* router_taps_of(ExpertOps* experts) {
  return experts == nullptr ? nullptr : experts->router_taps();
}

// What the ranks of a group do together; they read each other's memory as their own. A reader has
// gather_logits() as well.
class RankOps {
 public:
  virtual ~RankOps() = default;
  // The device's place among those that compute a model together; null: it is alone.
  virtual Comm* comm() = 0;
  virtual void gather_logits(const GatherLogitsArgs& args) = 0;
  virtual void tap_shares(const TapSharesArgs& args) = 0;
  // Puts the sum of what the ranks have in x in its place, as ResidualNormArgs.sums_ranks adds.
  virtual void sum_ranks(const View& x) = 0;
};

// What uses this object's memory beside its own ops and on other threads.
class ReaderOps {
 public:
  virtual ~ReaderOps() = default;
  // Ops of one thread that read what lies there: residual_norm, logits and score; and read_features
  // on what they are given.
  virtual std::unique_ptr<Ops> make_reader() const = 0;  // null: none can be opened now
  virtual int64_t reader_bytes() const = 0;  // of device memory, beside what a reader allocates
  // It takes no memory of the device.
  virtual Result<std::unique_ptr<CopyLane>> make_lane() const = 0;
};

}  // namespace rudder::ops
