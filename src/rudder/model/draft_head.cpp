#include "rudder/model/draft_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "rudder/model/archs/llama_like.h"
#include "rudder/model/binder.h"
#include "rudder/model/column_share.h"
#include "rudder/model/loader.h"
#include "rudder/model/quantised/quantisation.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;
using weights::Checkpoint;
using weights::HfConfig;

constexpr int32_t kMaxAuxLayers = 8;
constexpr std::string_view kPrefixes[] = {"midlayer.", "layers.0."};
constexpr const char* kEmbedding = "embed_tokens.weight";

// Exporters name the class differently; those of EAGLE-3 have all the same word in it, those of
// EAGLE are the class of the model or one of two of its own.
Result<void> check_architecture(const HfConfig& config, HeadInput input) {
  static constexpr std::array<std::string_view, 3> kProducts = {
      "EagleLlamaForCausalLM", "LlamaForCausalLMEagle", "LlamaForCausalLM"};
  RUDDER_TRY(const std::vector<std::string> names, config.strings("architectures"));
  const bool is_product = input == HeadInput::kProduct;
  const bool is_one = names.size() == 1;
  if (is_one && is_product && std::ranges::find(kProducts, names[0]) != kProducts.end()) return {};
  if (is_one && !is_product && names[0].find("Eagle3") != std::string::npos) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("'{}' is no {}: {} is one", fmt::join(names, ", "),
                          is_product ? "EAGLE head" : "EAGLE-3 head",
                          is_product ? kProducts[0] : "LlamaForCausalLMEagle3"),
              config.where("architectures"));
}

Result<void> read_aux_layers(const HfConfig& config, DraftHeadSpec& spec) {
  RUDDER_TRY(const int64_t count,
             config.integer_or("num_aux_hidden_states", spec.num_aux, 1, kMaxAuxLayers));
  spec.num_aux = static_cast<int32_t>(count);
  if (!config.has("eagle_config")) return {};
  RUDDER_TRY(const HfConfig eagle, config.object("eagle_config"));
  RUDDER_TRY(const bool is_used, eagle.boolean_or("use_aux_hidden_state", true));
  if (!is_used) {
    return fail(ErrorCode::kUnsupported, "a head that reads the last hidden row alone",
                eagle.where("use_aux_hidden_state"));
  }
  constexpr const char* kIds = "eagle_aux_hidden_state_layer_ids";
  if (!eagle.has(kIds)) return {};
  RUDDER_TRY(const std::vector<int64_t> ids, eagle.integers(kIds, 0, 1 << 12));
  if (ids.empty() || ids.size() > size_t{kMaxAuxLayers}) {
    return fail(ErrorCode::kCorruptFile, fmt::format("{} layers", ids.size()), eagle.where(kIds));
  }
  for (const int64_t id : ids) spec.aux_layers.push_back(static_cast<int32_t>(id));
  spec.num_aux = static_cast<int32_t>(ids.size());
  return {};
}

// int64 [draft_vocab], added to a token of the head.
Result<std::vector<int32_t>> read_target_ids(const Checkpoint& checkpoint,
                                             const DraftHeadSpec& spec) {
  const weights::TensorInfo* const d2t = checkpoint.find("d2t");
  if (d2t == nullptr) {
    if (spec.draft_vocab == spec.layer.vocab) return std::vector<int32_t>();
    return fail(ErrorCode::kCorruptFile, "the tensor 'd2t' is missing", checkpoint.name());
  }
  const std::string where = fmt::format("{}: tensor 'd2t'", d2t->file);
  if (d2t->view.dtype != DType::kI64 || d2t->view.shape != Shape{spec.draft_vocab}) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("it is {} of {}, not I64 of [{}]", d2t->view.shape.to_string(),
                            tensor::dtype_name(d2t->view.dtype), spec.draft_vocab),
                where);
  }
  std::vector<int32_t> ids;
  std::vector<bool> is_taken(static_cast<size_t>(spec.layer.vocab));
  for (int64_t i = 0; i < spec.draft_vocab; ++i) {
    const int64_t offset = d2t->view.as<int64_t>()[i];
    const int64_t id = offset < -i ? -1 : std::min<int64_t>(offset, spec.layer.vocab) + i;
    if (id < 0 || id >= spec.layer.vocab || is_taken[static_cast<size_t>(id)]) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("token {} of the head is {} of the model's {}", i,
                              id < 0 || id >= spec.layer.vocab ? "none" : "a second time one",
                              spec.layer.vocab),
                  where);
    }
    is_taken[static_cast<size_t>(id)] = true;
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// Nothing reads them: what d2t says, turned around.
bool is_spare(const std::string& name, const DraftHeadSpec& spec) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  return !spec.is_product() && (name == "t2d" || name == "d2t");
}

