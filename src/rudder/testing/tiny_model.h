// Tiny random models without files: a spec and its weights, made on any backend. For tests of exec
// and of the engine above it: the outputs mean nothing, but every mechanism changes the logits.
#pragma once

#include <cstdint>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/model/assistant.h"
#include "rudder/model/draft_head.h"
#include "rudder/model/medusa.h"
#include "rudder/model/mtp.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"

namespace rudder::testing {

enum class TinyArch : uint8_t {
  kPreNorm,    // grouped queries, untied head, biases
  kSandwich,   // norms before and after each branch, windows, soft-caps, two ropes, tied head
  kPostNorm,   // norms after each branch only, q and k normed over all heads
  kHeadNorm,   // q and k normed per head, head_dim apart from hidden / heads
  kGated,      // gates instead of softmaxes, norms that clip, ReGLU
  kScaled,     // every scale: of branches, layers, logits, queries by position; v-norm, norms of
               // heads behind the rope, sinks, a layer without rope, proportional rope
  kTwoWidths,  // layers without a window have wider heads, fewer of keys, values that are raw keys;
               // v-norm, proportional rope, a scale of every layer, a soft-cap of logits
  kRecurrent,  // the first layer and the last have a toy mixer with a state (decayed_sum.h), which
               // runs on the host
  kTwoStreams,  // a residual of two mixed streams, a scale of every branch and of a layer
  kBlockSums,   // a residual of sums of blocks of two layers, a scale of every branch
  kExperts,     // the first layer and the last are mixtures of experts, beside a shared one
  kSinks,       // windows in every other layer, sinks, biases everywhere; experts with biases and
                // clamped gates, chosen before their softmax, and an MLP of all tokens beside them
  kDelta,    // the first layer has a gated delta rule, the last a short convolution, that between
             // them gated attention with partial rope, q and k normed per head
  kSpaces,   // the first layer has a state space alone, the last an MLP alone; that between them
             // attention and a state space side by side, and factors of its products
  kByLayer,  // embeddings by layer; the last layer reads the KV of the one before it; the first has
             // a window, and experts with norms of their own and a scale each
  kNormedSums,  // sums of blocks whose values are normed
  kGatedAdds,   // a residual that every branch scales by gates of channels
  kDepthAdds,   // the same by depth, and norms behind each branch
  kHyper,    // a residual of four streams whose numbers are each token's own, which end in a read
  kDelayed,  // three of them, which are read by the numbers of the branch before
  kGatedStreams,  // three streams that branches read and write by products of them, normed by that
  kLatent,        // latent attention: in the first layer queries by a row of their own, biases and
            // neighbours that turn; in the last halves that turn, between them nothing does; yarn,
            // queries by position
};
// Those that a GPU may run.
inline constexpr TinyArch kTinyArchs[] = {
    TinyArch::kPreNorm, TinyArch::kSandwich, TinyArch::kPostNorm,  TinyArch::kHeadNorm,
    TinyArch::kGated,   TinyArch::kScaled,   TinyArch::kTwoWidths, TinyArch::kExperts};
// The others.
inline constexpr TinyArch kOtherTinyArchs[] = {
    TinyArch::kRecurrent,  TinyArch::kTwoStreams,  TinyArch::kBlockSums, TinyArch::kSinks,
    TinyArch::kDelta,      TinyArch::kSpaces,      TinyArch::kByLayer,   TinyArch::kHyper,
    TinyArch::kNormedSums, TinyArch::kGatedAdds,   TinyArch::kDepthAdds, TinyArch::kLatent,
    TinyArch::kDelayed,    TinyArch::kGatedStreams};
std::string_view tiny_arch_name(TinyArch arch);
inline constexpr int32_t kTinyHeads = 4;

// vocab 160, hidden 64, 3 layers, 512 positions. With eight heads its mixers can be divided among
// eight ranks: the KV heads of kPreNorm are one of each rank, of others two ranks or all have the
// same.
model::ModelSpec tiny_spec(TinyArch arch, int32_t num_heads = kTinyHeads);
// Some of its layers give back the blocks that their windows have passed.
bool has_windows(TinyArch arch);

// Random weights for any spec, which is the whole model's: of a rank of a group, or of a stage, its
// part of them. The same seed gives the same weights on every backend, rank and stage.
Result<model::Weights> random_weights(const model::ModelSpec& spec, ops::Ops& ops, uint64_t seed,
                                      const model::Stage& stage = {});

enum class TinyHead : uint8_t {
  // Of another width than tiny models have, for any of them: it knows every third token (with more
  // heads
  // the first 140), reads what enters layers 2, 0 and 1, and norms wherever a head may.
  kOwnEmbedding,
  // As wide as the model, whose embedding it reads; it norms nowhere that it need not.
  kSharedEmbedding,
  // HeadInput::kProduct, with a bias of fc.
  kProduct,
};
// kOwnEmbedding is for any tiny model, the others for those that do not scale their embedding.
model::DraftHeadSpec tiny_head_spec(TinyHead kind, int32_t num_heads = kTinyHeads);
inline bool takes_head(const model::ModelSpec& spec, TinyHead kind) {
  return kind == TinyHead::kOwnEmbedding || spec.embed_scale == 1;
}
Result<model::DraftHeadWeights> random_head_weights(const model::DraftHeadSpec& spec, ops::Ops& ops,
                                                    uint64_t seed);

// Five Medusa heads of two layers for any tiny model; with `shares_lm_head` one product gives the
// logits of all.
model::MedusaSpec tiny_medusa_spec(bool shares_lm_head);
Result<model::MedusaWeights> random_medusa_weights(const model::MedusaSpec& spec, ops::Ops& ops,
                                                   uint64_t seed);

// Of layers as the model's last ones with and without a window are, but for their keys and values,
// and narrower: for every model some of whose layers weight by a softmax.
bool takes_assistant(const model::ModelSpec& target);
model::AssistantSpec tiny_assistant_spec(const model::ModelSpec& target);
Result<model::AssistantWeights> random_assistant_weights(const model::AssistantSpec& spec,
                                                         ops::Ops& ops, uint64_t seed);
// An MTP head of a model that mtp_layers() takes.
model::MtpSpec tiny_mtp_spec(const model::ModelSpec& target);
Result<model::MtpWeights> random_mtp_weights(const model::MtpSpec& spec, ops::Ops& ops,
                                             uint64_t seed);

}  // namespace rudder::testing
