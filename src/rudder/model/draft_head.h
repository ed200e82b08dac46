// DraftHead: one layer that guesses a model's next tokens from rows of the model (EAGLE, arXiv
// 2401.15077; EAGLE-3, 2503.01840). This file has its spec, its tensors and how a checkpoint of the
// published layouts becomes both; head_decoder.h runs it. Load time, one thread.
//
// With e(t) the embedding of token t and a(t) the rows of token t that enter `aux_layers`, side by
// side, the first guess of EAGLE-3 behind token t+1 is of
//   g = fc(a(t));  x = [input_norm(e(t+1)), hidden_norm(g)];
//   h = (norm_before_residual ? hidden_norm(g) : g) + attention(x);  h = h + mlp(mlp_norm(h))
//   logits = head(final_norm(h)), of the tokens `target_ids`.
// The next guess has h in place of g, or final_norm(h) where norm_output. That of EAGLE is of
//   x = fc([e(t+1), g]), g the row of token t behind the model's final norm;
//   h = x + attention(x);  h = h + mlp(mlp_norm(h));  logits = the model's head(h)
// and the next guess has h in place of g. Both keep KV of their own, of the pair (t, t+1) at
// position t.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/model/tensors.h"
#include "rudder/model/weight_budget.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// How a head joins the embedding of a token with the rows of the one before.
enum class HeadInput : uint8_t {
  kSideBySide,  // EAGLE-3: each normed, the attention reads them side by side; fc makes g
  kProduct,     // EAGLE: fc makes one row of both
};

struct DraftHeadSpec {
  HeadInput input = HeadInput::kSideBySide;
  ModelSpec layer;  // its one layer, its width and ropes; `vocab` is the model's
  int32_t target_hidden = 0;
  int32_t draft_vocab = 0;
  // In the order of fc's inputs; empty: default_aux_layers of the model. With kProduct none: the
  // one row is the final norm's.
  std::vector<int32_t> aux_layers;
  int32_t num_aux = 3;  // rows of the model
  bool fc_bias = false;
  bool norm_before_fc = false;  // an RMS norm of a(t)
  bool norm_before_residual = false;
  bool norm_output = false;
  bool has_embedding = false;  // else e(t) is the model's

  int64_t aux_width() const { return int64_t{num_aux} * target_hidden; }
  bool is_product() const { return input == HeadInput::kProduct; }
  int64_t fc_width() const { return is_product() ? layer.hidden + aux_width() : aux_width(); }
  int64_t attention_width() const { return (is_product() ? 1 : 2) * int64_t{layer.hidden}; }
};

struct DraftHeadWeights {
  ops::View embedding;  // [vocab, hidden]; empty: the model's
  ops::NormSpec fc_norm;
  ops::LinearWeight fc;
  ops::NormSpec input_norm;  // this, the two about it and the last are not of kProduct
  ops::NormSpec hidden_norm;
  Attention::Weights attention;
  ops::NormSpec mlp_norm;
  GatedMlp::Weights mlp;
  ops::NormSpec final_norm;
  // [draft_vocab, hidden], of a rank its range of the rows; of kProduct the model's in its place
  ops::LinearWeight head;
  ops::View target_ids;  // [draft_vocab] i32; empty: a token is itself
  int64_t bytes = 0;     // of device memory, all of it
};

// What published heads read whose config does not say.
std::vector<int32_t> default_aux_layers(size_t num_layers);

// All norms and products; `weights` is where they are loaded to, null for their description alone.
// `prefix` is of the layer's names: "midlayer." or "layers.0.", which EAGLE has alone; `spec` is
// the whole head's. A rank has its heads of the attention, its neurons, a range of the head's
// tokens, and the products of its share of fc's inputs.
LayerTensors head_tensors(const DraftHeadSpec& spec, std::string_view prefix,
                          DraftHeadWeights* weights = nullptr, ops::Rank rank = {});

// From config.json, of a head that was asked for as one of `input`; errors name the key.
Result<DraftHeadSpec> read_draft_head(const weights::Checkpoint& checkpoint,
                                      HeadInput input = HeadInput::kSideBySide);

// Settles aux_layers. By name, what the head was not made for: another width, another number of
// tokens, layers that the model does not have, a scaled embedding where the head has none.
Result<void> fit_draft_head(const ModelSpec& target, DraftHeadSpec& head);

// Stages, the last of which has `head`, bring there what it reads of the model.
void join_head(const DraftHeadSpec& head, std::vector<Stage>& stages);

// The spec of the rank's part, which a head decoder runs: its layer is cut, `draft_vocab` and the
// widths of rows stay. An Error names what the ranks cannot divide, as shard_spec() does.
Result<DraftHeadSpec> shard_draft_head(const DraftHeadSpec& whole, ops::Rank rank);

// The rank's part of the whole head. Every tensor of the checkpoint is consumed or named in an
// Error.
Result<DraftHeadWeights> load_draft_head(const weights::Checkpoint& checkpoint,
                                         const DraftHeadSpec& spec, ops::Ops& ops);
// Device bytes, before anything is loaded.
Result<int64_t> draft_head_bytes(const DraftHeadSpec& spec, const FormatOf& format_of,
                                 ops::Rank rank = {});

}  // namespace rudder::model
