#include "rudder/model/channel_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <variant>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/tensor_names.h"
#include "rudder/model/loader.h"
#include "rudder/model/spec.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

using tensor::DType;
using weights::TensorInfo;

constexpr int kExponents = 11;  // 0, 0.1 ... 1

// Names the products of one layer that read the same rows.
class LayerGroups {
 public:
  LayerGroups(const ModelSpec& spec, const WeightNames& names, size_t layer)
      : spec_(spec),
        names_(names),
        layer_(spec.layers[layer]),
        index_(static_cast<int32_t>(layer)),
        prefix_(layer_tensors(spec, names, layer).prefix) {}

  void add_to(std::vector<ScaledProducts>& out) const {
    if (const Attention* attention = attention_of(layer_)) add_attention(*attention, out);
    if (const GatedMlp* mlp = gated_mlp_of(layer_)) add_mlp(*mlp, out);
  }

 private:
  std::string weight(std::string_view module) const {
    return fmt::format("{}{}.weight", prefix_, module);
  }

  ScaledProducts group(tap::Site site, int32_t width) const {
    ScaledProducts out;
    out.point = {index_, site};
    out.num_channels = width;
    out.channels.resize(static_cast<size_t>(width));
    std::iota(out.channels.begin(), out.channels.end(), 0);
    return out;
  }

  void add_normed(tap::Site site, std::string_view norm, std::vector<std::string> products,
                  std::vector<ScaledProducts>& out) const {
    if (!layer_.norms.pre || !std::holds_alternative<RmsNorm>(spec_.norm)) return;
    ScaledProducts normed = group(site, spec_.hidden);
    normed.products = std::move(products);
    normed.sources = {{weight(norm), 0, true, names_.norm_offset}};
    out.push_back(std::move(normed));
  }

  // The rows of `module` from `first` on, and its bias.
  std::vector<ScaledProducts::Source> rows_of(std::string_view module, int64_t first,
                                              bool has_bias) const {
    std::vector<ScaledProducts::Source> sources = {{weight(module), first, false, 0}};
    if (has_bias) sources.push_back({fmt::format("{}{}.bias", prefix_, module), first, false, 0});
    return sources;
  }

  void add_attention(const Attention& attention, std::vector<ScaledProducts>& out) const {
    const auto& names = names_.of<Attention>();
    if (attention.out_gate) return;  // one more product reads the rows, and what is read is gated
    std::vector<std::string> products;
    for (const std::string_view name : names.qkv) {
      if (!attention.own_kv && !products.empty()) break;
      products.push_back(weight(name));
    }
    add_normed(tap::Site::kAttnIn, names_.mixer_pre_norm, std::move(products), out);
    // Values that a norm follows have no scale, and those of keys or of other layers more readers.
    const bool shares_kv = std::ranges::any_of(spec_.layers, [](const LayerSpec& layer) {
      const Attention* other = attention_of(layer);
      return other != nullptr && !other->own_kv;
    });
    if (shares_kv || attention.v_is_k || attention.v_norm) return;
    const bool is_fused = names.qkv.size() == 1;
    ScaledProducts values = group(tap::Site::kAttnZ, static_cast<int32_t>(attention.q_width()));
    values.products = {weight(names.out)};
    values.sources =
        rows_of(names.qkv.back(), is_fused ? attention.q_width() + attention.kv_width() : 0,
                attention.qkv_bias);
    values.num_channels = static_cast<int32_t>(attention.kv_width());
    const int32_t of_kv_head = attention.num_heads / attention.num_kv_heads;
    for (int32_t i = 0; i < static_cast<int32_t>(attention.q_width()); ++i) {
      const int32_t kv_head = i / attention.head_dim / of_kv_head;
      values.channels[static_cast<size_t>(i)] =
          kv_head * attention.head_dim + i % attention.head_dim;
    }
    out.push_back(std::move(values));
  }