class HeadLoader {
 public:
  HeadLoader(const Checkpoint& checkpoint, const Quantisation& quantisation,
             const DraftHeadSpec& spec, ops::Ops& ops)
      : checkpoint_(checkpoint),
        spec_(spec),
        ops_(ops),
        rank_(ops::rank_of(ops)),
        binder_(checkpoint, quantisation) {}

  Result<DraftHeadWeights> load() {
    std::vector<int32_t> ids;
    if (!spec_.is_product()) {
      RUDDER_TRY(ids, read_target_ids(checkpoint_, spec_));
    }
    RUDDER_TRY(const std::string_view prefix, find_prefix());
    RUDDER_TRY_VOID(check(prefix));
    RUDDER_TRY_VOID(binder_.read_for(ops_));
    const LayerTensors tensors = head_tensors(spec_, prefix, &out_, rank_);
    for (const NormTensor& norm : tensors.norms) {
      RUDDER_TRY(const View stored, binder_.take(norm.weight.name, Shape{norm.weight.count}));
      norm.target->eps = spec_.layer.norm_eps;
      RUDDER_TRY(norm.target->weight, upload(stored, DType::kF32));
    }
    for (const LinearModule& linear : tensors.linears) {
      RUDDER_TRY(const BoundLinear bound, binder_.take_linear(linear));
      RUDDER_TRY(*linear.target, ops_.make_linear(bound.parts));
      out_.bytes += linear.target->bytes;
    }
    if (spec_.has_embedding) {
      RUDDER_TRY(const View stored, binder_.take(kEmbedding, table_shape()));
      RUDDER_TRY(out_.embedding, upload_table(stored, ops_));
      out_.bytes += static_cast<int64_t>(out_.embedding.bytes());
    }
    if (!ids.empty()) {
      const View host{const_cast<int32_t*>(ids.data()), DType::kI32, {spec_.draft_vocab}};
      RUDDER_TRY(out_.target_ids, upload(host, DType::kI32));
    }
    RUDDER_TRY_VOID(checkpoint_.check_unchanged());
    return std::move(out_);
  }

 private:
  static constexpr std::string_view kProbe = "hidden_norm.weight";

  Result<std::string_view> find_prefix() const {
    if (spec_.is_product()) return kPrefixes[1];
    for (const std::string_view prefix : kPrefixes) {
      if (binder_.has(fmt::format("{}{}", prefix, kProbe))) return prefix;
    }
    return fail(ErrorCode::kCorruptFile,
                fmt::format("the tensor '{}{}' is missing", kPrefixes[0], kProbe),
                checkpoint_.name());
  }

  Shape table_shape() const { return {spec_.layer.vocab, spec_.layer.hidden}; }

  Result<View> upload(const View& host, DType dtype) {
    RUDDER_TRY(const View device, ops_.upload(host, dtype));
    out_.bytes += static_cast<int64_t>(device.bytes());
    return device;
  }

  // Everything fits, and nothing is left over: before the first byte of it is read.
  Result<void> check(std::string_view prefix) {
    const LayerTensors tensors = head_tensors(spec_, prefix, nullptr, rank_);
    for (const NormTensor& norm : tensors.norms) {
      RUDDER_TRY_VOID(binder_.take(norm.weight.name, Shape{norm.weight.count}));
    }
    for (const LinearModule& linear : tensors.linears) {
      RUDDER_TRY_VOID(binder_.take_linear(linear));
    }
    if (binder_.has(kEmbedding)) RUDDER_TRY_VOID(binder_.take(kEmbedding, table_shape()));
    WeightNames names;
    for (const weights::TensorInfo& tensor : checkpoint_.tensors()) {
      if (is_spare(tensor.name, spec_)) names.ignored_prefixes.emplace_back(tensor.name);
    }
    return binder_.check_all_taken(names);
  }

