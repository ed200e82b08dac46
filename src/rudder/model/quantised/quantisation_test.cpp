#include "rudder/model/quantised/quantisation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "rudder/weights/safetensors_writer.h"

namespace rudder::model {
namespace {

Result<Quantisation> read(const std::string& config, const std::string& beside = {}) {
  const weights::TensorDecl decl{"x", tensor::DType::kU8, weights::TensorShape::of({64})};
  const auto header = weights::make_safetensors_header({&decl, 1}, {});
  std::string file(reinterpret_cast<const char*>(header->data()), header->size());
  file.append(64, 0);
  std::vector<weights::MemoryFile> files = {{"config.json", std::as_bytes(std::span(config))},
                                            {"model.safetensors", std::as_bytes(std::span(file))}};
  if (!beside.empty()) {
    files.push_back({"hf_quant_config.json", std::as_bytes(std::span(beside))});
  }
  const auto checkpoint = weights::Checkpoint::open_memory(std::move(files)).value();
  return read_quantisation(*checkpoint);
}

Result<Quantisation> read_described(std::string_view description) {
  return read(fmt::format(R"({{"quantization_config": {}}})", description));
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_refused(const std::string& description, std::string_view where,
                    ErrorCode code = ErrorCode::kUnsupported) {
  const auto got = read_described(description);
  ASSERT_FALSE(got) << description;
  EXPECT_EQ(got.error().code, code) << got.error().to_string();
  EXPECT_TRUE(got.error().where.ends_with(where)) << got.error().to_string();
}

const std::string kCompressed = R"({
  "quant_method": "compressed-tensors", "format": "float-quantized",
  "config_groups": {"group_0": {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true,
                "dynamic": false, "observer": "minmax", "group_size": null},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true},
    "output_activations": null}},
  "ignore": ["lm_head", "re:.*layers\\.1\\.mlp"], "kv_cache_scheme": null,
  "sparsity_config": {}, "transform_config": {}})";

bool is_quantised(const Quantisation& quantisation, std::string_view module) {
  return *quantisation.group_of(module) != nullptr;
}

TEST(Quantisation, NothingIsQuantisedUnlessTheCheckpointSaysSo) {
  const auto none = read(R"({"hidden_size": 8})");
  ASSERT_TRUE(none);
  EXPECT_FALSE(is_quantised(*none, "model.layers.0.mlp.up_proj"));
}

