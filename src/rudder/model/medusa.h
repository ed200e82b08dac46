// Medusa heads (arXiv 2401.10774): each guesses one token further ahead from the row of a model's
// last token, so a guess of several tokens is one pass of each head and none waits for another.
// This file has their spec, their tensors, how a checkpoint of the published layout or of vLLM's
// becomes both, and the pass. Loaded once; the executor's worker thread runs them.
//
// With h the row of token t behind the model's final norm, head i guesses token t + 2 + i:
//   x = h;  x = x + SiLU(layer(x)) for each of its layers;  logits = lm_head(x).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/branch.h"
#include "rudder/model/column_share.h"
#include "rudder/model/spec.h"
#include "rudder/model/tensors.h"
#include "rudder/model/weight_budget.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// Names of tensors: those of the published heads ("0.0.linear", "0.1"), or vLLM's
// ("blocks.0.layers.0", "lm_heads.0").
enum class MedusaLayout : uint8_t { kPublished, kVllm };

struct MedusaSpec {
  MedusaLayout layout = MedusaLayout::kPublished;
  int32_t num_heads = 0;
  int32_t num_layers = 1;  // of a head
  int32_t hidden = 0;      // of the model
  int32_t vocab = 0;       // likewise
  bool has_bias = false;   // of layers
  bool shares_lm_head = false;
};

struct MedusaWeights {
  // [num_heads * num_layers] of [hidden, hidden], of a rank its columns
  std::vector<ops::LinearWeight> layers;
  // [num_heads], or one for all, of [vocab, hidden], of a rank its range of the rows
  std::vector<ops::LinearWeight> lm_heads;
  int64_t bytes = 0;  // of device memory, all of it
};

// All products; `weights` is where they are loaded to, null for their description alone.
LayerTensors medusa_tensors(const MedusaSpec& spec, MedusaWeights* weights = nullptr,
                            ops::Rank rank = {});

// From config.json and the tensors' names and shapes; errors name the key or the tensor.
Result<MedusaSpec> read_medusa(const weights::Checkpoint& checkpoint);

// kInvalidArgument, by name: heads for rows of another width or another number of tokens, and more
// drafts than there are heads.
Result<void> fit_medusa(const ModelSpec& target, int32_t max_draft, const MedusaSpec& spec);
// An Error names what the ranks cannot divide, as shard_spec() does.
Result<void> check_medusa_shares(const MedusaSpec& spec, ops::Rank rank);

// The rank's part of the heads. Every tensor of the checkpoint is consumed or named in an Error.
Result<MedusaWeights> load_medusa(const weights::Checkpoint& checkpoint, const MedusaSpec& spec,
                                  ops::Ops& ops);
// Device bytes, before anything is loaded.
Result<int64_t> medusa_bytes(const MedusaSpec& spec, const FormatOf& format_of,
                             ops::Rank rank = {});

// The heads on a device, with buffers for `max_rows` rows.
class MedusaHeads {
 public:
  // `weights` and `ops` outlive it. An Error is the backend's.
  static Result<std::unique_ptr<MedusaHeads>> make(const MedusaSpec& spec,
                                                   const MedusaWeights& weights, ops::Ops& ops,
                                                   int32_t max_rows);
  // Device bytes that make() allocates.
  static int64_t device_bytes(const MedusaSpec& spec, int32_t max_rows, tensor::DType act,
                              ops::Rank rank = {});

  // Picks the rows that the heads read: `rows` [R] i32 of `normed` [N, hidden] act.
  void begin(const ops::View& normed, const ops::View& rows);
  // Of the rows picked, what head `head` guesses: [R, vocab] f32, valid until the next call.
  ops::View logits(int32_t head);

 private:
  MedusaHeads(const MedusaSpec& spec, const MedusaWeights& weights, ops::Ops& ops)
      : spec_(spec), weights_(weights), ops_(ops), rank_(ops::rank_of(ops)) {}

  const MedusaSpec spec_;
  const MedusaWeights& weights_;
  ops::Ops& ops_;
  const ops::Rank rank_;
  ColumnShare columns_;  // of the layers' products
  ops::View picked_;     // [max_rows * hidden] act
  ops::View x_;          // likewise: of the head at hand
  ops::View product_;    // likewise
  ops::View operand_;    // likewise: x as a product takes it
  ops::View scales_;     // [max_rows] f32, of the operand
  ops::View logits_;     // [max_rows * vocab] f32
  // Of a rank: its columns of x and of the logits; empty for one that is alone.
  ops::View share_;        // [max_rows * hidden / ranks] act
  ops::View logits_part_;  // [max_rows * .] f32
  int64_t num_rows_ = 0;
};

}  // namespace rudder::model
