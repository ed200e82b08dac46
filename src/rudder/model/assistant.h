// Assistant: a few layers that guess a model's next tokens from its last row and from the keys and
// values that its own layers keep (Gemma 4). It has none of its own, so nothing is to be caught up
// on, and a guess writes nothing. This file has its spec, its tensors, how a published checkpoint
// becomes both, and the pass. Loaded once; the executor's worker thread runs it.
//
// With h the row behind the model's final norm that token t was sampled from and e(t) the model's
// embedding of it, scaled as the model's, the first guess behind token t is of
//   x = pre_projection([e(t), h]);  x = layer(x) for each of its layers;  y = final_norm(x)
//   logits = head(y)
// and the next one has post_projection(y) in place of h and the guess in place of t. All of them
// are at the position of token t: each layer attends to what the last layer of the model that has a
// window, or none, as it has, keeps of all tokens before t; of a window to as many of them as the
// model's last row did.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/branch.h"
#include "rudder/model/column_share.h"
#include "rudder/model/decoder.h"
#include "rudder/model/spec.h"
#include "rudder/model/tensors.h"
#include "rudder/model/weight_budget.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

struct AssistantSpec {
  // Its layers, which have queries alone, norms and head. They go on with what pre_projection
  // makes, as the last stage of a model does with what the stage before it leaves.
  ModelSpec layers;
  int32_t target_hidden = 0;
  // Of each of its layers the one of the whole model whose keys and values it reads
  // (fit_assistant).
  std::vector<int32_t> reads = {};

  int64_t joined_width() const { return int64_t{2} * target_hidden; }
};

struct AssistantWeights {
  Weights layers;
  ops::LinearWeight pre;   // [hidden, 2 * target_hidden], of a rank its columns
  ops::LinearWeight post;  // [target_hidden, hidden], likewise
  int64_t bytes = 0;       // of device memory, all of it
};

// From config.json; errors name the key.
Result<AssistantSpec> read_assistant(const weights::Checkpoint& checkpoint);
Result<AssistantSpec> read_assistant(const weights::HfConfig& config);

// Settles `reads`. By name, what the assistant was not made for: rows of another width, another
// number of tokens, a layer for which the model has none with a window or without, or none that
// keeps KV of its shape for as many tokens.
Result<void> fit_assistant(const ModelSpec& target, AssistantSpec& assistant);

// Stages, the last of which has the assistant: it embeds. An Error: a layer that the assistant
// reads is on another one.
Result<void> join_assistant(const AssistantSpec& assistant, std::vector<Stage>& stages);

// The spec of the rank's part. An Error names what the ranks cannot divide, as shard_spec() does.
Result<AssistantSpec> shard_assistant(const AssistantSpec& whole, ops::Rank rank);

// The rank's part of the whole assistant. Every tensor of the checkpoint is consumed or named in an
// Error.
Result<AssistantWeights> load_assistant(const weights::Checkpoint& checkpoint,
                                        const AssistantSpec& spec, ops::Ops& ops);
// Device bytes, before anything is loaded.
Result<int64_t> assistant_bytes(const AssistantSpec& spec, const FormatOf& format_of,
                                ops::Rank rank = {});
// pre_projection and post_projection; `weights` is where they are loaded to, or null.
LayerTensors projection_tensors(const AssistantSpec& spec, AssistantWeights* weights = nullptr,
                                ops::Rank rank = {});

// What an assistant reads of its model, on its device.
struct AssistantSource {
  ops::View embedding;  // as Weights.embedding: empty where `head` has its rows
  const ops::LinearWeight* head = nullptr;
  float embed_scale = 1;
  std::vector<ops::KvLayer> kv;  // of each of the assistant's layers
};
// `target` and the rest are the device's stage and share of the model.
AssistantSource assistant_source(const AssistantSpec& spec, const ModelSpec& target,
                                 const Weights& weights, std::span<const ops::KvLayer> kv);

// The assistant on a device, with buffers for guesses behind `max_rows` sequences. Its pass is
// that of a Decoder, over single tokens, each with its row of logits; begin(), finish(),
// more_logits() and hidden() are not for it.
class Assistant final : public Decoder {
 public:
  // On a rank of a group `spec` and `weights` are its part (shard_assistant). `weights`, what
  // `source` names and `ops` outlive it. An Error is the backend's.
  static Result<std::unique_ptr<Assistant>> make(const AssistantSpec& spec,
                                                 const AssistantWeights& weights,
                                                 const AssistantSource& source, ops::Ops& ops,
                                                 int32_t max_rows, int32_t max_seq_len);
  // Device bytes that make() allocates.
  static int64_t device_bytes(const AssistantSpec& spec, int32_t max_rows, int32_t max_seq_len,
                              tensor::DType act, ops::Rank rank = {});

  // Picks the rows that the first guesses are of: `rows` [R] i32 of `normed` [N, target_hidden]
  // act; below 0: a row of zeros.
  void pick(const ops::View& normed, const ops::View& rows);
  // Logits of what follows the step's tokens, [R, vocab] f32, valid until the next call; leaves the
  // rows that the next guesses are of. It writes no KV.
  ops::View forward(const ForwardBatch& batch) override;

  Begun begin(const ForwardBatch& batch) override;
  ops::View finish(const Begun& begun, const ForwardBatch& batch) override;
  ops::View hidden(int64_t num_tokens) const override;
  ops::View more_logits(const ops::View& rows) override;

 private:
  Assistant(const AssistantSpec& spec, const AssistantWeights& weights,
            const AssistantSource& source, ops::Ops& ops)
      : spec_(spec), weights_(weights), source_(source), ops_(ops) {}

  void multiply(const ops::LinearWeight& weight, const ops::View& in, const ops::View& out);

  const AssistantSpec spec_;
  const AssistantWeights& weights_;
  const AssistantSource source_;
  ops::Ops& ops_;
  ColumnShare columns_;  // of both products
  std::unique_ptr<Decoder> decoder_;
  ops::View rows_;      // [max_rows * target_hidden] act: h
  ops::View embedded_;  // likewise
  ops::View joined_;    // [max_rows * 2 * target_hidden] act
  ops::View final_;     // [max_rows, hidden] act: y
  ops::View operand_;   // [max_rows * the wider input] act: a product's
  ops::View share_;     // likewise: a rank's columns of it; empty for one that is alone
  ops::View scales_;    // [max_rows] f32, of the operand
};

}  // namespace rudder::model