TEST(Quantisation, ReadsCompressedTensors) {
  const auto read = read_described(kCompressed);
  ASSERT_TRUE(read) << read.error().to_string();
  const auto group = read->group_of("model.layers.0.mlp.up_proj");
  ASSERT_NE(*group, nullptr);
  EXPECT_EQ((*group)->scales, WeightScales::kChannel);
  EXPECT_FALSE((*group)->wide_inputs);
  EXPECT_FALSE(is_quantised(*read, "lm_head"));
  EXPECT_FALSE(is_quantised(*read, "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(is_quantised(*read, "model.layers.11.mlp.up_proj"));
  EXPECT_TRUE(is_quantised(*read, "model.layers.1.self_attn.q_proj"));

  const auto weight_only =
      read_described(replaced(kCompressed,
                              R"("input_activations": {"num_bits": 8, "type": "float", )"
                              R"("strategy": "token", "dynamic": true})",
                              R"("input_activations": null)"));
  ASSERT_TRUE(weight_only);
  EXPECT_TRUE((*weight_only->group_of("a"))->wide_inputs);
}

TEST(Quantisation, GroupsMeanTheirTargets) {
  std::string text = replaced(kCompressed, R"(["Linear"])", R"(["re:.*self_attn.*"])");
  text = replaced(text, R"("output_activations": null}})", R"("output_activations": null},
    "group_1": {"targets": ["model.layers.0.mlp"], "input_activations": null,
                "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}})");
  const auto read = read_described(text);
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ((*read->group_of("model.layers.0.self_attn.o_proj"))->scales, WeightScales::kChannel);
  EXPECT_EQ((*read->group_of("model.layers.0.mlp.up_proj"))->scales, WeightScales::kTensor);
  EXPECT_FALSE(is_quantised(*read, "model.layers.2.mlp.up_proj"));
}

TEST(Quantisation, RefusesWhatCompressedTensorsCannotBeServedFrom) {
  const auto with = [](std::string_view from, std::string_view to) {
    return replaced(kCompressed, from, to);
  };
  const std::string weights = "config_groups.group_0.weights";
  expect_refused(with("float-quantized", "marlin-24"), "quantization_config.format");
  expect_refused(with("float-quantized", "mixed-precision"), "group_0.format");
  for (const char* const format : {"pack-quantized", "int-quantized"}) {
    expect_refused(with("float-quantized", format), weights + ".type");
  }
  expect_refused(with(R"("type": "float")", R"("type": "int")"), weights + ".type");
  expect_refused(with(R"("num_bits": 8)", R"("num_bits": 4)"), weights + ".num_bits");
  expect_refused(with("channel", "token"), weights + ".strategy");
  expect_refused(with("channel", "group"), weights + ".group_size", ErrorCode::kCorruptFile);
  expect_refused(with("channel", "block"), weights + ".block_structure", ErrorCode::kCorruptFile);
  expect_refused(with(R"("symmetric": true)", R"("symmetric": false)"), weights + ".symmetric");
  expect_refused(with(R"("dynamic": false)", R"("dynamic": true)"), weights + ".dynamic");
  expect_refused(with("token", "group"), "input_activations.strategy");
  expect_refused(with(R"("sparsity_config": {})", R"("sparsity_config": {"format": "sparse-24"})"),
                 "sparsity_config.format");
  expect_refused(with(R"("transform_config": {})", R"("transform_config": {"R1": {}})"),
                 "transform_config");
  expect_refused(with("lm_head", "re:(lm_head"), "ignore");
  const std::string kv = R"("kv_cache_scheme": {"num_bits": 8, "type": "float", )";
  expect_refused(with(R"("kv_cache_scheme": null)", kv + R"("dynamic": true})"),
                 "kv_cache_scheme.dynamic");
  expect_refused(with(R"("kv_cache_scheme": null)", kv + R"("strategy": "token"})"),
                 "kv_cache_scheme.strategy");
  expect_refused(with(R"("format": "float-quantized",)", ""), "quantization_config.format",
                 ErrorCode::kCorruptFile);
  expect_refused(with(R"("strategy": "channel",)", ""), weights + ".strategy",
                 ErrorCode::kCorruptFile);
  expect_refused(with(R"(["Linear"])", "[]"), "group_0.targets", ErrorCode::kCorruptFile);
  EXPECT_TRUE(read_described(with(R"("kv_cache_scheme": null)", kv + R"("strategy": "tensor"})")));
}

TEST(Quantisation, ReadsModelOpt) {
  const std::string inner =
      R"({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
          "exclude_modules": ["lm_head", "model.layers.3*", "*k_proj"]})";
  for (const auto& read :
       {read("{}", fmt::format(R"({{"producer": {{}}, "quantization": {}}})", inner)),
        read_described(R"({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme":
                           {"num_bits": 8, "type": "float", "dynamic": false},
                           "ignore": ["lm_head", "model.layers.3*", "*k_proj"]})")}) {
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_EQ((*read->group_of("model.layers.0.mlp.up_proj"))->scales, WeightScales::kTensor);
    EXPECT_FALSE(is_quantised(*read, "lm_head"));
    EXPECT_FALSE(is_quantised(*read, "model.layers.3.mlp.up_proj"));
    EXPECT_FALSE(is_quantised(*read, "model.layers.0.self_attn.k_proj"));
    EXPECT_TRUE(is_quantised(*read, "model.layers.0.self_attn.v_proj"));
  }
  const auto kv_alone = read("{}", R"({"quantization": {"kv_cache_quant_algo": "FP8"}})");
  ASSERT_TRUE(kv_alone);
  EXPECT_FALSE(is_quantised(*kv_alone, "model.layers.0.mlp.up_proj"));
  expect_refused(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", "quant_algo");
  expect_refused(R"({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"})", "quant_algo");
  expect_refused(R"({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"})",
                 "kv_cache_quant_algo");
  const auto damaged = read("{}", R"({"quantization": 3})");
  ASSERT_FALSE(damaged);
  EXPECT_NE(damaged.error().where.find("hf_quant_config.json"), std::string::npos);
}

