// Llama Scope: hyperparams.json with checkpoints/final.safetensors, and its later form, config.json
// with sae_weights.safetensors. Tensors: encoder.weight [F, d_in], decoder.weight [d_out, F] and
// their biases.
//
// They were trained on rows scaled to a mean length of sqrt(d). The factors, s = sqrt(d) / mean
// length, are folded here: biases are divided by s, the decoder is multiplied by s_in / s_out. A
// feature's value is then in units of the model's own rows. The one threshold of the first form was
// found for such values; thresholds of the second form were learned in training and are divided by
// s. With sparsity_include_decoder_norm a feature is active where its value times the length of its
// folded decoder row exceeds the threshold.
#include <fmt/format.h>

#include <cmath>

#include "rudder/steer/features/format.h"

namespace rudder::steer {
namespace {

struct LlamaScopeFactors {
  double in = 1;
  double out = 1;
};

class LlamaScopeReader {
 public:
  LlamaScopeReader(const DictionaryFolder& folder, ConfigFile config, TensorReader tensors)
      : folder_(folder), config_(std::move(config)), tensors_(std::move(tensors)) {}

  Result<LoadedDictionaries> read() {
    RUDDER_TRY_VOID(config_.check_flag("use_glu_encoder", false, false));
    RUDDER_TRY(const std::string in, config_.text("hook_point_in"));
    RUDDER_TRY(const std::string out, config_.text_or("hook_point_out", in));
    RUDDER_TRY(const DictionaryPoints points,
               hooked_points(folder_, in, out, config_.path() + ": hook_point_in"));
    RUDDER_TRY(const Extents encoder, tensors_.shape("encoder.weight", 2));
    RUDDER_TRY(const Extents decoder, tensors_.shape("decoder.weight", 2));
    RUDDER_TRY_VOID(config_.check_count("d_model", encoder[1]));
    RUDDER_TRY_VOID(config_.check_count("d_sae", encoder[0]));
    features::Dictionary dictionary = make_dictionary(points, encoder[0], encoder[1], decoder[0]);
    RUDDER_TRY(dictionary.encoder, tensors_.take("encoder.weight", encoder));
    RUDDER_TRY(dictionary.encoder_bias, tensors_.take_list("encoder.bias", encoder[0]));
    RUDDER_TRY(dictionary.decoder,
               tensors_.take_transposed("decoder.weight", decoder[0], encoder[0]));
    RUDDER_TRY_VOID(take_output_bias(dictionary));
    RUDDER_TRY(const LlamaScopeFactors factors, read_factors(encoder[1], decoder[0]));
    fold_factors(factors, dictionary);
    RUDDER_TRY_VOID(read_activation(factors, dictionary));
    RUDDER_TRY_VOID(tensors_.finish());
    LoadedDictionaries loaded = {.format = "llama-scope"};
    loaded.layers.push_back(std::move(dictionary));
    return loaded;
  }

 private:
  Result<void> take_output_bias(features::Dictionary& dictionary) {
    const auto width = static_cast<uint64_t>(dictionary.d_out);
    RUDDER_TRY(const bool has_bias, config_.flag("use_decoder_bias", true));
    dictionary.output_bias.assign(width, 0);
    if (!has_bias) return {};
    RUDDER_TRY(dictionary.output_bias, tensors_.take_list("decoder.bias", width));
    RUDDER_TRY(const bool subtracts, config_.flag("apply_decoder_bias_to_pre_encoder", false));
    if (subtracts) dictionary.input_bias = dictionary.output_bias;
    return {};
  }