  const Checkpoint& checkpoint_;
  const DraftHeadSpec& spec_;
  ops::Ops& ops_;
  const ops::Rank rank_;
  Binder binder_;
  DraftHeadWeights out_;
};

}  // namespace

std::vector<int32_t> default_aux_layers(size_t num_layers) {
  const auto count = static_cast<int32_t>(num_layers);
  return {2, count / 2, count - 3};
}

LayerTensors head_tensors(const DraftHeadSpec& spec, std::string_view prefix,
                          DraftHeadWeights* weights, ops::Rank rank) {
  using Weights = DraftHeadWeights;
  const Attention& attention = *attention_of(spec.layer.layers[0]);
  const int64_t hidden = spec.layer.hidden;
  Attention::Weights* const mixer = target_in(weights, &Weights::attention);
  const auto norm = [&](LayerTensors& to, std::string_view name, int64_t width,
                        ops::NormSpec Weights::*member) {
    to.add_norm(name, width, RmsNorm{}, target_in(weights, member));
  };
  const auto [heads, kv_heads, q, kv] = attention_extents(attention, rank);
  LayerTensors out;
  out.rank = rank;
  if (spec.norm_before_fc) norm(out, "input_norm", spec.aux_width(), &Weights::fc_norm);
  out.add_linear({"fc"}, {hidden}, input_extent(spec.fc_width(), rank), spec.fc_bias,
                 target_in(weights, &Weights::fc));
  out.prefix = prefix;
  if (!spec.is_product()) {
    norm(out, "input_layernorm", hidden, &Weights::input_norm);
    norm(out, "hidden_norm", hidden, &Weights::hidden_norm);
  }
  out.add_linear({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {q, kv, kv},
                 spec.attention_width(), attention.qkv_bias,
                 target_in(mixer, &Attention::Weights::qkv));
  out.add_linear({"self_attn.o_proj"}, {hidden}, q, attention.out_bias,
                 target_in(mixer, &Attention::Weights::out));
  norm(out, "post_attention_layernorm", hidden, &Weights::mlp_norm);
  list_tensors(*gated_mlp_of(spec.layer.layers[0]), hidden, GatedMlp::Names{},
               target_in(weights, &Weights::mlp), out);
  out.prefix.clear();
  if (spec.is_product()) return out;
  norm(out, "norm", hidden, &Weights::final_norm);
  out.add_linear({"lm_head"}, {Extent{spec.draft_vocab, ops::vocab_share(spec.draft_vocab, rank)}},
                 hidden, false, target_in(weights, &Weights::head));
  return out;
}

Result<DraftHeadSpec> read_draft_head(const Checkpoint& checkpoint, HeadInput input) {
  RUDDER_TRY(const std::string text, checkpoint.read_text("config.json"));
  RUDDER_TRY(const HfConfig config, HfConfig::parse(text, checkpoint.name() + "/config.json"));
  RUDDER_TRY_VOID(read_quantisation(checkpoint));
  RUDDER_TRY_VOID(check_architecture(config, input));
  DraftHeadSpec spec;
  spec.input = input;
  RUDDER_TRY(spec.layer, llama_like(config, {.activation = "silu"}));
  spec.layer.tied_head = false;
  if (spec.layer.layers.size() != 1) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("a head of {} layers: it may have one", spec.layer.layers.size()),
                config.where("num_hidden_layers"));
  }
  if (spec.is_product()) {  // an embedding in the file is a copy of the model's
    spec.target_hidden = spec.layer.hidden;
    spec.draft_vocab = spec.layer.vocab;
    spec.num_aux = 1;
    spec.fc_bias = checkpoint.find("fc.bias") != nullptr;
    Attention& attention = *attention_of(spec.layer.layers[0]);
    RUDDER_TRY(attention.qkv_bias, config.boolean_or("qkv_bias", attention.qkv_bias));
    return spec;
  }
  RUDDER_TRY(const int64_t draft_vocab,
             config.integer_or("draft_vocab_size", spec.layer.vocab, 1, spec.layer.vocab));
  spec.draft_vocab = static_cast<int32_t>(draft_vocab);
  RUDDER_TRY(const int64_t target_hidden,
             config.integer_or("target_hidden_size", spec.layer.hidden, 1, 1 << 20));
  spec.target_hidden = static_cast<int32_t>(target_hidden);
  RUDDER_TRY(spec.norm_before_residual, config.boolean_or("norm_before_residual", false));
  RUDDER_TRY(spec.norm_before_fc, config.boolean_or("norm_before_fc", false));
  RUDDER_TRY(spec.norm_output, config.boolean_or("norm_output", false));
  RUDDER_TRY(const bool norms_chunks, config.boolean_or("fc_norm", false));
  if (norms_chunks) {
    return fail(ErrorCode::kUnsupported, "a norm for each of the rows that the head reads",
                config.where("fc_norm"));
  }
  RUDDER_TRY_VOID(read_aux_layers(config, spec));
  spec.has_embedding = checkpoint.find(kEmbedding) != nullptr;
  return spec;
}