  void add_mlp(const GatedMlp& mlp, std::vector<ScaledProducts>& out) const {
    const auto& names = names_.of<GatedMlp>();
    std::vector<std::string> products;
    products.reserve(names.gate_up.size());
    for (const std::string_view name : names.gate_up) products.push_back(weight(name));
    add_normed(tap::Site::kMlpIn, names_.mlp_pre_norm, std::move(products), out);
    ScaledProducts neurons = group(tap::Site::kMlpAct, mlp.width);
    neurons.products = {weight(names.down)};
    neurons.sources =
        rows_of(names.gate_up.back(), names.gate_up.size() == 1 ? mlp.width : 0, mlp.bias);
    out.push_back(std::move(neurons));
  }

  const ModelSpec& spec_;
  const WeightNames& names_;
  const LayerSpec& layer_;
  const int32_t index_;
  const std::string prefix_;
};

float rounded_as(DType dtype, float value) {
  if (dtype == DType::kBF16) return tensor::to_float(tensor::to_bf16(value));
  return dtype == DType::kF16 ? tensor::to_float(tensor::to_f16(value)) : value;
}

// What the stored numbers of a norm make of `scales`: the gain as it was over the gain as it is
// stored.
void round_to_gains(const weights::Checkpoint& checkpoint, const ScaledProducts::Source& norm,
                    std::vector<float>& scales) {
  const tensor::View& view = checkpoint.find(norm.tensor)->view;
  std::vector<float> weight;
  read_wide_row(view, 0, weight);
  for (size_t i = 0; i < scales.size(); ++i) {
    const float gain = weight[i] + norm.offset;
    const float stored = rounded_as(view.dtype, gain / scales[i] - norm.offset) + norm.offset;
    scales[i] = gain == 0 || stored == 0 ? 1 : gain / stored;
  }
}

// s of each channel for an exponent: the mean magnitude to its power, around 1.
std::vector<float> suggested(const std::vector<double>& magnitudes, double exponent) {
  constexpr double kLeast = 1e-4;
  std::vector<float> scales(magnitudes.size());
  double least = INFINITY;
  double most = 0;
  for (size_t i = 0; i < scales.size(); ++i) {
    const double scale = std::max(std::pow(magnitudes[i], exponent), kLeast);
    least = std::min(least, scale);
    most = std::max(most, scale);
    scales[i] = static_cast<float>(scale);
  }
  const double middle = std::sqrt(least * most);
  for (float& scale : scales) scale = static_cast<float>(scale / middle);
  return scales;
}

// Tries scales on products over transposed rows.
class Trial {
 public:
  Trial(const QuantiseScheme& scheme, std::span<const float> rows, size_t width)
      : scheme_(scheme), count_(rows.size() / width), columns_(rows.size()) {
    for (size_t n = 0; n < count_; ++n) {
      for (size_t k = 0; k < width; ++k) columns_[k * count_ + n] = rows[n * width + k];
    }
  }

  // Squared, of the output of a row of weights that is rounded with these scales.
  double error_of(const std::vector<float>& row, const std::vector<float>& scales) const {
    const size_t group = scheme_.group == 0 ? row.size() : static_cast<size_t>(scheme_.group);
    std::vector<float> scaled(group);
    std::vector<float> off(count_);
    for (size_t begin = 0; begin < row.size(); begin += group) {
      for (size_t i = 0; i < group; ++i) scaled[i] = row[begin + i] * scales[begin + i];
      const float scale = group_scale(scaled, scheme_);
      for (size_t i = 0; i < group; ++i) {
        const auto code = static_cast<float>(integer_code(scaled[i] / scale, scheme_.bits));
        const float miss = code * scale / scales[begin + i] - row[begin + i];
        const float* const column = columns_.data() + (begin + i) * count_;
        for (size_t n = 0; n < count_; ++n) off[n] += miss * column[n];
      }
    }
    return std::inner_product(off.begin(), off.end(), off.begin(), 0.0);
  }

 private:
  const QuantiseScheme& scheme_;
  const size_t count_;
  std::vector<float> columns_;  // [width, count]
};

std::vector<double> mean_magnitudes(const ScaledProducts& group, std::span<const float> rows) {
  const size_t width = group.channels.size();
  std::vector<double> sums(static_cast<size_t>(group.num_channels));
  for (size_t i = 0; i < rows.size(); ++i) {
    sums[static_cast<size_t>(group.channels[i % width])] += std::abs(rows[i]);
  }
  // Channels have as many inputs each, so that their number makes no difference.
  const size_t num_rows = rows.size() / width;
  for (double& sum : sums) sum /= static_cast<double>(num_rows);
  return sums;
}

}  // namespace