TEST(Quantisation, ReadsTheFp8Method) {
  const auto read = read_described(
      R"({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]})");
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ((*read->group_of("model.layers.0.mlp.up_proj"))->scales, WeightScales::kAny);
  EXPECT_FALSE(is_quantised(*read, "lm_head"));
  EXPECT_TRUE(is_quantised(*read, "lm_header"));
  const std::string blocks =
      R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 128]})";
  const auto of_blocks = read_described(blocks);
  ASSERT_TRUE(of_blocks) << of_blocks.error().to_string();
  EXPECT_EQ(of_blocks->groups.front().rows, 64);
  EXPECT_EQ(of_blocks->groups.front().inputs, 128);
  for (const char* const wrong : {"[64]", "[64, 128, 2]", "[0, 128]", "[64, -1]", "\"x\""}) {
    expect_refused(replaced(blocks, "[64, 128]", wrong), "weight_block_size",
                   ErrorCode::kCorruptFile);
  }
  expect_refused(R"({"quant_method": "fp8", "activation_scheme": "sometimes"})",
                 "activation_scheme");
  expect_refused(R"({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e5m2"})",
                 "fmt");
  expect_refused(R"({"quant_method": "fp8"})", "activation_scheme", ErrorCode::kCorruptFile);
}

// Fields with another value, and the field that the refusal names.
struct WrongField {
  std::string description;
  std::vector<std::pair<std::string, std::string>> wrong;  // field, value; a value of "" is none
};

const std::vector<WrongField> kWrongFields = {
    {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false, "sym": true,
         "lm_head": false, "dynamic": null, "checkpoint_format": "gptq", "pack_dtype": "int32",
         "is_marlin_format": false, "modules_to_not_convert": null})",
     {{"bits", "5"},
      {"bits", "16"},
      {"bits", "\"4\""},
      {"bits", ""},
      {"group_size", "0"},
      {"group_size", "-2"},
      {"group_size", "1.5"},
      {"desc_act", "1"},
      {"sym", "\"yes\""},
      {"lm_head", "2"},
      {"dynamic", "[]"},
      {"checkpoint_format", "\"marlin\""},
      {"pack_dtype", "\"int16\""},
      {"is_marlin_format", "true"},
      {"modules_to_not_convert", "[3]"}}},
    {R"({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true,
         "version": "gemm", "modules_to_not_convert": null})",
     {{"bits", "3"},
      {"bits", ""},
      {"group_size", "0"},
      {"zero_point", "false"},
      {"version", "\"gemv\""},
      {"version", "\"marlin\""},
      {"modules_to_not_convert", "\"x\""}}},
    {R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
         "bnb_4bit_quant_storage": "uint8", "llm_int8_skip_modules": null})",
     {{"load_in_4bit", "false"},
      {"load_in_4bit", ""},
      {"bnb_4bit_quant_type", "\"fp4\""},
      {"bnb_4bit_quant_type", ""},
      {"bnb_4bit_quant_storage", "\"bfloat16\""},
      {"llm_int8_skip_modules", "7"}}},
    {R"({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "axis": 1,
         "group_size": 64, "view_as_float": false}, "scale_quant_params": null,
         "zero_quant_params": null}, "skip_modules": null})",
     {{"nbits", "3"},
      {"nbits", ""},
      {"axis", "0"},
      {"axis", "2"},
      {"group_size", "0"},
      {"group_size", "null"},
      {"view_as_float", "true"},
      {"scale_quant_params", "{}"},
      {"zero_quant_params", "{}"},
      {"skip_modules", "{}"}}}};