Result<void> fit_draft_head(const ModelSpec& target, DraftHeadSpec& head) {
  const auto refuse = [](std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), "speculative-config.model");
  };
  if (head.target_hidden != target.hidden) {
    return refuse(fmt::format("the head reads rows of {}, the model's have {}", head.target_hidden,
                              target.hidden));
  }
  if (head.layer.vocab != target.vocab) {
    return refuse(
        fmt::format("the head is of {} tokens, the model of {}", head.layer.vocab, target.vocab));
  }
  if (!head.has_embedding && head.layer.hidden != target.hidden) {
    return refuse(
        fmt::format("the head has rows of {} and no embedding of its own, the model's "
                    "has {}",
                    head.layer.hidden, target.hidden));
  }
  if (!head.has_embedding && target.embed_scale != 1) {
    return refuse("the head has no embedding of its own, and the model scales what it has");
  }
  if (head.is_product()) return {};
  if (head.aux_layers.empty()) head.aux_layers = default_aux_layers(target.layers.size());
  if (head.aux_layers.size() != static_cast<size_t>(head.num_aux)) {
    return refuse(
        fmt::format("the head reads {} layers, its config does not say which", head.num_aux));
  }
  for (const int32_t layer : head.aux_layers) {
    if (layer >= 0 && layer < std::ssize(target.layers)) continue;
    return refuse(fmt::format("the head reads what enters layer {}, the model has {} layers", layer,
                              target.layers.size()));
  }
  return {};
}

void join_head(const DraftHeadSpec& head, std::vector<Stage>& stages) {
  stages.back().has_table = !head.has_embedding;
  for (Stage& stage : stages) stage.aux_layers = head.aux_layers;
}

Result<DraftHeadSpec> shard_draft_head(const DraftHeadSpec& whole, ops::Rank rank) {
  DraftHeadSpec spec = whole;
  RUDDER_TRY(spec.layer, shard_spec(whole.layer, rank));
  if (whole.fc_width() % rank.count != 0) {
    return indivisible(fmt::format("the {} inputs of fc", whole.fc_width()), rank);
  }
  const ops::Rank last{rank.count - 1, rank.count};
  if (ops::vocab_share(whole.draft_vocab, last).count == 0) {
    return indivisible(fmt::format("the {} tokens of its lm_head", whole.draft_vocab), rank);
  }
  return spec;
}

Result<DraftHeadWeights> load_draft_head(const Checkpoint& checkpoint, const DraftHeadSpec& spec,
                                         ops::Ops& ops) {
  RUDDER_TRY(const Quantisation quantisation, read_quantisation(checkpoint));
  return HeadLoader(checkpoint, quantisation, spec, ops).load();
}

Result<int64_t> draft_head_bytes(const DraftHeadSpec& spec, const FormatOf& format_of,
                                 ops::Rank rank) {
  RUDDER_TRY(int64_t total,
             tensor_bytes(head_tensors(spec, kPrefixes[0], nullptr, rank), format_of));
  if (!spec.is_product()) total += spec.draft_vocab * int64_t{sizeof(int32_t)};
  if (!spec.has_embedding) return total;
  RUDDER_TRY(const ops::WeightFormat table,
             format_of("embed_tokens", ops::ProductUse::kHidden, false));
  return total + int64_t{spec.layer.vocab} * spec.layer.hidden *
                     static_cast<int64_t>(tensor::dtype_bytes(table_dtype(table)));
}

}  // namespace rudder::model