Result<std::vector<ScaledProducts>> scaled_products(const weights::Checkpoint& checkpoint) {
  RUDDER_TRY(const ModelSpec spec, read_spec(checkpoint));
  RUDDER_TRY_VOID(check_tensors(checkpoint, spec));
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  const WeightNames names = names_in(architecture->names, checkpoint);
  std::vector<ScaledProducts> found;
  if (!std::holds_alternative<OneStream>(spec.residual)) return found;
  for (size_t i = 0; i < spec.layers.size(); ++i) LayerGroups(spec, names, i).add_to(found);
  return found;
}

FoundScales find_scales(const weights::Checkpoint& checkpoint, const QuantiseScheme& scheme,
                        const ScaledProducts& group, std::span<const float> rows, ThreadPool& pool,
                        ChannelScales& scales) {
  const size_t width = group.channels.size();
  const Trial trial(scheme, rows, width);
  const std::vector<double> magnitudes = mean_magnitudes(group, rows);
  std::array<std::vector<float>, kExponents> of_channels;
  std::array<std::vector<float>, kExponents> of_inputs;
  for (size_t e = 0; e < kExponents; ++e) {
    of_channels[e] = suggested(magnitudes, static_cast<double>(e) / (kExponents - 1));
    if (e == 0) std::ranges::fill(of_channels[e], 1.0f);
    for (const ScaledProducts::Source& source : group.sources) {
      if (source.is_norm) round_to_gains(checkpoint, source, of_channels[e]);
    }
    of_inputs[e].resize(width);
    for (size_t k = 0; k < width; ++k) {
      of_inputs[e][k] = of_channels[e][static_cast<size_t>(group.channels[k])];
    }
  }
  std::array<double, kExponents> errors = {};
  for (const std::string& product : group.products) {
    const TensorInfo& tensor = *checkpoint.find(product);
    const auto num_rows = static_cast<size_t>(tensor.view.shape[0]);
    std::vector<std::array<double, kExponents>> of_rows(num_rows);
    pool.parallel_for(static_cast<int64_t>(num_rows), [&](int64_t row) {
      std::vector<float> values;
      read_wide_row(tensor.view, row, values);
      for (size_t e = 0; e < kExponents; ++e) {
        of_rows[static_cast<size_t>(row)][e] = trial.error_of(values, of_inputs[e]);
      }
    });
    for (const auto& of_row : of_rows) {
      for (size_t e = 0; e < kExponents; ++e) errors[e] += of_row[e];
    }
  }
  const auto best = static_cast<size_t>(std::ranges::min_element(errors) - errors.begin());
  const FoundScales found = {static_cast<double>(best) / (kExponents - 1), errors[best], errors[0]};
  if (best == 0) return found;
  for (const std::string& product : group.products) scales[product].inputs = of_inputs[best];
  for (const ScaledProducts::Source& source : group.sources) {
    TensorScales& of_source = scales[source.tensor];
    of_source.offset = source.offset;
    of_source.outputs.resize(static_cast<size_t>(checkpoint.find(source.tensor)->view.shape[0]), 1);
    std::ranges::copy(of_channels[best], of_source.outputs.begin() + source.first);
  }
  return found;
}

void read_scaled_row(const TensorInfo& tensor, int64_t row, const ChannelScales& scales,
                     std::vector<float>& values) {
  read_wide_row(tensor.view, row, values);
  const auto found = scales.find(tensor.name);
  if (found == scales.end()) return;
  const TensorScales& of = found->second;
  const bool is_vector = tensor.view.shape.rank() == 1;
  for (size_t k = 0; k < of.inputs.size(); ++k) values[k] *= of.inputs[k];
  if (of.outputs.empty()) return;
  for (size_t k = 0; k < values.size(); ++k) {
    const float by = of.outputs[is_vector ? k : static_cast<size_t>(row)];
    values[k] = (values[k] + of.offset) / by - of.offset;
  }
}

}  // namespace rudder::model