  Result<LlamaScopeFactors> read_factors(uint64_t d_in, uint64_t d_out) const {
    LlamaScopeFactors factors;
    RUDDER_TRY(const std::string norm, config_.text_or("norm_activation", "dataset-wise"));
    if (norm == "none" || norm == "inference") return factors;
    if (norm != "dataset-wise") {
      return config_.refused("norm_activation", fmt::format("'{}' is not supported", norm));
    }
    RUDDER_TRY(const ConfigFile norms, config_.object("dataset_average_activation_norm"));
    RUDDER_TRY(const double in, norms.positive("in"));
    RUDDER_TRY(const double out, norms.positive("out"));
    factors.in = std::sqrt(static_cast<double>(d_in)) / in;
    factors.out = std::sqrt(static_cast<double>(d_out)) / out;
    return factors;
  }

  static void fold_factors(const LlamaScopeFactors& factors, features::Dictionary& dictionary) {
    const auto divide = [](std::vector<float>& values, double factor) {
      for (float& value : values) value = static_cast<float>(value / factor);
    };
    divide(dictionary.encoder_bias, factors.in);
    divide(dictionary.input_bias, factors.in);
    divide(dictionary.output_bias, factors.out);
    const double scale = factors.in / factors.out;
    if (scale == 1) return;
    const auto count =
        static_cast<size_t>(dictionary.num_features) * static_cast<size_t>(dictionary.d_out);
    auto scaled = std::make_shared_for_overwrite<float[]>(count);
    for (size_t i = 0; i < count; ++i) {
      scaled.get()[i] = static_cast<float>(dictionary.decoder.get()[i] * scale);
    }
    dictionary.decoder = std::move(scaled);
  }

  Result<void> read_activation(const LlamaScopeFactors& factors, features::Dictionary& dictionary) {
    RUDDER_TRY(const std::string name, config_.text("act_fn"));
    RUDDER_TRY(const bool is_ranked, config_.flag("sparsity_include_decoder_norm", true));
    if (name == "relu") return {};
    if (name == "topk") {
      dictionary.activation = features::Activation::kTopK;
      RUDDER_TRY(dictionary.k, config_.count("top_k"));
      if (is_ranked) fold_decoder_norm(dictionary);
      return {};
    }
    if (name != "jumprelu") {
      return config_.refused("act_fn", fmt::format("'{}' is not supported", name));
    }
    dictionary.activation = features::Activation::kJumpRelu;
    RUDDER_TRY_VOID(read_thresholds(factors, dictionary));
    if (!is_ranked) return {};
    const std::vector<double> norms = decoder_norms(dictionary);
    for (size_t j = 0; j < norms.size(); ++j) {
      // A feature that writes nothing is never active.
      dictionary.threshold[j] = norms[j] > 0
                                    ? static_cast<float>(dictionary.threshold[j] / norms[j])
                                    : std::numeric_limits<float>::infinity();
    }
    return {};
  }

  Result<void> read_thresholds(const LlamaScopeFactors& factors, features::Dictionary& dictionary) {
    constexpr std::string_view kLearned = "log_jumprelu_threshold";
    const auto features = static_cast<uint64_t>(dictionary.num_features);
    if (tensors_.has(kLearned)) {
      RUDDER_TRY(dictionary.threshold, tensors_.take_list(kLearned, features));
      for (float& value : dictionary.threshold) {
        value = static_cast<float>(std::exp(double{value}) / factors.in);
      }
      return {};
    }
    RUDDER_TRY(const double threshold, config_.positive("jump_relu_threshold"));
    dictionary.threshold.assign(features, static_cast<float>(threshold));
    return {};
  }

  const DictionaryFolder& folder_;
  const ConfigFile config_;
  TensorReader tensors_;
};

}  // namespace

Result<LoadedDictionaries> load_llama_scope(const DictionaryFolder& folder) {
  const bool is_first = folder.has("hyperparams.json");
  RUDDER_TRY(ConfigFile config,
             ConfigFile::open(folder.file(is_first ? "hyperparams.json" : "config.json")));
  RUDDER_TRY(TensorReader tensors,
             TensorReader::open(folder.file(is_first ? "checkpoints/final.safetensors"
                                                     : "sae_weights.safetensors")));
  return LlamaScopeReader(folder, std::move(config), std::move(tensors)).read();
}

}  // namespace rudder::steer
