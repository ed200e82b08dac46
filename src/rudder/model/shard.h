// Shards: what one rank of a group (ops/comm.h) has of a model. Attention is cut by KV heads with
// the query heads that read them, an MLP by neurons, the output head by vocabulary; embedding,
// norms of the residual stream and everything that is added to it are whole on every rank.
// tensors.h says of every tensor what a rank loads. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/ops/args.h"
#include "rudder/ops/comm.h"

namespace rudder::model {

struct LinearModule;  // tensors.h

// A dimension of a tensor as the checkpoint stores it, and the share that this rank loads.
struct Extent {
  // NOLINTNEXTLINE(google-explicit-constructor): a number is a whole dimension.
  Extent(int64_t whole = 0) : stored(whole), share{0, whole} {}
  Extent(int64_t whole, ops::Share part) : stored(whole), share(part) {}

  int64_t stored = 0;
  ops::Share share;

  int64_t count() const { return share.count; }  // of the share
  bool is_whole() const { return share.count == stored; }
};

// kInvalidArgument, "tensor-parallel-size": `what` of a model has no part for each rank.
tl::unexpected<Error> indivisible(const std::string& what, ops::Rank rank);

// The query heads and KV heads of a rank. Where there are more ranks than KV heads, several ranks
// have the same KV head.
struct HeadShares {
  ops::Share q;
  ops::Share kv;
};
HeadShares head_shares(const Attention& attention, ops::Rank rank);

// Of the dimensions of attention's tensors: its heads, and the elements of q, and of k or v.
struct AttentionExtents {
  Extent heads;
  Extent kv_heads;
  Extent q;
  Extent kv;
};
AttentionExtents attention_extents(const Attention& attention, ops::Rank rank);

// Lets ranks divide the experts of mixtures, not the neurons of each; false: there are no mixtures.
bool divide_by_expert(ModelSpec& whole);

// The spec of the rank's part, which a decoder runs: fewer heads and neurons in each layer; `vocab`
// stays that of the model. A tied head is none: a rank's part of it cannot embed every token. An
// Error (kInvalidArgument, "tensor-parallel-size") names what the ranks cannot divide.
Result<ModelSpec> shard_spec(const ModelSpec& whole, ops::Rank rank);

// Appends to `parts` what this rank has of `stored`, part `index` of the module as the checkpoint
// holds it (host memory): runs of its rows, or its columns copied to `memory`. kUnsupported: the
// rank's part would cut what shares a scale.
Result<void> cut_part(const ops::LinearPart& stored, const LinearModule& module, size_t index,
                      std::vector<std::vector<std::byte>>& memory,
                      std::vector<ops::LinearPart>& parts);

}  // namespace rudder::model
