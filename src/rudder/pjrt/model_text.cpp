#include "rudder/pjrt/model_text.h"

#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "rudder/base/check.h"

namespace rudder::pjrt {
namespace {

using model::Attention;
using model::GatedMlp;
using model::LayerSpec;

constexpr double kMasked = -3e38;  // a score that has no weight

// Writes one module.
class Writer {
 public:
  Writer(const ModelShape& shape, const PassShape& pass)
      : shape_(shape),
        spec_(shape.spec),
        pass_(pass),
        k_(static_cast<size_t>(shape.num_kv)),
        v_(static_cast<size_t>(shape.num_kv)) {}

  std::string write(Part part, int32_t layer);

 private:
  using Dims = HloText::Dims;

  Value input_of(Part part, int32_t layer);
  void take_kv_inputs(Part part, int32_t layer);
  void take_kv(int32_t index, int* output);
  Value output_of(Part part, int32_t layer, const Value& in);
  Value weight(WeightName name, int32_t index = 0) const;
  std::optional<Value> find(WeightName name, int32_t index) const;
  Value norm(const Value& x, const std::optional<Value>& weight);
  Value product(const Value& x, const Value& weight, const std::optional<Value>& bias);
  Value soft_cap(const Value& x, float cap);
  Value embed(const Value& ids);
  Value read(const Value& x, WeightName norm_name, int32_t layer);
  Value mix(const Value& in, int32_t layer);
  Value heads(const Value& x, int64_t count, int32_t layer, WeightName norm_name);
  Value rotate(const Value& x, const Attention& attention);
  Value attend(const Value& q, int32_t layer);
  Value softmax(const Value& scores, int32_t layer);
  void put(const Value& rows, const Value& slots, std::vector<Value>& kv);
  Value pages_of(const std::vector<Value>& kv, int32_t layer);
  Value seen(int32_t window);
  Value without_unseen(const Value& values);
  Value project(const Value& z, int32_t layer);
  Value mlp_act(const Value& in, int32_t layer);
  Value mlp_out(const Value& act, int32_t layer);
  Value run_layer(const Value& x, int32_t layer);
  Value head(const Value& rows);

