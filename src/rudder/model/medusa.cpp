#include "rudder/model/medusa.h"

#include <fmt/format.h>

#include <string>

#include "rudder/base/check.h"
#include "rudder/model/binder.h"
#include "rudder/model/quantised/quantisation.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;
using weights::Checkpoint;
using weights::HfConfig;

constexpr int32_t kMaxHeads = 128;
constexpr int32_t kMaxHeadLayers = 16;

std::string layer_name(MedusaLayout layout, int32_t head, int32_t layer) {
  return layout == MedusaLayout::kPublished ? fmt::format("{}.{}.linear", head, layer)
                                            : fmt::format("blocks.{}.layers.{}", head, layer);
}

std::string lm_head_name(const MedusaSpec& spec, int32_t head) {
  return spec.layout == MedusaLayout::kPublished ? fmt::format("{}.{}", head, spec.num_layers)
                                                 : fmt::format("lm_heads.{}", head);
}

int32_t num_lm_heads(const MedusaSpec& spec) {
  return spec.shares_lm_head ? 1 : spec.num_heads;
}

// A config of a whole model names it; published ones of heads name nothing.
Result<void> check_is_medusa(const HfConfig& config) {
  if (!config.has("architectures")) return {};
  RUDDER_TRY(const std::vector<std::string> names, config.strings("architectures"));
  if (names.size() == 1 && names[0].find("Medusa") != std::string::npos) return {};
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("'{}' is no class of Medusa heads: MedusaModel is one", fmt::join(names, ", ")),
      config.where("architectures"));
}

// The weight of a product, of which the config need not tell the shape.
Result<tensor::Shape> matrix_shape(const Checkpoint& checkpoint, const std::string& module) {
  const std::string name = module + ".weight";
  const weights::TensorInfo* const found = checkpoint.find(name);
  if (found == nullptr) {
    return fail(ErrorCode::kCorruptFile, fmt::format("the tensor '{}' is missing", name),
                checkpoint.name());
  }
  const tensor::Shape& shape = found->view.shape;
  constexpr int64_t kLongest = 1 << 24;
  if (shape.rank() == 2 && shape[0] > 0 && shape[0] <= kLongest) return shape;
  return fail(ErrorCode::kCorruptFile, fmt::format("it is of {}, no matrix", shape.to_string()),
              fmt::format("{}: tensor '{}'", found->file, name));
}

}  // namespace

LayerTensors medusa_tensors(const MedusaSpec& spec, MedusaWeights* weights, ops::Rank rank) {
  LayerTensors out;
  out.rank = rank;
  if (weights != nullptr) {
    const int32_t num_layers = spec.num_heads * spec.num_layers;
    weights->layers.resize(static_cast<size_t>(num_layers));
    weights->lm_heads.resize(static_cast<size_t>(num_lm_heads(spec)));
  }
  for (int32_t i = 0; i < spec.num_heads * spec.num_layers; ++i) {
    const std::string name = layer_name(spec.layout, i / spec.num_layers, i % spec.num_layers);
    out.add_linear({name}, {spec.hidden}, input_extent(spec.hidden, rank), spec.has_bias,
                   weights == nullptr ? nullptr : &weights->layers[static_cast<size_t>(i)]);
  }
  for (int32_t i = 0; i < num_lm_heads(spec); ++i) {
    const std::string name = lm_head_name(spec, i);
    out.add_linear({name}, {Extent{spec.vocab, ops::vocab_share(spec.vocab, rank)}}, spec.hidden,
                   false,
                   weights == nullptr ? nullptr : &weights->lm_heads[static_cast<size_t>(i)]);
  }
  return out;
}

