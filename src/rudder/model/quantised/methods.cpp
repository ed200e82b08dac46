#include "rudder/model/quantised/methods.h"

#include <fmt/format.h>

#include <string>

namespace rudder::model {

using weights::HfConfig;

tl::unexpected<Error> unsupported(const HfConfig& config, std::string_view key,
                                  std::string_view value, std::string_view known) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("'{}' is '{}'; what can be served is {}", key, value, known),
              config.where(key));
}

Result<std::vector<weights::NamePattern>> read_patterns(const HfConfig& config,
                                                        std::string_view key) {
  std::vector<weights::NamePattern> out;
  if (!config.has(key)) return out;
  RUDDER_TRY(const std::vector<std::string> texts, config.strings(key));
  for (const std::string& text : texts) {
    RUDDER_TRY(weights::NamePattern pattern, weights::NamePattern::parse(text, config.where(key)));
    out.push_back(std::move(pattern));
  }
  return out;
}

Result<std::vector<weights::NamePattern>> read_excluded(
    const HfConfig& config, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (config.has(key)) return read_patterns(config, key);
  }
  return std::vector<weights::NamePattern>();
}

Result<void> read_block(const HfConfig& config, std::string_view key, Quantisation::Group& group) {
  RUDDER_TRY(const std::vector<int64_t> block, config.integers(key, 1, 1 << 16));
  if (block.size() != 2) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("'{}' has {} numbers, not 2", key, block.size()), config.where(key));
  }
  group.rows = static_cast<int32_t>(block[0]);
  group.inputs = static_cast<int32_t>(block[1]);
  return {};
}

namespace {

// The head, which these methods leave as it is.
Result<void> exclude(std::string_view pattern, const HfConfig& config, Quantisation& out) {
  RUDDER_TRY(weights::NamePattern parsed, weights::NamePattern::parse(pattern, config.where()));
  out.excluded.push_back(std::move(parsed));
  return {};
}

// A part of a name, as AWQ and bitsandbytes look for it.
Result<void> exclude_parts(const HfConfig& config, std::string_view key, Quantisation& out) {
  if (!config.has(key)) return {};
  RUDDER_TRY(const std::vector<std::string> parts, config.strings(key));
  for (const std::string& part : parts) RUDDER_TRY_VOID(exclude("*" + part + "*", config, out));
  return {};
}

// -1 is a whole row.
Result<int32_t> read_group_size(const HfConfig& config, std::string_view key, int64_t fallback) {
  RUDDER_TRY(const int64_t size, config.integer_or(key, fallback, -1, 1 << 16));
  if (size == 0) return unsupported(config, key, "0", "-1 or more than 0");
  return static_cast<int32_t>(size < 0 ? 0 : size);
}

Result<void> read_gptq_group(const HfConfig& config, Quantisation::Group& group) {
  RUDDER_TRY(const int64_t bits, config.integer_or("bits", group.bits, 1, 64));
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    return unsupported(config, "bits", std::to_string(bits), "2, 3, 4 or 8");
  }
  group.bits = static_cast<int32_t>(bits);
  RUDDER_TRY(group.inputs,
             read_group_size(config, "group_size", group.inputs == 0 ? -1 : group.inputs));
  RUDDER_TRY(group.symmetric, config.boolean_or("sym", group.symmetric));
  RUDDER_TRY(group.reorders, config.boolean_or("desc_act", group.reorders));
  return {};
}

}  // namespace