  const ModelShape& shape_;
  const model::ModelSpec& spec_;
  const PassShape pass_;
  HloText text_;
  std::map<std::pair<WeightName, int32_t>, Value> weights_;
  std::map<int32_t, Value> seen_;  // by window
  Value positions_;
  std::map<int32_t, Value> slots_;  // by KV group
  std::map<int32_t, Value> pages_;
  Value picked_;  // rows of the head
  // The tensors of ModelShape::kv_types.
  std::vector<std::vector<Value>> k_;
  std::vector<std::vector<Value>> v_;
};

Value Writer::weight(WeightName name, int32_t index) const {
  return weights_.at({name, index});
}

std::optional<Value> Writer::find(WeightName name, int32_t index) const {
  const auto found = weights_.find({name, index});
  return found == weights_.end() ? std::nullopt : std::optional(found->second);
}

// Over the last axis; without a weight x itself.
Value Writer::norm(const Value& x, const std::optional<Value>& weight) {
  if (!weight) return x;
  const auto last = static_cast<int64_t>(x.type.dims.size()) - 1;
  Dims others;
  for (int64_t i = 0; i < last; ++i) others.push_back(i);
  const Value sum = text_.reduce("add", text_.binary("multiply", x, x), last);
  const Value mean = text_.scale(sum, 1.0 / static_cast<double>(x.type.dims.back()));
  const Value shifted = text_.binary("add", mean, text_.constant(spec_.norm_eps, mean.type));
  const Value factor = text_.broadcast(text_.unary("rsqrt", shifted), x.type.dims, others);
  return text_.binary("multiply", text_.binary("multiply", x, factor),
                      text_.broadcast(*weight, x.type.dims, {last}));
}

// x [n, in] f32 times weight [out, in].
Value Writer::product(const Value& x, const Value& weight, const std::optional<Value>& bias) {
  Value y = text_.dot(text_.convert(x, weight.type.elt), weight, {}, {}, {1}, {1});
  if (!bias) return y;
  return text_.binary("add", y, text_.broadcast(*bias, y.type.dims, {1}));
}

Value Writer::soft_cap(const Value& x, float cap) {
  if (cap == 0) return x;
  return text_.scale(text_.unary("tanh", text_.scale(x, 1.0 / double{cap})), cap);
}

Value Writer::embed(const Value& ids) {
  const Value rows = text_.take(weight(WeightName::kTable), ids);
  return text_.scale(text_.convert(rows, Elt::kF32), shape_.embed_scale);
}

Value Writer::read(const Value& x, WeightName norm_name, int32_t layer) {
  return norm(x, find(norm_name, layer));
}

// x [n, count * head_dim] as [n, count, head_dim], normed.
Value Writer::heads(const Value& x, int64_t count, int32_t layer, WeightName norm_name) {
  const LayerSpec& spec = spec_.layers[static_cast<size_t>(layer)];
  const Attention& attention = *attention_of(spec);
  const Dims split = {pass_.rows, count, attention.head_dim};
  const std::optional<Value> weight = find(norm_name, layer);
  const bool is_rotated = norm_name != WeightName::kVNorm;
  const auto turned = [&](const Value& y) {
    return is_rotated && attention.rope != model::kNoRope ? rotate(y, attention) : y;
  };
  if (weight && is_rotated && attention.qk_norm == model::QkNorm::kAllHeads) {
    return turned(text_.reshape(norm(x, weight), split));
  }
  const Value by_head = text_.reshape(x, split);
  if (attention.norms_rotated && is_rotated) return norm(turned(by_head), weight);
  return turned(norm(by_head, weight));
}

// Halves of the first rotary_dim elements of each head turn in pairs.
Value Writer::rotate(const Value& x, const Attention& attention) {
  const int64_t half = spec_.ropes[static_cast<size_t>(attention.rope)].rotary_dim / 2;
  const Value rows = text_.take(weight(WeightName::kRope, attention.rope), positions_);
  Dims dims = x.type.dims;
  dims.back() = half;
  const auto turn = [&](int64_t which) {
    const Value part = text_.reshape(text_.slice(rows, 1, which, which + 1), {pass_.rows, half});
    return text_.broadcast(part, dims, {0, 2});
  };
  const Value cos = turn(0);
  const Value sin = turn(1);
  const Value first = text_.slice(x, 2, 0, half);
  const Value second = text_.slice(x, 2, half, 2 * half);
  const auto times = [&](const Value& a, const Value& b) { return text_.binary("multiply", a, b); };
  Value turned = text_.concat(text_.binary("subtract", times(first, cos), times(second, sin)),
                              text_.binary("add", times(second, cos), times(first, sin)), 2);
  if (2 * half == x.type.dims.back()) return turned;
  return text_.concat(turned, text_.slice(x, 2, 2 * half, x.type.dims.back()), 2);
}

Value Writer::mix(const Value& in, int32_t layer) {
  const LayerSpec& spec = spec_.layers[static_cast<size_t>(layer)];
  const Attention& attention = *attention_of(spec);
  const Value qkv = product(in, weight(WeightName::kQkv, layer), find(WeightName::kQkvBias, layer));
  const int64_t q_end = attention.q_width();
  const int64_t k_end = q_end + attention.kv_width();
  const Value q =
      heads(text_.slice(qkv, 1, 0, q_end), attention.num_heads, layer, WeightName::kQNorm);
  if (!attention.own_kv) return attend(q, layer);
  const Value k =
      heads(text_.slice(qkv, 1, q_end, k_end), attention.num_kv_heads, layer, WeightName::kKNorm);
  const Value v = heads(text_.slice(qkv, 1, k_end, attention.qkv_width()), attention.num_kv_heads,
                        layer, WeightName::kVNorm);
  const auto kv = static_cast<size_t>(shape_.kv_index[static_cast<size_t>(layer)]);
  const Value& slots = slots_.at(shape_.kv_group[static_cast<size_t>(layer)]);
  put(k, slots, k_[kv]);
  put(v, slots, v_[kv]);
  return attend(q, layer);
}

// Writes rows [n, kv heads, head_dim] f32. Codes: as ops::KvLayer says.
void Writer::put(const Value& rows, const Value& slots, std::vector<Value>& kv) {
  if (!shape_.has_codes) {
    kv[0] = text_.put(kv[0], slots, text_.convert(rows, shape_.numbers));
    return;
  }
  constexpr double kLeastNormal = 1.17549435e-38;
  const Value most = text_.reduce("maximum", text_.unary("abs", rows), 2);
  const Value zero = text_.constant(0, most.type);
  // Of a row with a number that is not finite 0 / 0, so that it is read as such.
  const Value scale =
      text_.select(text_.is_finite(most),
                   text_.binary("divide", most,
                                text_.constant(ops::largest_code(tensor::DType::kI8), most.type)),
                   text_.binary("divide", zero, zero));
  const Value is_normal = text_.compare("GE", scale, text_.constant(kLeastNormal, scale.type));
  const Value inverse =
      text_.select(is_normal, text_.binary("divide", text_.constant(1, scale.type), scale), zero);
  const Value scaled =
      text_.binary("multiply", rows, text_.broadcast(inverse, rows.type.dims, {0, 1}));
  const Value whole = text_.unary("round_nearest_even", scaled);
  const Value codes = text_.convert(
      text_.select(text_.is_finite(whole), whole, text_.constant(0, whole.type)), Elt::kI8);
  kv[0] = text_.put(kv[0], slots, codes);
  kv[1] = text_.put(kv[1], slots, scale);
}

// What the pass's sequences have in a KV tensor: [n, keys, kv heads, head_dim], of a chunk
// [keys, kv heads, head_dim].
Value Writer::pages_of(const std::vector<Value>& kv, int32_t layer) {
  const Value& pages = pages_.at(shape_.kv_group[static_cast<size_t>(layer)]);
  Dims dims = {pass_.pages * shape_.block_size, kv[0].dim(2), kv[0].dim(3)};
  if (!pass_.is_chunk) dims.insert(dims.begin(), pass_.rows);
  Value numbers = text_.reshape(text_.take(kv[0], pages), dims);
  if (!shape_.has_codes) return numbers;
  Dims axes;  // of the scales, which have one for each head
  for (int64_t i = 0; i + 1 < std::ssize(dims); ++i) axes.push_back(i);
  const Value scales = text_.reshape(text_.take(kv[1], pages), Dims(dims.begin(), dims.end() - 1));
  const Value read = text_.binary("multiply", text_.convert(numbers, Elt::kF32),
                                  text_.broadcast(scales, dims, axes));
  return text_.convert(read, shape_.numbers);
}

// [n, keys]: which keys a token sees.
Value Writer::seen(int32_t window) {
  const auto found = seen_.find(window);
  if (found != seen_.end()) return found->second;
  const Dims dims = {pass_.rows, pass_.pages * shape_.block_size};
  const Value key = text_.iota(dims, 1);
  const Value position = text_.broadcast(positions_, dims, {0});
  Value seen = text_.compare("LE", key, position);
  if (window > 0) {
    const Value first = text_.binary("subtract", position, text_.constant(window, position.type));
    seen = text_.binary("and", seen, text_.compare("GT", key, first));
  }
  return seen_[window] = seen;
}

// Blocks also hold what other sequences have left there, which may be no number.
Value Writer::without_unseen(const Value& values) {
  Value there;
  if (pass_.is_chunk) {
    const Value last = text_.reduce("maximum", positions_, 0);
    const Value key = text_.iota({values.dim(0)}, 0);
    const Value is_key = text_.compare("LE", key, text_.broadcast(last, {values.dim(0)}, {}));
    there = text_.broadcast(is_key, values.type.dims, {0});
  } else {
    there = text_.broadcast(seen(0), values.type.dims, {0, 1});
  }
  return text_.select(there, values, text_.constant(0, values.type));
}

// q [n, heads, head_dim] f32 to [n, heads * head_dim] f32.
Value Writer::attend(const Value& q, int32_t layer) {
  const LayerSpec& spec = spec_.layers[static_cast<size_t>(layer)];
  const Attention& attention = *attention_of(spec);
  const auto kv = static_cast<size_t>(shape_.kv_index[static_cast<size_t>(layer)]);
  const int64_t kv_heads = attention.num_kv_heads;
  const int64_t group = attention.num_heads / kv_heads;
  const Value grouped = text_.reshape(text_.convert(q, shape_.numbers),
                                      {pass_.rows, kv_heads, group, attention.head_dim});
  const Value keys = pages_of(k_[kv], layer);
  const Value values = without_unseen(pages_of(v_[kv], layer));
  // [n, kv heads, group, keys]; of a chunk [kv heads, n, group, keys]
  Value scores = pass_.is_chunk ? text_.dot(grouped, keys, {1}, {1}, {3}, {2})
                                : text_.dot(grouped, keys, {0, 1}, {0, 2}, {3}, {3});
  scores = soft_cap(text_.scale(scores, attention.scale), softmax_of(spec)->softcap);
  const int64_t token_axis = pass_.is_chunk ? 1 : 0;
  const Value visible = text_.broadcast(seen(attention.window), scores.type.dims, {token_axis, 3});
  scores = text_.select(visible, scores, text_.constant(kMasked, scores.type));
  const Value weights = text_.convert(softmax(scores, layer), shape_.numbers);
  Value out = pass_.is_chunk ? text_.dot(weights, values, {0}, {1}, {3}, {0})
                             : text_.dot(weights, values, {0, 1}, {0, 2}, {3}, {1});
  if (pass_.is_chunk) out = text_.transpose(out, {1, 0, 2, 3});
  return text_.reshape(out, {pass_.rows, attention.q_width()});
}

// Over the last axis, with the head's sink where there are sinks.
Value Writer::softmax(const Value& scores, int32_t layer) {
  const Dims& dims = scores.type.dims;
  const Dims outer = {0, 1, 2};
  Value most = text_.reduce("maximum", scores, 3);
  std::optional<Value> sink = find(WeightName::kSinks, layer);
  if (sink) {
    const int64_t kv_axis = pass_.is_chunk ? 0 : 1;
    const Value by_head = text_.reshape(*sink, {dims[static_cast<size_t>(kv_axis)], dims[2]});
    sink = text_.broadcast(by_head, most.type.dims, {kv_axis, 2});
    most = text_.binary("maximum", most, *sink);
  }
  const Value shifted = text_.binary("subtract", scores, text_.broadcast(most, dims, outer));
  const Value powers = text_.unary("exponential", shifted);
  Value sum = text_.reduce("add", powers, 3);
  if (sink) {
    const Value own = text_.unary("exponential", text_.binary("subtract", *sink, most));
    sum = text_.binary("add", sum, own);
  }
  return text_.binary("divide", powers, text_.broadcast(sum, dims, outer));
}

Value Writer::project(const Value& z, int32_t layer) {
  const Value out = product(z, weight(WeightName::kOut, layer), find(WeightName::kOutBias, layer));
  return norm(out, find(WeightName::kMixerPostNorm, layer));
}

Value Writer::mlp_act(const Value& in, int32_t layer) {
  const GatedMlp& mlp = *gated_mlp_of(spec_.layers[static_cast<size_t>(layer)]);
  const Value both =
      product(in, weight(WeightName::kGateUp, layer), find(WeightName::kGateUpBias, layer));
  const Value gate = text_.slice(both, 1, 0, mlp.width);
  const Value up = text_.slice(both, 1, mlp.width, int64_t{2} * mlp.width);
  Value act;
  if (mlp.activation == ops::Activation::kSilu) {
    act = text_.binary("multiply", gate, text_.unary("logistic", gate));
  } else {
    RUDDER_CHECK(mlp.activation == ops::Activation::kGeluTanh);
    const Value cube = text_.binary("multiply", text_.binary("multiply", gate, gate), gate);
    const Value inner = text_.binary("add", gate, text_.scale(cube, 0.044715));
    const Value tanh = text_.unary("tanh", text_.scale(inner, 0.7978845608028654));
    const Value shifted = text_.binary("add", tanh, text_.constant(1, tanh.type));
    act = text_.scale(text_.binary("multiply", gate, shifted), 0.5);
  }
  return text_.binary("multiply", act, up);
}

Value Writer::mlp_out(const Value& act, int32_t layer) {
  const Value out =
      product(act, weight(WeightName::kDown, layer), find(WeightName::kDownBias, layer));
  return norm(out, find(WeightName::kMlpPostNorm, layer));
}

Value Writer::run_layer(const Value& x, int32_t layer) {
  const auto added = [&](const Value& to, const Value& delta) {
    return text_.binary("add", to, text_.scale(delta, spec_.branch_scale));
  };
  const Value mixed =
      added(x, project(mix(read(x, WeightName::kMixerPreNorm, layer), layer), layer));
  const Value in = read(mixed, WeightName::kMlpPreNorm, layer);
  const Value out = added(mixed, mlp_out(mlp_act(in, layer), layer));
  const std::optional<Value> scale = find(WeightName::kScale, layer);
  return scale ? text_.binary("multiply", out, text_.broadcast(*scale, out.type.dims, {})) : out;
}

Value Writer::head(const Value& rows) {
  const Value picked = text_.take(rows, picked_);
  const Value logits = product(picked, weight(WeightName::kHead), std::nullopt);
  return soft_cap(text_.scale(logits, spec_.logit_scale), spec_.final_softcap);
}

// The part's input, an argument.
Value Writer::input_of(Part part, int32_t layer) {
  if (part == Part::kPass || part == Part::kEmbed) {
    return text_.argument({Elt::kI32, {pass_.rows}});
  }
  int64_t width = spec_.hidden;
  const LayerSpec& spec = spec_.layers[static_cast<size_t>(layer)];
  if (part == Part::kMixed) width = attention_of(spec)->q_width();
  if (part == Part::kMlpOut) width = gated_mlp_of(spec)->width;
  return text_.argument({Elt::kF32, {pass_.rows, width}});
}

void Writer::take_kv_inputs(Part part, int32_t layer) {
  positions_ = text_.argument({Elt::kI32, {pass_.rows}});
  Dims pages = {pass_.pages};
  if (!pass_.is_chunk) pages.insert(pages.begin(), pass_.rows);
  for (int32_t group = 0; group < shape_.num_groups; ++group) {
    if (part != Part::kPass && group != shape_.kv_group[static_cast<size_t>(layer)]) continue;
    slots_[group] = text_.argument({Elt::kI32, {pass_.rows, 2}});
    pages_[group] = text_.argument({Elt::kI32, pages});
  }
}

void Writer::take_kv(int32_t index, int* output) {
  for (std::vector<std::vector<Value>>* const kv : {&k_, &v_}) {
    for (const Type& type : shape_.kv_types(index)) {
      (*kv)[static_cast<size_t>(index)].push_back(text_.argument(type, (*output)++));
    }
  }
}

Value Writer::output_of(Part part, int32_t layer, const Value& in) {
  switch (part) {
    case Part::kPass: {
      Value x = embed(in);
      for (int32_t i = 0; i < std::ssize(spec_.layers); ++i) x = run_layer(x, i);
      return norm(x, weight(WeightName::kFinalNorm));
    }
    case Part::kEmbed:
      return embed(in);
    case Part::kLayer:
      return run_layer(in, layer);
    case Part::kReadMixer:
      return read(in, WeightName::kMixerPreNorm, layer);
    case Part::kMix:
      return mix(in, layer);
    case Part::kMixed:
      return project(in, layer);
    case Part::kReadMlp:
      return read(in, WeightName::kMlpPreNorm, layer);
    case Part::kMlpAct:
      return mlp_act(in, layer);
    case Part::kMlpOut:
      return mlp_out(in, layer);
    case Part::kEnd:
      return norm(in, weight(WeightName::kFinalNorm));
    case Part::kHead:
      return head(in);
  }
  RUDDER_CHECK(false, "part {}", static_cast<int>(part));
}

std::string Writer::write(Part part, int32_t layer) {
  const Value in = input_of(part, layer);
  if (reads_kv(part)) take_kv_inputs(part, layer);
  if (part == Part::kHead) picked_ = text_.argument({Elt::kI32, {pass_.logits_rows}});
  for (const WeightRef& ref : weight_list(shape_, part, layer)) {
    weights_.emplace(std::pair(ref.name, ref.index), text_.argument(ref.type));
  }
  std::vector<int32_t> used;  // KV tensors
  if (part == Part::kPass) {
    for (int32_t i = 0; i < shape_.num_kv; ++i) used.push_back(i);
  } else if (reads_kv(part)) {
    used.push_back(shape_.kv_index[static_cast<size_t>(layer)]);
  }
  int output = 0;
  for (const int32_t index : used) take_kv(index, &output);
  const Value out = output_of(part, layer, in);
  std::vector<Value> results;
  for (const int32_t index : used) {
    for (const std::vector<std::vector<Value>>* const kv : {&k_, &v_}) {
      const std::vector<Value>& tensors = (*kv)[static_cast<size_t>(index)];
      results.insert(results.end(), tensors.begin(), tensors.end());
    }
  }
  results.push_back(out);
  return text_.finish(results);
}

}  // namespace

std::vector<Type> ModelShape::kv_types(int32_t index) const {
  for (size_t layer = 0; layer < kv_index.size(); ++layer) {
    const Attention& attention = *attention_of(spec.layers[layer]);
    if (kv_index[layer] != index || !attention.own_kv) continue;
    Type type{numbers, {num_blocks, block_size, attention.num_kv_heads, attention.head_dim}};
    if (!has_codes) return {type};
    type.elt = Elt::kI8;
    return {type, {Elt::kF32, {num_blocks, block_size, attention.num_kv_heads}}};
  }
  RUDDER_CHECK(false, "no layer has KV tensor {}", index);
}

std::string module_text(const ModelShape& shape, Part part, const PassShape& pass, int32_t layer) {
  return Writer(shape, pass).write(part, layer);
}

}  // namespace rudder::pjrt
