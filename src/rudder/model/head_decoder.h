// The pass of a draft head (draft_head.h) as a Decoder: logits of the model's tokens. exec makes it
// once, for steps of its own; the executor's worker thread uses it.
#pragma once

#include <memory>

#include "rudder/base/result.h"
#include "rudder/model/decoder.h"
#include "rudder/model/draft_head.h"
#include "rudder/ops/comm.h"

namespace rudder::model {

// What a head reads of its model: its embedding, where the head has none, its head likewise, and
// the rows that its decoder keeps, in the blocks of the head's own KV.
struct HeadSource {
  ops::View embedding;  // as Weights.embedding: empty where `head` has its rows
  const ops::LinearWeight* head = nullptr;
  ops::View rows;  // as HiddenPool.rows
};

// On a rank of a group `spec` and `weights` are its part of the head (shard_draft_head). Of a step,
// ForwardBatch.feedback_rows says where the rows of logits leave what a guess behind them
// begins with, among `num_feedback` rows; with `goes_on_rows` each token is one that was guessed,
// and begins with the row that is named for it. begin(), finish(), more_logits() and hidden() are
// not for it.
Result<std::unique_ptr<Decoder>> make_head_decoder(const DraftHeadSpec& spec,
                                                   const DraftHeadWeights& weights,
                                                   const HeadSource& source, const ops::KvLayer& kv,
                                                   ops::Ops& ops, const DecoderLimits& limits,
                                                   int32_t num_feedback);

// Device bytes that it allocates.
int64_t head_workspace_bytes(const DraftHeadSpec& spec, const DecoderLimits& limits,
                             int32_t num_feedback, tensor::DType act, ops::Rank rank = {});

}  // namespace rudder::model
