#include "rudder/model/quantised/quantisation.h"

#include <fmt/format.h>

#include <string>

#include "rudder/model/quantised/methods.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

using weights::HfConfig;
using weights::NamePattern;

constexpr std::string_view kModelOptFile = "hf_quant_config.json";

// "num_bits": 8, "type": "float", symmetric: one of the objects that describe how numbers are
// stored.
Result<void> check_fp8(const HfConfig& config) {
  RUDDER_TRY(const std::string type, config.string("type"));
  RUDDER_TRY(const int64_t bits, config.integer("num_bits", 1, 64));
  if (type != "float") return unsupported(config, "type", type, "'float'");
  if (bits != 8) return unsupported(config, "num_bits", std::to_string(bits), "8");
  RUDDER_TRY(const bool symmetric, config.boolean_or("symmetric", true));
  if (!symmetric) return unsupported(config, "symmetric", "false", "true");
  return {};
}

Result<void> check_static(const HfConfig& config) {
  RUDDER_TRY(const bool dynamic, config.boolean_or("dynamic", false));
  if (dynamic) return unsupported(config, "dynamic", "true", "false");
  return {};
}

// "kv_cache_scheme". Its scales are tensors beside the layers' others; one a tensor or one a head.
Result<void> check_kv_scheme(const HfConfig& config) {
  if (!config.has("kv_cache_scheme")) return {};
  RUDDER_TRY(const HfConfig scheme, config.object("kv_cache_scheme"));
  RUDDER_TRY_VOID(check_fp8(scheme));
  RUDDER_TRY_VOID(check_static(scheme));
  RUDDER_TRY(const std::string strategy, scheme.string_or("strategy", "tensor"));
  if (strategy == "tensor" || strategy == "attn_head") return {};
  return unsupported(scheme, "strategy", strategy, "'tensor' or 'attn_head'");
}

// ----- compressed-tensors -----

Result<void> check_format(const HfConfig& config) {
  RUDDER_TRY(const std::string format, config.string("format"));
  for (const std::string_view known :
       {"float-quantized", "naive-quantized", "pack-quantized", "int-quantized",
        "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision"}) {
    if (format == known) return {};
  }
  return unsupported(config, "format", format,
                     "'float-', 'naive-', 'int-' or 'pack-quantized', 'nvfp4-' or "
                     "'mxfp4-pack-quantized', or 'mixed-precision'");
}

// What shares a scale, by "strategy".
Result<void> read_strategy(const HfConfig& stored, Quantisation::Group& group) {
  RUDDER_TRY(const std::string strategy, stored.string("strategy"));
  if (strategy == "tensor" || strategy == "channel") {
    group.scales = strategy == "tensor" ? WeightScales::kTensor : WeightScales::kChannel;
    return {};
  }
  if (strategy == "group" || strategy == "tensor_group") {
    RUDDER_TRY(const int64_t inputs, stored.integer("group_size", 1, 1 << 16));
    group.inputs = static_cast<int32_t>(inputs);
    return {};
  }
  if (strategy != "block") {
    return unsupported(stored, "strategy", strategy,
                       "'tensor', 'channel', 'group', 'tensor_group' or 'block'");
  }
  return read_block(stored, "block_structure", group);
}

// An 8-bit float or integer of a row; integers of words; 4-bit floats.
Result<void> read_numbers(const HfConfig& stored, std::string_view format,
                          Quantisation::Group& group) {
  RUDDER_TRY(const std::string type, stored.string("type"));
  RUDDER_TRY(const int64_t bits, stored.integer("num_bits", 1, 64));
  RUDDER_TRY(group.symmetric, stored.boolean_or("symmetric", true));
  group.bits = static_cast<int32_t>(bits);
  const bool is_packed = format == "pack-quantized";
  const bool is_mx = format == "mxfp4-pack-quantized";
  if (is_mx || format == "nvfp4-pack-quantized") {
    if (type != "float") return unsupported(stored, "type", type, "'float'");
    if (bits != 4) return unsupported(stored, "num_bits", std::to_string(bits), "4");
    if (!group.symmetric) return unsupported(stored, "symmetric", "false", "true");
    group.as = is_mx ? StoredAs::kMxfp4 : StoredAs::kNvfp4;
    if (group.inputs == 0 || group.rows != 1) {
      return unsupported(stored, "strategy", "not of groups", "'group' or 'tensor_group'");
    }
    return {};
  }
  if (is_packed || format == "int-quantized" || (type == "int" && format == "naive-quantized")) {
    if (type != "int") return unsupported(stored, "type", type, "'int'");
    if (bits != 8 && (!is_packed || bits != 4)) {
      return unsupported(stored, "num_bits", std::to_string(bits), is_packed ? "4 or 8" : "8");
    }
    if (group.rows != 1) return unsupported(stored, "strategy", "block", "one of rows");
    group.as = is_packed ? StoredAs::kPacked : StoredAs::kInt8;
    return {};
  }
  RUDDER_TRY_VOID(check_fp8(stored));
  group.as = group.inputs == 0 ? StoredAs::kFp8Rows : StoredAs::kFp8Blocks;
  return {};
}