// A pattern of "dynamic" that begins with "-:" leaves its modules as they are; the first that
// matches counts.
Result<Quantisation> read_gptq_config(const HfConfig& config) {
  Quantisation out;
  Quantisation::Group group;
  group.as = StoredAs::kGptq;
  group.wide_inputs = true;
  RUDDER_TRY(const int64_t bits, config.integer("bits", 1, 64));
  group.bits = static_cast<int32_t>(bits);
  group.inputs = 128;
  RUDDER_TRY_VOID(read_gptq_group(config, group));
  constexpr std::string_view kFormat = "checkpoint_format";
  RUDDER_TRY(const std::string format, config.string_or(kFormat, "gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    return unsupported(config, kFormat, format, "'gptq' or 'gptq_v2'");
  }
  group.zeros_less_one = format == "gptq";
  RUDDER_TRY(const bool is_marlin, config.boolean_or("is_marlin_format", false));
  if (is_marlin) return unsupported(config, "is_marlin_format", "true", "false");
  RUDDER_TRY(const std::string word, config.string_or("pack_dtype", "int32"));
  if (word != "int32") return unsupported(config, "pack_dtype", word, "'int32'");
  RUDDER_TRY(const bool has_head, config.boolean_or("lm_head", false));
  if (!has_head) RUDDER_TRY_VOID(exclude("lm_head", config, out));
  RUDDER_TRY_VOID(exclude_parts(config, "modules_to_not_convert", out));
  if (config.has("dynamic")) {
    RUDDER_TRY(const HfConfig overrides, config.object("dynamic"));
    for (const std::string& key : overrides.keys()) {
      const bool leaves = key.starts_with("-:");
      const std::string regex = leaves || key.starts_with("+:") ? key.substr(2) : key;
      Quantisation::Group changed = group;
      if (leaves) {
        changed.as = StoredAs::kWide;
      } else {
        RUDDER_TRY(const HfConfig fields, overrides.object(key));
        RUDDER_TRY_VOID(read_gptq_group(fields, changed));
      }
      RUDDER_TRY(weights::NamePattern pattern,
                 weights::NamePattern::parse("re:" + regex, overrides.where(key)));
      changed.targets.push_back(std::move(pattern));
      out.groups.push_back(std::move(changed));
    }
  }
  out.groups.push_back(std::move(group));
  return out;
}

Result<Quantisation> read_awq_config(const HfConfig& config) {
  Quantisation out;
  Quantisation::Group group;
  group.as = StoredAs::kAwq;
  group.wide_inputs = true;
  group.bits = 4;
  group.symmetric = false;
  const std::string_view bits_key = config.has("w_bit") ? "w_bit" : "bits";
  RUDDER_TRY(const int64_t bits, config.integer(bits_key, 1, 64));
  if (bits != 4) return unsupported(config, bits_key, std::to_string(bits), "4");
  RUDDER_TRY(
      group.inputs,
      read_group_size(config, config.has("q_group_size") ? "q_group_size" : "group_size", 128));
  RUDDER_TRY(const bool has_zeros, config.boolean_or("zero_point", true));
  if (!has_zeros) return unsupported(config, "zero_point", "false", "true");
  RUDDER_TRY(const std::string version, config.string_or("version", "gemm"));
  if (version != "gemm" && version != "GEMM") {
    return unsupported(config, "version", version, "'gemm'");
  }
  RUDDER_TRY_VOID(exclude("lm_head", config, out));
  RUDDER_TRY_VOID(exclude_parts(config, "modules_to_not_convert", out));
  out.groups.push_back(std::move(group));
  return out;
}

Result<Quantisation> read_bitsandbytes_config(const HfConfig& config) {
  Quantisation out;
  Quantisation::Group group;
  group.as = StoredAs::kNf4;
  group.wide_inputs = true;
  group.bits = 4;
  RUDDER_TRY(const bool is_four, config.boolean_or("load_in_4bit", false));
  if (!is_four) return unsupported(config, "load_in_4bit", "false", "true");
  RUDDER_TRY(const std::string type, config.string_or("bnb_4bit_quant_type", "fp4"));
  if (type != "nf4") return unsupported(config, "bnb_4bit_quant_type", type, "'nf4'");
  RUDDER_TRY(const std::string storage, config.string_or("bnb_4bit_quant_storage", "uint8"));
  if (storage != "uint8") return unsupported(config, "bnb_4bit_quant_storage", storage, "'uint8'");
  RUDDER_TRY_VOID(exclude("lm_head", config, out));
  RUDDER_TRY_VOID(exclude_parts(config, "llm_int8_skip_modules", out));
  out.groups.push_back(std::move(group));
  return out;
}

Result<Quantisation> read_hqq_config(const HfConfig& config) {
  Quantisation out;
  Quantisation::Group group;
  group.as = StoredAs::kHqq;
  group.wide_inputs = true;
  group.symmetric = false;
  RUDDER_TRY(const HfConfig described, config.object("quant_config"));
  if (!described.has("weight_quant_params")) {
    return fail(ErrorCode::kUnsupported, "settings of modules by name are not supported",
                config.where("quant_config"));
  }
  RUDDER_TRY(const HfConfig fields, described.object("weight_quant_params"));
  RUDDER_TRY(const int64_t bits, fields.integer("nbits", 1, 64));
  if (bits != 4 && bits != 8) return unsupported(fields, "nbits", std::to_string(bits), "4 or 8");
  group.bits = static_cast<int32_t>(bits);
  RUDDER_TRY(const int64_t size, fields.integer("group_size", 1, 1 << 16));
  group.inputs = static_cast<int32_t>(size);
  RUDDER_TRY(const int64_t axis, fields.integer_or("axis", 1, 0, 1));
  if (axis != 1) return unsupported(fields, "axis", "0", "1");
  RUDDER_TRY(const bool is_bytes, fields.boolean_or("view_as_float", false));
  if (is_bytes) return unsupported(fields, "view_as_float", "true", "false");
  for (const std::string_view key : {"scale_quant_params", "zero_quant_params"}) {
    if (described.has(key)) return unsupported(described, key, "an object", "null");
  }
  RUDDER_TRY_VOID(exclude("lm_head", config, out));
  RUDDER_TRY_VOID(exclude_parts(config, "skip_modules", out));
  out.groups.push_back(std::move(group));
  return out;
}

// Of gpt-oss: the experts, whatever else it names.
Result<Quantisation> read_mxfp4_config(const HfConfig& config) {
  Quantisation out;
  Quantisation::Group group;
  group.as = StoredAs::kMxfp4Stack;
  group.wide_inputs = true;
  group.bits = 4;
  group.inputs = 32;
  RUDDER_TRY_VOID(exclude("lm_head", config, out));
  RUDDER_TRY_VOID(exclude_parts(config, "modules_to_not_convert", out));
  for (const std::string_view name : {"*.experts.gate_up_proj", "*.experts.down_proj"}) {
    RUDDER_TRY(weights::NamePattern pattern, weights::NamePattern::parse(name, config.where()));
    group.targets.push_back(std::move(pattern));
  }
  out.groups.push_back(std::move(group));
  return out;
}

}  // namespace rudder::model