TEST(Quantisation, AFieldThatIsNotServedIsNamed) {
  int refused = 0;
  for (const WrongField& method : kWrongFields) {
    const auto read = read_described(method.description);
    EXPECT_TRUE(read) << read.error().to_string();
    for (const auto& [field, value] : method.wrong) {
      std::string text = method.description;
      const std::string key = '"' + field + '"';
      const size_t at = text.find(key);
      ASSERT_NE(at, std::string::npos) << field;
      size_t end = text.find_first_of(",}", at);
      if (value.empty()) {
        text.replace(at, key.size(), "\"another\"");
      } else {
        text.replace(at, end - at, key + ": " + value);
      }
      const auto got = read_described(text);
      ASSERT_FALSE(got) << field << ' ' << value;
      EXPECT_TRUE(got.error().where.ends_with("." + field)) << got.error().to_string();
      ++refused;
    }
  }
  EXPECT_EQ(refused, 38);
}

TEST(Quantisation, GptqSettingsOfModules) {
  const auto read = read_described(
      R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": true,
          "dynamic": {"-:.*\\.0\\..*gate": {}, "+:.*down": {"bits": 8, "group_size": 32},
                      ".*layers\\.0\\.": {"sym": false, "desc_act": false}}})");
  ASSERT_TRUE(read) << read.error().to_string();
  const auto of = [&](std::string_view module) { return *read->group_of(module).value(); };
  EXPECT_EQ(of("model.layers.0.mlp.gate_proj").as, StoredAs::kWide);
  EXPECT_EQ(of("model.layers.0.mlp.down_proj").bits, 8);
  EXPECT_EQ(of("model.layers.0.mlp.down_proj").inputs, 32);
  EXPECT_TRUE(of("model.layers.0.mlp.down_proj").reorders);
  EXPECT_FALSE(of("model.layers.0.mlp.up_proj").symmetric);
  EXPECT_FALSE(of("model.layers.0.mlp.up_proj").reorders);
  EXPECT_EQ(of("model.layers.1.mlp.gate_proj").bits, 4);
  EXPECT_FALSE(is_quantised(*read, "lm_head"));
}

TEST(Quantisation, RefusesOtherMethods) {
  for (const char* method : {"aqlm", "quip", "fbgemm_fp8", "higgs", "torchao"}) {
    expect_refused(fmt::format(R"({{"quant_method": "{}"}})", method), "quant_method");
  }
  expect_refused("{}", "quant_method", ErrorCode::kCorruptFile);
  expect_refused("[]", "quantization_config", ErrorCode::kCorruptFile);
}

TEST(NamePattern, ARegularExpressionThatRunsAwayIsAnError) {
  const auto pattern = weights::NamePattern::parse("re:(a+)+$", "ignore");
  ASSERT_TRUE(pattern);
  const auto matched = pattern->matches(std::string(60, 'a') + '!');
  ASSERT_FALSE(matched);
  EXPECT_EQ(matched.error().where, "ignore");
}

TEST(NamePattern, AGlobIsOfTheWholeName) {
  const auto pattern = weights::NamePattern::parse("model.layers.?.mlp.*_proj", "ignore");
  ASSERT_TRUE(pattern);
  EXPECT_TRUE(*pattern->matches("model.layers.3.mlp.up_proj"));
  EXPECT_FALSE(*pattern->matches("model.layers.13.mlp.up_proj"));
  EXPECT_FALSE(*pattern->matches("model.layers.3.mlp.up_proj.weight"));
  EXPECT_FALSE(*pattern->matches("modelxlayers.3.mlp.up_proj"));
}

}  // namespace
}  // namespace rudder::model
