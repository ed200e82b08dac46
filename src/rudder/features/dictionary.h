// Dictionary: a sparse autoencoder or a transcoder of one layer: what reads an activation as
// features, and writes features back as activations. Loaders make it, requests name its features.
// Immutable once shared; any thread.
//
//   encode   x~ = norm(x) - input_bias,  y_j = x~ . encoder_j
//            f_j = y_j > gate_j ? max(scale_j y_j + encoder_bias_j, 0) : 0
//   decode   of write w: norm'(sum_j f_j decoder_wj + output_bias_w), and + skip x of the first
//
// gate, scale and encoder_bias are the activation: FeatureForm has them for each. norm' undoes the
// scale of norm (kConstantNorm), or its scale and its mean (kLayerNorm). With kTopK only the k
// largest f_j are kept; of equal ones those of the lower index.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tap/dictionary_image.h"
#include "rudder/tap/feature.h"
#include "rudder/tap/row.h"
#include "rudder/tap/site.h"

namespace rudder::features {

enum class Activation : uint8_t {
  kRelu,      // max(p, 0) of p = y + bias
  kJumpRelu,  // p where p > threshold and p > 0, else 0; batchtopk is this with one threshold
  kTopK,      // the k largest of max(p, 0)
  kGated,     // max(exp(r) y + magnitude_bias, 0) where y + gate_bias > 0, else 0
};
std::string_view activation_name(Activation activation);

// The activation of one feature: f = y > gate ? max(scale y + bias, 0) : 0. The input bias is in
// `gate` and `bias`, so y is norm(x) . encoder_j.
struct FeatureForm {
  double scale = 1;
  double bias = 0;
  double gate = -std::numeric_limits<double>::infinity();

  double value(double y) const;
};

// What `read` of a dictionary means where a norm made the row there.
enum class InputGain : uint8_t {
  kKept,     // the row as the model has it, with the norm's gain
  kRemoved,  // the row without it, which fold_gain() has to make up for before anything is encoded
  kFolded,   // likewise, and the weights divide by it
};

// What image_of() has made of a dictionary. A copy of the dictionary has none.
struct KeptImage {
  KeptImage() = default;
  KeptImage(const KeptImage& /*other*/) {}
  KeptImage& operator=(const KeptImage& other) {
    if (this != &other) f32 = bf16 = nullptr;
    return *this;
  }

  std::mutex mutex;
  std::shared_ptr<const tap::DictionaryImage> f32;
  std::shared_ptr<const tap::DictionaryImage> bf16;
};

struct Dictionary {
  int32_t d_in = 0;
  int32_t d_out = 0;
  int32_t num_features = 0;
  tap::Point read;
  InputGain input_gain = InputGain::kKept;
  // Written at `write` and, where there are several writes, at the same site of the layers behind
  // it: a cross-layer transcoder has one for every layer from its own on.
  tap::Point write;
  int32_t num_writes = 1;

  Activation activation = Activation::kRelu;
  int32_t k = 0;  // of kTopK
  tap::FeatureNorm norm = tap::FeatureNorm::kNone;

  std::shared_ptr<const float[]> encoder;  // [num_features, d_in]
  std::shared_ptr<const float[]> decoder;  // [num_writes, num_features, d_out]
  std::vector<float> encoder_bias;         // [num_features]; of kGated the magnitude's
  std::vector<float> threshold;            // [num_features] of kJumpRelu
  std::vector<float> gate_bias;            // [num_features] of kGated
  std::vector<float> gate_log_scale;       // [num_features] r of kGated
  std::vector<float> input_bias;           // [d_in]; empty: none
  std::vector<float> output_bias;          // [num_writes, d_out]
  std::vector<float> skip;                 // [d_out, d_in]; empty: none

  mutable KeptImage image = {};

  // It reads and writes one point.
  bool is_autoencoder() const { return num_writes == 1 && read == write; }
  tap::Row encoder_row(int32_t feature) const { return {encoder, int64_t{feature} * d_in, d_in}; }
  tap::Row decoder_row(int32_t feature, int32_t write_index = 0) const {
    return {decoder, (int64_t{write_index} * num_features + feature) * d_out, d_out};
  }
  tap::Point write_point(int32_t write_index) const {
    return {write.layer + write_index, write.site};
  }
  FeatureForm form(int32_t feature) const;
  // Of x~, which the input bias is subtracted from.
  FeatureForm form_of_input(int32_t feature) const;
};

// norm(x) in double precision, and what undoes it: x = normed * scale + mean.
struct NormedRow {
  std::vector<double> values;
  double scale = 1;
  double mean = 0;
};
NormedRow normed_row(tap::FeatureNorm norm, std::span<const float> x);

// Keeps the k largest, of equal ones the first; the others become 0.
void keep_largest(std::span<float> values, int32_t k);

// All features of `x` [d_in]; sums in double precision, rounded once. `features` is [num_features].
void encode(const Dictionary& dictionary, std::span<const float> x, std::span<float> features);

// What write `write_index` gives for `features`, which are those of `x` [d_in] or edited ones;
// `out` is [d_out].
void decode(const Dictionary& dictionary, std::span<const float> features, std::span<const float> x,
            int32_t write_index, std::span<float> out);

// The model has its points, with its widths; else kInvalidArgument with `where`.
Result<void> check_fits(const Dictionary& dictionary, const tap::Geometry& geometry,
                        const std::string& where);

// A dictionary of each of several layers, under one name; most names have one layer.
struct DictionarySet {
  std::string name;
  std::string source;  // the path that it was read from
  std::string format;  // "saelens", "gemma-scope", ...
  std::string model;   // what the files say that it was trained on; informative
  std::vector<std::shared_ptr<const Dictionary>> layers;  // by layer of `read`, ascending

  const std::shared_ptr<const Dictionary>* at_layer(int32_t layer) const;  // null: there is none
};

}  // namespace rudder::features