Result<MedusaSpec> read_medusa(const Checkpoint& checkpoint) {
  RUDDER_TRY(const std::string text, checkpoint.read_text("config.json"));
  RUDDER_TRY(const HfConfig config, HfConfig::parse(text, checkpoint.name() + "/config.json"));
  RUDDER_TRY_VOID(check_is_medusa(config));
  const bool is_vllm = !config.has("medusa_num_heads");
  MedusaSpec spec;
  spec.layout = is_vllm ? MedusaLayout::kVllm : MedusaLayout::kPublished;
  RUDDER_TRY(const int64_t num_heads,
             config.integer(is_vllm ? "num_heads" : "medusa_num_heads", 1, kMaxHeads));
  RUDDER_TRY(
      const int64_t num_layers,
      config.integer_or(is_vllm ? "num_hidden_layers" : "medusa_num_layers", 1, 1, kMaxHeadLayers));
  spec.num_heads = static_cast<int32_t>(num_heads);
  spec.num_layers = static_cast<int32_t>(num_layers);
  if (is_vllm) {
    RUDDER_TRY(spec.shares_lm_head, config.boolean_or("original_lm_head", false));
  }
  const std::string first = layer_name(spec.layout, 0, 0);
  RUDDER_TRY(const tensor::Shape layer, matrix_shape(checkpoint, first));
  RUDDER_TRY(const tensor::Shape lm_head, matrix_shape(checkpoint, lm_head_name(spec, 0)));
  spec.hidden = static_cast<int32_t>(layer[0]);
  spec.vocab = static_cast<int32_t>(lm_head[0]);
  // What vLLM's configs say beside.
  RUDDER_TRY(const int64_t hidden, config.integer_or("hidden_size", spec.hidden, 1));
  RUDDER_TRY(const int64_t vocab, config.integer_or("vocab_size", spec.vocab, 1));
  if (hidden != spec.hidden) {
    return fail(ErrorCode::kCorruptFile, fmt::format("the tensors' is {}", spec.hidden),
                config.where("hidden_size"));
  }
  RUDDER_TRY(const int64_t truncated, config.integer_or("truncated_vocab_size", vocab, 1));
  if (truncated != vocab) {
    return fail(ErrorCode::kUnsupported, "heads that know a part of the tokens",
                config.where("truncated_vocab_size"));
  }
  if (vocab != spec.vocab) {
    return fail(ErrorCode::kCorruptFile, fmt::format("the tensors' is {}", spec.vocab),
                config.where("vocab_size"));
  }
  RUDDER_TRY(spec.has_bias,
             config.boolean_or("medusa_fc_bias", checkpoint.find(first + ".bias") != nullptr));
  return spec;
}

Result<void> fit_medusa(const ModelSpec& target, int32_t max_draft, const MedusaSpec& spec) {
  const auto refuse = [](std::string message, const char* key) {
    return fail(ErrorCode::kInvalidArgument, std::move(message),
                fmt::format("speculative-config.{}", key));
  };
  if (spec.hidden != target.hidden) {
    return refuse(
        fmt::format("the heads read rows of {}, the model's have {}", spec.hidden, target.hidden),
        "model");
  }
  if (spec.vocab != target.vocab) {
    return refuse(
        fmt::format("the heads are of {} tokens, the model of {}", spec.vocab, target.vocab),
        "model");
  }
  if (max_draft > spec.num_heads) {
    return refuse(fmt::format("{} drafts are asked for, there are {} heads, one a draft", max_draft,
                              spec.num_heads),
                  "num_speculative_tokens");
  }
  return {};
}

Result<void> check_medusa_shares(const MedusaSpec& spec, ops::Rank rank) {
  if (spec.hidden % rank.count != 0) {
    return indivisible(fmt::format("the {} inputs of Medusa heads", spec.hidden), rank);
  }
  return {};
}

Result<MedusaWeights> load_medusa(const Checkpoint& checkpoint, const MedusaSpec& spec,
                                  ops::Ops& ops) {
  RUDDER_TRY(const Quantisation quantisation, read_quantisation(checkpoint));
  MedusaWeights weights;
  const LayerTensors tensors = medusa_tensors(spec, &weights, ops::rank_of(ops));
  // Everything fits, and nothing is left over: before the first byte of it is loaded.
  Binder binder(checkpoint, quantisation);
  for (const LinearModule& linear : tensors.linears) {
    RUDDER_TRY_VOID(binder.take_linear(linear));
  }
  RUDDER_TRY_VOID(binder.check_all_taken({}));
  RUDDER_TRY_VOID(binder.read_for(ops));
  for (const LinearModule& linear : tensors.linears) {
    RUDDER_TRY(const BoundLinear bound, binder.take_linear(linear));
    RUDDER_TRY(*linear.target, ops.make_linear(bound.parts));
    weights.bytes += linear.target->bytes;
  }
  RUDDER_TRY_VOID(checkpoint.check_unchanged());
  return weights;
}

