// MTP heads (multi-token prediction, DeepSeek-V3, arXiv 2412.19437, 2.2): a layer that a model's
// own checkpoint has besides the model's, which guesses the tokens behind the next one. This file
// has its spec, its tensors and its pass; exec/mtp_proposer.h runs it.
//
// With e(t) the embedding of token t and g(t) the row of token t behind the model's final norm, the
// first guess behind token t+1 is of
//   x = fc([embedding_norm(e(t+1)), hidden_norm(g(t))]);  h = layer(x);  f = final_norm(h);
//   logits = the model's head(f)
// where the layer is one of the model's own kinds, with KV of its own, of the pair (t, t+1) at
// position t. The next guess has f in place of g, or h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/model/column_share.h"
#include "rudder/model/decoder.h"
#include "rudder/model/head_decoder.h"
#include "rudder/model/spec.h"
#include "rudder/model/tensors.h"
#include "rudder/model/weight_budget.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

struct MtpSpec {
  ModelSpec layers;  // one, of the last of two stages: it begins with rows
  WeightNames names;
  // Of its tensors: all of them begin with `prefix`, the layer's with `layer_prefix`; the names of
  // the other modules are whole.
  std::string prefix;
  std::string layer_prefix;
  std::string fc;
  std::string embedding_norm;
  std::string hidden_norm;
  std::string final_norm;
  bool goes_on_normed = false;  // the next guess has f in place of g

  int64_t joined_width() const { return int64_t{2} * layers.hidden; }
};

struct MtpWeights {
  LayerWeights layer;
  ops::LinearWeight fc;  // of a rank: its share of the inputs
  ops::NormSpec embedding_norm;
  ops::NormSpec hidden_norm;
  ops::NormSpec final_norm;
  int64_t bytes = 0;  // of device memory, all of it
};

// The layer of a head for `target`. By name: a model of which no layer keeps every token's KV,
// whose residual is not one row, or whose tokens have rows for each layer.
Result<ModelSpec> mtp_layers(const ModelSpec& target);

// Of the checkpoint of `target`, or of another one in which its MTP head lies alone. By name: it
// has none or one of several layers, and what mtp_layers() refuses.
Result<MtpSpec> read_mtp(const weights::Checkpoint& checkpoint, const ModelSpec& target);

// `spec` is the whole head's; a rank has its part of the layer, and of fc its share of the inputs.
LayerTensors mtp_tensors(const MtpSpec& spec, MtpWeights* weights = nullptr, ops::Rank rank = {});

// The spec of the rank's part; an Error names what the ranks cannot divide.
Result<MtpSpec> shard_mtp(const MtpSpec& whole, ops::Rank rank);

// The rank's part of the whole head. Every tensor behind its prefix is taken or named in an Error.
Result<MtpWeights> load_mtp(const weights::Checkpoint& checkpoint, const MtpSpec& spec,
                            ops::Ops& ops);

// The pass of the head, as make_head_decoder() says of draft heads. begin(), finish(),
// more_logits() and hidden() are not for it.
class MtpHead final : public Decoder {
 public:
  // `spec` and `weights` are the rank's part and outlive it, as what `source` views does.
  static Result<std::unique_ptr<Decoder>> make(const MtpSpec& spec, const MtpWeights& weights,
                                               const HeadSource& source, const ops::KvLayer& kv,
                                               ops::Ops& ops, const DecoderLimits& limits,
                                               int32_t num_feedback);
  // Device bytes that make() allocates.
  static int64_t device_bytes(const MtpSpec& spec, const DecoderLimits& limits,
                              int32_t num_feedback, tensor::DType act, ops::Rank rank = {});

  ops::View forward(const ForwardBatch& batch) override;
  Begun begin(const ForwardBatch& batch) override;
  ops::View finish(const Begun& begun, const ForwardBatch& batch) override;
  ops::View hidden(int64_t num_tokens) const override;
  ops::View more_logits(const ops::View& rows) override;

 private:
  // Flat but for the last two; act but for the scales.
  struct Buffers {
    ops::View g;          // [max_tokens * hidden]
    ops::View embedded;   // [max_tokens * hidden]
    ops::View normed;     // [max_tokens * hidden]
    ops::View joined;     // [max_tokens * joined_width]
    ops::View operand;    // [max_tokens * joined_width]
    ops::View share;      // of a rank: its columns of fc's inputs
    ops::View scales;     // [max_tokens] f32
    ops::View feedback;   // [num_feedback, hidden]
    ops::View final_row;  // [max_logits_rows, hidden]
  };

  MtpHead(const MtpSpec& spec, const MtpWeights& weights, const HeadSource& source, ops::Ops& ops);

  ops::View rows_of(const ForwardBatch& batch);
  ops::View embed(const ForwardBatch& batch);
  void join(const ops::View& x, const ops::NormSpec& norm, int64_t column, const ops::View& joined);
  void keep_feedback(const ForwardBatch& batch);

  const MtpSpec& spec_;
  const MtpWeights& weights_;
  const HeadSource source_;
  ops::Ops& ops_;
  const Weights layer_weights_;  // the layer's, with the model's head behind it
  Buffers buffers_;
  ColumnShare columns_;               // of fc
  std::unique_ptr<Decoder> decoder_;  // of the layer; points into this
};

}  // namespace rudder::model