// What products take: as it is described where the weight is fp8; of other weights it is not
// rounded here, which is finer.
Result<void> check_inputs(const HfConfig& config, const Quantisation::Group& group) {
  RUDDER_TRY(const HfConfig inputs, config.object("input_activations"));
  if (group.as != StoredAs::kFp8Rows) return {};
  RUDDER_TRY_VOID(check_fp8(inputs));
  RUDDER_TRY(const std::string by, inputs.string_or("strategy", "tensor"));
  if (by == "tensor" || by == "token") return {};
  return unsupported(inputs, "strategy", by, "'tensor' or 'token'");
}

Result<Quantisation::Group> read_group(const HfConfig& config, std::string_view whole_format) {
  Quantisation::Group group;
  if (config.has("format")) RUDDER_TRY_VOID(check_format(config));
  RUDDER_TRY(const std::string format, config.string_or("format", std::string(whole_format)));
  if (format == "mixed-precision") return unsupported(config, "format", format, "that of a group");
  RUDDER_TRY(const HfConfig stored, config.object("weights"));
  RUDDER_TRY_VOID(check_static(stored));
  RUDDER_TRY_VOID(read_strategy(stored, group));
  RUDDER_TRY_VOID(read_numbers(stored, format, group));
  group.wide_inputs = !config.has("input_activations");
  if (!group.wide_inputs) RUDDER_TRY_VOID(check_inputs(config, group));
  RUDDER_TRY(const std::vector<std::string> targets, config.strings("targets"));
  for (const std::string& target : targets) {
    if (target == "Linear") {
      group.targets.clear();
      return group;
    }
    RUDDER_TRY(weights::NamePattern pattern,
               weights::NamePattern::parse(target, config.where("targets")));
    group.targets.push_back(std::move(pattern));
  }
  if (group.targets.empty()) {
    return fail(ErrorCode::kCorruptFile, "'targets' is empty", config.where("targets"));
  }
  return group;
}

Result<Quantisation> read_compressed_tensors(const HfConfig& config) {
  Quantisation out;
  RUDDER_TRY_VOID(check_format(config));
  RUDDER_TRY(const std::string format, config.string("format"));
  RUDDER_TRY_VOID(check_kv_scheme(config));
  if (config.has("sparsity_config")) {
    RUDDER_TRY(const HfConfig sparsity, config.object("sparsity_config"));
    RUDDER_TRY(const std::string format, sparsity.string_or("format", "dense"));
    if (format != "dense") return unsupported(sparsity, "format", format, "'dense'");
  }
  if (config.has("transform_config")) {
    RUDDER_TRY(const HfConfig transforms, config.object("transform_config"));
    if (!transforms.keys().empty()) {
      return fail(ErrorCode::kUnsupported, "transforms of weights are not supported",
                  config.where("transform_config"));
    }
  }
  RUDDER_TRY(out.excluded, read_patterns(config, "ignore"));
  RUDDER_TRY(const HfConfig groups, config.object("config_groups"));
  for (const std::string& name : groups.keys()) {
    RUDDER_TRY(const HfConfig group, groups.object(name));
    RUDDER_TRY(Quantisation::Group read, read_group(group, format));
    out.groups.push_back(std::move(read));
  }
  return out;
}

// ----- ModelOpt -----

