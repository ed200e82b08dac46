// The tensors of a model: what a spec and an architecture's names ask for, their shapes, which part
// of each a rank loads, and where the loaded weights go. Nothing else says so: the loader binds and
// loads by these lists, weight_budget.h adds them up, the decoder checks weights against them,
// make_model and tests invent weights for them. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/model/archs/archs.h"
#include "rudder/model/quantised/in_stack.h"
#include "rudder/model/shard.h"
#include "rudder/model/weights.h"

namespace rudder::model {

struct NormTensor {
  // One number for all of a row, or one a channel.
  struct Part {
    std::string name;  // empty: the checkpoint holds none, its values are ones
    int64_t count = 0;
  };
  Part weight;
  Part alpha = {};  // count 0: an RMS norm, which has none
  Extent width;     // one number for all of a row goes to every channel
  ops::NormSpec* target = nullptr;
  bool has_offset = true;  // its weight lacks what those of the model's norms lack
  float factor = 1;        // that its weight is multiplied by
  float eps = 0;           // 0: that of the model's norms
};
NormTensor norm_tensor(std::string_view module, Extent width, const NormKind& kind,
                       ops::NormSpec* target = nullptr);

// Of heads whose first `neighbours` elements turn in pairs of neighbours in the checkpoint: their
// rows are loaded in the order of ropes that turn halves, the first of each pair in front.
struct RowOrder {
  int64_t head_dim = 0;  // 0: rows stay in the order of the checkpoint
  int64_t neighbours = 0;

  bool is_stored() const { return head_dim == 0; }
  int64_t stored(int64_t row) const;  // the checkpoint's row that is loaded as `row`
};

// One product: parts stacked along the output rows.
struct LinearModule {
  struct Part {
    std::string name;          // of the tensor: ".weight" and ".bias", or "" and "_bias" follow
    std::vector<Extent> rows;  // stacked in the tensor: one, or those of several products
    InStack stack = {};
    RowOrder order = {};  // of a tensor of one product
    float factor = 1;     // that its numbers are multiplied by as they are loaded

    bool is_stacked() const { return stack.experts > 0; }
    std::string weight_name() const { return is_stacked() ? name : name + ".weight"; }
    std::string bias_name() const { return name + (is_stacked() ? "_bias" : ".bias"); }
    int64_t stored_rows() const;  // of the part
  };
  std::vector<Part> parts;  // one that is there twice has one tensor
  Extent in;
  bool bias = false;
  ops::LinearWeight* target = nullptr;
  bool is_first_rank = true;
  int64_t experts = 0;  // whose parts lie one behind the other; 0: it is no mixture of any
  ops::ProductUse use = ops::ProductUse::kHidden;

  int64_t rows() const;  // of all parts that this rank loads
  int64_t out() const { return experts == 0 ? rows() : rows() / experts; }  // of its weight
  size_t first_of(size_t part) const;  // the first part of the same tensor
  // Where the inputs are cut, each rank has a part of the sum: one of them adds the bias.
  bool adds_bias() const { return bias && (in.is_whole() || is_first_rank); }
};

// Optional numbers, one or `count`, f32 when loaded. The last of the names that is there counts; no
// exporter writes two.
struct ScaleTensor {
  std::vector<std::string> names;
  Extent count;
  ops::View* target = nullptr;
};

// What the values of a random model's tensor lie around: 0; 1; what makes about 70 % of the weights
// of a rectified gate of length 3 zero, as they are in trained models; 0, but so near that what a
// product adds to every token alike does not outweigh what is the token's own, as routers see it.
enum class ValueKind : uint8_t { kWeight, kGain, kGateSigma, kBias };

// [count], or a matrix of that many columns; f32 when loaded.
struct VectorTensor {
  std::string name;
  Extent count;
  ops::View* target = nullptr;
  ValueKind kind = ValueKind::kWeight;
  int64_t rows = 0;          // of a matrix, which is whole on every rank; 0: it is none
  bool is_of_heads = false;  // stored as [1, 1, count, 1]

  tensor::Shape stored() const {
    if (is_of_heads) return {1, 1, count.stored, 1};
    return rows == 0 ? tensor::Shape{count.stored} : tensor::Shape{rows, count.stored};
  }
  tensor::Shape loaded() const { return rows == 0 ? tensor::Shape{count.count()} : stored(); }
};

// A filter of `length` numbers for each channel: [channels, 1, length] in the checkpoint, flat and
// f32 when loaded; or a number for each, [channels]. Its channels are runs, one behind the other,
// of each of which a rank has a share.
struct FilterTensor {
  std::vector<std::string> names;  // of one tensor of all runs, or of one for each
  std::vector<Extent> runs;
  int64_t length = 0;
  ops::View* target = nullptr;
  bool is_flat = false;  // [channels]