Result<int64_t> medusa_bytes(const MedusaSpec& spec, const FormatOf& format_of, ops::Rank rank) {
  return tensor_bytes(medusa_tensors(spec, nullptr, rank), format_of);
}

Result<std::unique_ptr<MedusaHeads>> MedusaHeads::make(const MedusaSpec& spec,
                                                       const MedusaWeights& weights, ops::Ops& ops,
                                                       int32_t max_rows) {
  RUDDER_CHECK(std::ssize(weights.layers) == spec.num_heads * spec.num_layers &&
               std::ssize(weights.lm_heads) == num_lm_heads(spec));
  std::unique_ptr<MedusaHeads> heads(new MedusaHeads(spec, weights, ops));
  const int64_t elements = int64_t{max_rows} * spec.hidden;
  for (View* buffer : {&heads->picked_, &heads->x_, &heads->product_, &heads->operand_}) {
    RUDDER_TRY(*buffer, ops.allocate(ops.act_dtype(), {elements}));
  }
  RUDDER_TRY(heads->scales_, ops.allocate(DType::kF32, {max_rows}));
  RUDDER_TRY(heads->logits_, ops.allocate(DType::kF32, {int64_t{max_rows} * spec.vocab}));
  RUDDER_TRY(heads->columns_, ColumnShare::make(ops, max_rows));
  if (const ops::Rank rank = heads->rank_; !rank.is_alone()) {
    RUDDER_TRY(heads->share_, ops.allocate(ops.act_dtype(), {elements / rank.count}));
    RUDDER_TRY(heads->logits_part_,
               ops.allocate(DType::kF32, {max_rows * ops::vocab_share(spec.vocab, rank).count}));
  }
  RUDDER_TRY_VOID(ops.prepare({.max_tokens = max_rows,
                               .max_rows = max_rows,
                               .max_seqs = max_rows,
                               .hidden = spec.hidden,
                               .max_linear_in = spec.hidden,
                               .head = &weights.lm_heads.front(),
                               .linears = weights.layers}));
  return heads;
}

int64_t MedusaHeads::device_bytes(const MedusaSpec& spec, int32_t max_rows, DType act,
                                  ops::Rank rank) {
  int64_t act_elements = int64_t{4} * spec.hidden;
  int64_t floats = 1 + int64_t{spec.vocab};
  if (!rank.is_alone()) {
    act_elements += input_extent(spec.hidden, rank).count();
    floats += ops::vocab_share(spec.vocab, rank).count;
  }
  return max_rows * (act_elements * static_cast<int64_t>(tensor::dtype_bytes(act)) +
                     floats * static_cast<int64_t>(sizeof(float))) +
         ColumnShare::device_bytes(max_rows, rank);
}

void MedusaHeads::begin(const View& normed, const View& rows) {
  num_rows_ = rows.num_rows();
  ops_.gather_rows({.x = normed, .rows = rows, .out = shaped(picked_, num_rows_, spec_.hidden)});
}

View MedusaHeads::logits(int32_t head) {
  const Products products(ops_, scales_);
  const View x = shaped(x_, num_rows_, spec_.hidden);
  ops_.draft_ops()->place_rows({.x = shaped(picked_, num_rows_, spec_.hidden), .out = x});
  for (int32_t i = 0; i < spec_.num_layers; ++i) {
    const int32_t index = head * spec_.num_layers + i;
    const ops::LinearWeight& layer = weights_.layers[static_cast<size_t>(index)];
    const View share = columns_.of(x, share_);
    const View y = products.project(layer, products.operand_of(layer, share, operand_), product_);
    columns_.sum(y);
    ops_.draft_ops()->residual_act({.x = x, .y = y});
  }
  const ops::LinearWeight& lm_head =
      weights_.lm_heads[spec_.shares_lm_head ? 0 : static_cast<size_t>(head)];
  const Operand in = products.operand_of(lm_head, x, operand_);
  const View out = shaped(logits_, num_rows_, spec_.vocab);
  const View part = rank_.is_alone() ? out : shaped(logits_part_, num_rows_, lm_head.out);
  ops_.logits({.x = in.x, .x_scale = in.scale, .head = &lm_head, .out = part});
  if (!rank_.is_alone()) ops_.rank_ops()->gather_logits({.part = part, .out = out});
  return out;
}

}  // namespace rudder::model