// `config` is "quantization" of hf_quant_config.json, or config.json's object, which has the same
// keys under newer names.
Result<Quantisation> read_modelopt(const HfConfig& config) {
  Quantisation out;
  constexpr std::string_view kKvKey = "kv_cache_quant_algo";
  RUDDER_TRY(const std::string kv, config.string_or(kKvKey, "FP8"));
  if (kv != "FP8") return unsupported(config, kKvKey, kv, "'FP8'");
  RUDDER_TRY_VOID(check_kv_scheme(config));
  RUDDER_TRY(out.excluded, read_excluded(config, {"exclude_modules", "ignore"}));
  constexpr std::string_view kKey = "quant_algo";
  if (!config.has(kKey)) return out;  // the KV cache alone
  RUDDER_TRY(const std::string algorithm, config.string(kKey));
  Quantisation::Group group;
  if (algorithm == "FP8") {
    group.scales = WeightScales::kTensor;
  } else if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") {
    group.scales = WeightScales::kChannel;
  } else {
    return unsupported(config, kKey, algorithm, "'FP8' or 'FP8_PER_CHANNEL_PER_TOKEN'");
  }
  out.groups.push_back(std::move(group));
  return out;
}

// ----- AutoFP8 and those that write as it does -----

Result<Quantisation> read_fp8(const HfConfig& config) {
  Quantisation out;
  Quantisation::Group group;
  if (config.has("weight_block_size")) {
    RUDDER_TRY_VOID(read_block(config, "weight_block_size", group));
    group.as = StoredAs::kFp8Blocks;
  }
  RUDDER_TRY(const std::string scheme, config.string("activation_scheme"));
  if (scheme != "dynamic" && scheme != "static") {
    return unsupported(config, "activation_scheme", scheme, "'dynamic' or 'static'");
  }
  RUDDER_TRY(const std::string format, config.string_or("fmt", "e4m3"));
  if (format != "e4m3") return unsupported(config, "fmt", format, "'e4m3'");
  RUDDER_TRY(out.excluded, read_excluded(config, {"ignored_layers", "modules_to_not_convert"}));
  out.groups.push_back(std::move(group));
  return out;
}

Result<Quantisation> read_method(const HfConfig& config) {
  RUDDER_TRY(const std::string method, config.string("quant_method"));
  if (method == "compressed-tensors") return read_compressed_tensors(config);
  if (method == "fp8") return read_fp8(config);
  if (method == "modelopt") {
    if (!config.has("quantization")) return read_modelopt(config);
    RUDDER_TRY(const HfConfig inner, config.object("quantization"));
    return read_modelopt(inner);
  }
  if (method == "gptq") return read_gptq_config(config);
  if (method == "awq") return read_awq_config(config);
  if (method == "bitsandbytes") return read_bitsandbytes_config(config);
  if (method == "hqq") return read_hqq_config(config);
  if (method == "mxfp4") return read_mxfp4_config(config);
  return unsupported(config, "quant_method", method,
                     "'compressed-tensors', 'modelopt', 'fp8', 'gptq', 'awq', 'bitsandbytes', "
                     "'hqq' or 'mxfp4'");
}

Result<HfConfig> read_file(const weights::Checkpoint& checkpoint, std::string_view file) {
  RUDDER_TRY(const std::string text, checkpoint.read_text(file));
  return HfConfig::parse(text, fmt::format("{}/{}", checkpoint.name(), file));
}

}  // namespace

Result<const Quantisation::Group*> Quantisation::group_of(std::string_view module) const {
  for (const weights::NamePattern& pattern : excluded) {
    RUDDER_TRY(const bool is_excluded, pattern.matches(module));
    if (is_excluded) return nullptr;
  }
  for (const Group& group : groups) {
    if (group.targets.empty()) return &group;
    for (const weights::NamePattern& pattern : group.targets) {
      RUDDER_TRY(const bool is_target, pattern.matches(module));
      if (is_target) return &group;
    }
  }
  return nullptr;
}

Result<Quantisation> read_quantisation(const weights::Checkpoint& checkpoint) {
  RUDDER_TRY(const HfConfig config, read_file(checkpoint, "config.json"));
  constexpr std::string_view kKey = "quantization_config";
  if (config.has(kKey)) {
    RUDDER_TRY(const HfConfig described, config.object(kKey));
    return read_method(described);
  }
  if (!checkpoint.has_file(kModelOptFile)) return Quantisation{};
  RUDDER_TRY(const HfConfig beside, read_file(checkpoint, kModelOptFile));
  RUDDER_TRY(const HfConfig described, beside.object("quantization"));
  return read_modelopt(described);
}

}  // namespace rudder::model