  tensor::Shape stored(size_t tensor) const;  // of names[tensor]
  int64_t count() const;                      // numbers that this rank loads
  // Of the stored numbers, tensor behind tensor, those that this rank loads.
  std::vector<float> share_of(const std::vector<float>& values) const;
};

// Rows that are looked up, on every rank; in the dtype of the embedding when loaded.
struct TableTensor {
  std::string name;
  int64_t rows = 0;
  int64_t width = 0;
  ops::View* target = nullptr;
  bool on_host = false;  // in memory of the host that the device reads
};

// One number that the host keeps.
struct NumberTensor {
  std::string name;
  float* target = nullptr;
};

// The tensors of one layer, or those that no layer has. Targets are null where only a description
// was asked for.
struct LayerTensors {
  std::string prefix;  // of the layer's names: "model.layers.0."
  ops::Rank rank;      // whose part of them is loaded
  std::vector<NormTensor> norms;
  std::vector<VectorTensor> vectors;
  std::vector<FilterTensor> filters;
  std::vector<NumberTensor> numbers;
  std::vector<TableTensor> tables;
  std::vector<LinearModule> linears;
  std::vector<ScaleTensor> scales;
  std::vector<std::string> unread;  // a checkpoint may have them, and nothing depends on them

  void add_norm(std::string_view name, Extent width, const NormKind& kind, ops::NormSpec* target);
  void add_plain_norm(int64_t width, ops::NormSpec* target);  // without a tensor
  void add_vector(std::string_view name, Extent count, ops::View* target,
                  ValueKind kind = ValueKind::kWeight);
  void add_matrix(std::string_view name, int64_t rows, int64_t columns, ops::View* target);
  void add_filters(const std::vector<std::string_view>& names, std::vector<Extent> runs,
                   int64_t length, ops::View* target);
  void add_channels(std::string_view name, std::vector<Extent> runs, ops::View* target);
  // Parts behind the layer's prefix.
  void add_parts(std::vector<LinearModule::Part> parts, Extent in, ops::LinearWeight* target);
  // Of `experts` experts, one after the other; every part has `rows`.
  void add_experts(const std::vector<std::string_view>& names, Extent rows, Extent in,
                   int64_t experts, bool bias, ops::LinearWeight* target);
  // The same from one tensor, which has `stack.parts` of each of `stack.experts` experts.
  void add_stacked_experts(std::string_view name, const InStack& stack, Extent rows, Extent in,
                           bool bias, ops::LinearWeight* target);
  // `rows` of the parts by name; all of them where there is one name for all.
  void add_linear(const std::vector<std::string_view>& names, const std::vector<Extent>& rows,
                  Extent in, bool bias, ops::LinearWeight* target);
};

// &(weights->*member), or null without weights.
template <typename Weights, typename Member>
Member* target_in(Weights* weights, Member Weights::*member) {
  return weights == nullptr ? nullptr : &(weights->*member);
}

// `spec` is the whole model's. Without a rank: of one that is alone.
LayerTensors layer_tensors(const ModelSpec& spec, const WeightNames& names, size_t layer,
                           LayerWeights* weights = nullptr, ops::Rank rank = {});
// The same by names behind `prefix`, whatever the layer's own is.
LayerTensors layer_tensors_behind(std::string prefix, const ModelSpec& spec,
                                  const WeightNames& names, size_t layer,
                                  LayerWeights* weights = nullptr, ops::Rank rank = {});
// What the names of a layer's tensors begin with: "model.layers.0.".
std::string layer_behind(const WeightNames& names, size_t layer);
// Of no layer, besides the embedding, the head and its norm; of the first stage.
LayerTensors model_tensors(const ModelSpec& spec, const WeightNames& names,
                           Weights* weights = nullptr);
// One, or none where what the residual's end reads is normed.
std::vector<NormTensor> final_norm_tensors(const ModelSpec& spec, const WeightNames& names);
LinearModule head_module(const ModelSpec& spec, const WeightNames& names, ops::Rank rank = {});
// Whether the head's weight is the embedding table too, in one piece of memory.
inline bool shares_table(const ModelSpec& spec, ops::Rank rank, const Stage& stage = {}) {
  return spec.tied_head && rank.is_alone() && stage.is_alone();
}
// The layers of the whole model that the stage has: from `begin` to before `end`.
struct LayerRange {
  size_t begin = 0;
  size_t end = 0;
};
inline LayerRange layers_of(const ModelSpec& whole, const Stage& stage) {
  if (stage.is_alone()) return {0, whole.layers.size()};
  const auto begin = static_cast<size_t>(stage.first_layer);
  return {begin, begin + static_cast<size_t>(stage.num_layers)};
}

// Weights of the kinds of branches and of residual that the layer has, with nothing in them.
LayerWeights empty_weights(const ModelSpec& spec, size_t layer);

}  // namespace rudder::model
