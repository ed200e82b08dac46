#include "rudder/lora/peft_adapter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "rudder/weights/safetensors_writer.h"

namespace rudder::lora {
namespace {

const Targets kTargets = {{"model.layers.0.self_attn.q_proj", 6, 10},
                          {"model.layers.0.self_attn.k_proj", 6, 4},
                          {"model.layers.0.mlp.down_proj", 7, 6},
                          {"model.layers.1.self_attn.q_proj", 6, 10}};
constexpr const char* kQ0 = "base_model.model.model.layers.0.self_attn.q_proj";
constexpr const char* kDown = "base_model.model.model.layers.0.mlp.down_proj";

// A file of tensors to be bent.
struct Made {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  std::vector<uint64_t> dims;
  float value = 0.28125f;
};

std::vector<Made> pair_of(const std::string& module, uint64_t in, uint64_t out, uint64_t rank) {
  return {{module + ".lora_A.weight", tensor::DType::kF32, {rank, in}},
          {module + ".lora_B.weight", tensor::DType::kF32, {out, rank}}};
}

std::string file_of(const std::vector<Made>& tensors) {
  std::vector<weights::TensorDecl> declared;
  std::string data;
  for (const Made& made : tensors) {
    weights::TensorShape shape;
    uint64_t count = 1;
    for (const uint64_t dim : made.dims) {
      shape.dims[shape.rank++] = dim;
      count *= dim;
    }
    declared.push_back({made.name, made.dtype, shape});
    for (uint64_t i = 0; i < count; ++i) {
      if (made.dtype == tensor::DType::kF32) {
        data.append(reinterpret_cast<const char*>(&made.value), sizeof(float));
      } else if (made.dtype == tensor::DType::kBF16) {
        const tensor::BF16 value = tensor::to_bf16(made.value);
        data.append(reinterpret_cast<const char*>(&value), sizeof(value));
      } else {
        data.append(tensor::dtype_bytes(made.dtype), '\0');
      }
    }
  }
  const auto header = weights::make_safetensors_header(declared, {});
  EXPECT_TRUE(header);
  return std::string(reinterpret_cast<const char*>(header->data()), header->size()) + data;
}

std::string config_of(const std::map<std::string, std::string>& changes = {}) {
  std::map<std::string, std::string> keys = {
      {"peft_type", "\"LORA\""}, {"r", "3"}, {"lora_alpha", "5"}, {"bias", "\"none\""}};
  for (const auto& [key, value] : changes) keys[key] = value;
  std::string text = "{";
  for (const auto& [key, value] : keys) {
    if (value.empty()) continue;
    text += fmt::format("{}\"{}\": {}", text.size() > 1 ? ", " : "", key, value);
  }
  return text + "}";
}

Result<ReadAdapter> read(const std::string& config, const std::string& tensors,
                         int32_t max_rank = 8) {
  return read_peft({std::as_bytes(std::span(config)), "adapter_config.json"},
                   {std::as_bytes(std::span(tensors)), "adapter_model.safetensors"}, kTargets,
                   {.max_rank = max_rank, .hash_secret = {3, 5}});
}

std::vector<Made> both() {
  std::vector<Made> tensors = pair_of(kQ0, 6, 10, 3);
  for (Made& made : pair_of(kDown, 7, 6, 3)) tensors.push_back(made);
  return tensors;
}

TEST(PeftAdapter, ReadsPairsInTheOrderOfTargets) {
  const auto read_one = read(config_of(), file_of(both()));
  ASSERT_TRUE(read_one) << read_one.error().to_string();
  const Adapter& adapter = *read_one->adapter;
  ASSERT_EQ(adapter.deltas.size(), 2U);
  EXPECT_EQ(adapter.deltas[0].target, 0);
  EXPECT_EQ(adapter.deltas[1].target, 2);
  EXPECT_EQ(adapter.max_rank, 3);
  EXPECT_FLOAT_EQ(adapter.deltas[0].scale, 5.0f / 3.0f);
  EXPECT_EQ(adapter.deltas[1].a.shape, (tensor::Shape{3, 7}));
  EXPECT_EQ(adapter.deltas[1].b.shape, (tensor::Shape{6, 3}));
  EXPECT_EQ(adapter.deltas[1].b.as<float>()[17], 0.28125f);
  EXPECT_EQ(read_one->report.matched, (std::vector<std::string>{"model.layers.0.self_attn.q_proj",
                                                                "model.layers.0.mlp.down_proj"}));
}

TEST(PeftAdapter, PatternsAndRootsMakeTheScale) {
  std::vector<Made> tensors = pair_of(kQ0, 6, 10, 2);
  for (Made& made : pair_of(kDown, 7, 6, 3)) tensors.push_back(made);
  const auto patterns = read(config_of({{"rank_pattern", R"({"layers.0.self_attn.q_proj": 2})"},
                                        {"alpha_pattern", R"({"down_.roj": 11, "q_proj": 7})"}}),
                             file_of(tensors));
  ASSERT_TRUE(patterns) << patterns.error().to_string();
  EXPECT_FLOAT_EQ(patterns->adapter->deltas[0].scale, 7.0f / 2.0f);
  EXPECT_FLOAT_EQ(patterns->adapter->deltas[1].scale, 11.0f / 3.0f);
  const auto roots = read(config_of({{"use_rslora", "true"}}), file_of(both()));
  ASSERT_TRUE(roots);
  EXPECT_FLOAT_EQ(roots->adapter->deltas[0].scale, static_cast<float>(5.0 / std::sqrt(3.0)));
}

TEST(PeftAdapter, TheKeyIsTheContent) {
  const auto key = [](const std::string& config, const std::vector<Made>& tensors) {
    const auto one = read(config, file_of(tensors));
    EXPECT_TRUE(one);
    return one->adapter->key;
  };
  const AdapterKey plain = key(config_of(), both());
  EXPECT_EQ(plain, key(config_of({{"lora_dropout", "0.3"}}), both()));
  EXPECT_NE(plain, key(config_of({{"lora_alpha", "6"}}), both()));
  std::vector<Made> other = both();
  other[3].value = 0.28124f;
  EXPECT_NE(plain, key(config_of(), other));
  std::vector<Made> narrow = both();
  narrow[0].dtype = tensor::DType::kBF16;
  EXPECT_NE(plain, key(config_of(), narrow));
}

TEST(PeftAdapter, OtherFrontsOfTheSameModel) {
  for (const char* const front : {"base_model.model.model.language_model.layers.0.mlp.down_proj",
                                  "base_model.model.layers.0.mlp.down_proj"}) {
    EXPECT_TRUE(read(config_of(), file_of(pair_of(front, 7, 6, 3)))) << front;
  }
}

// Refused with a code, the file and the key.
struct BadConfig {
  std::string key;
  std::string value;  // empty: the key is missing
};

TEST(PeftAdapter, ConfigsAreRefusedByTheirKey) {
  const std::vector<BadConfig> bad = {{"peft_type", ""},
                                      {"peft_type", "null"},
                                      {"peft_type", "7"},
                                      {"peft_type", "\"IA3\""},
                                      {"peft_type", "\"lora\""},
                                      {"peft_type", "\"PROMPT_TUNING\""},
                                      {"peft_type", "[]"},
                                      {"r", ""},
                                      {"r", "null"},
                                      {"r", "0"},
                                      {"r", "-3"},
                                      {"r", "4097"},
                                      {"r", "1e30"},
                                      {"r", "2.5"},
                                      {"r", "\"3\""},
                                      {"r", "{}"},
                                      {"r", "true"},
                                      {"lora_alpha", ""},
                                      {"lora_alpha", "null"},
                                      {"lora_alpha", "\"5\""},
                                      {"lora_alpha", "1e9"},
                                      {"lora_alpha", "-1e9"},
                                      {"lora_alpha", "[5]"},
                                      {"use_rslora", "1"},
                                      {"use_rslora", "\"yes\""},
                                      {"use_rslora", "{}"},
                                      {"use_dora", "\"yes\""},
                                      {"use_dora", "1"},
                                      {"modules_to_save", "[\"lm_head\"]"},
                                      {"modules_to_save", "\"lm_head\""},
                                      {"lora_bias", "true"},
                                      {"lora_bias", "3"},
                                      {"fan_in_fan_out", "true"},
                                      {"alora_invocation_tokens", "[3, 5]"},
                                      {"alora_invocation_tokens", "7"},
                                      {"target_parameters", "[\"mlp.experts.gate_up_proj\"]"},
                                      {"layer_replication", "[[0, 1]]"},
                                      {"trainable_token_indices", "[3]"},
                                      {"trainable_token_indices", "{\"embed_tokens\": [3]}"},
                                      {"use_qalora", "true"},
                                      {"use_bdlora", "true"},
                                      {"megatron_config", "{\"a\": 3}"},
                                      {"bias", "\"all\""},
                                      {"bias", "\"lora_only\""},
                                      {"bias", "true"},
                                      {"bias", "3"},
                                      {"init_lora_weights", "\"pissa\""},
                                      {"init_lora_weights", "\"pissa_niter_4\""},
                                      {"init_lora_weights", "\"olora\""},
                                      {"init_lora_weights", "\"corda\""},
                                      {"init_lora_weights", "\"loftq\""},
                                      {"init_lora_weights", "\"lora_ga\""},
                                      {"init_lora_weights", "3"},
                                      {"init_lora_weights", "[true]"},
                                      {"rank_pattern", "7"},
                                      {"rank_pattern", "[3]"},
                                      {"rank_pattern", "{\"q_proj\": 0}"},
                                      {"rank_pattern", "{\"q_proj\": \"3\"}"},
                                      {"rank_pattern", "{\"q_proj\": 9999}"},
                                      {"rank_pattern", "{\"q_(proj\": 3}"},
                                      {"rank_pattern", "{\"[\": 3}"},
                                      {"alpha_pattern", "\"q_proj\""},
                                      {"alpha_pattern", "{\"q_proj\": null}"},
                                      {"alpha_pattern", "{\"q_proj\": \"high\"}"},
                                      {"alpha_pattern", "{\"*q\": 3}"},
                                      {"alpha_pattern", "{\"q_proj\": 1e12}"},
                                      {"arrow_config", "{\"router_temperature\": 1.5}"},
                                      {"kasa_config", "{\"a\": 1}"},
                                      {"monteclora_config", "{\"a\": 1}"},
                                      {"velora_config", "{\"a\": 1}"},
                                      {"what_is_this", "true"},
                                      {"what_is_this", "3"},
                                      {"what_is_this", "\"yes\""},
                                      {"what_is_this", "[\"yes\"]"},
                                      {"what_is_this", "[{\"a\": 1}]"}};
  for (const BadConfig& one : bad) {
    const std::string config = config_of({{one.key, one.value}});
    const auto refused = read(config, file_of(both()));
    ASSERT_FALSE(refused) << config;
    EXPECT_NE(refused.error().where.find("adapter_config.json"), std::string::npos) << config;
    EXPECT_NE(refused.error().where.find(one.key), std::string::npos)
        << config << ": " << refused.error().to_string();
  }
  EXPECT_GE(bad.size(), 75U);
}

TEST(PeftAdapter, ConfigsThatAreNoObject) {
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{"),
        std::string("{\"r\": 3,}"), std::string("\xff{}"), std::string("{} {}"),
        std::string("{\"peft_type\""), std::string(200, '['), std::string("{\"r\": NaN}")}) {
    const auto refused = read(text, file_of(both()));
    ASSERT_FALSE(refused) << text;
    EXPECT_NE(refused.error().to_string().find("adapter_config.json"), std::string::npos) << text;
  }
}

// Refused with the file and the tensor.
TEST(PeftAdapter, TensorsAreRefusedByTheirName) {
  struct Bad {
    std::string what;
    std::vector<Made> tensors;
    std::string named;
  };
  std::vector<Bad> bad;
  const auto with = [&](Made more, const std::string& what) {
    std::vector<Made> tensors = both();
    const std::string name = more.name;
    tensors.push_back(std::move(more));
    bad.push_back({what, std::move(tensors), name});
  };
  const std::string q(kQ0);
  for (const std::string& name :
       {q + ".lora_magnitude_vector",
        q + ".lora_B.bias",
        q + ".bias",
        q + ".lora_C.weight",
        q + ".lora_A",
        q + ".lora_A.default.weight",
        q + ".weight",
        q + ".modules_to_save.weight",
        std::string("base_model.model.lm_head.lora_A.weight"),
        std::string("base_model.model.model.embed_tokens.lora_embedding_A"),
        std::string("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight"),
        std::string("base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight"),
        std::string("base_model.model.model.layers.0.mlp.experts.3.down_proj.lora_A.weight"),
        std::string("base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight"),
        std::string("base_model.model.vision_tower.layers.0.self_attn.q_proj.lora_A.weight"),
        std::string("model.layers.0.self_attn.q_proj.lora_A.weight"),
        std::string("base_model.model..lora_A.weight"),
        std::string(".lora_A.weight"),
        std::string("x"),
        std::string("base_model.model.model.layers.0.lora_A.weight")}) {
    with({name, tensor::DType::kF32, {3, 6}}, "unmatched");
  }
  // The same product by another front.
  with({"base_model.model.layers.0.self_attn.q_proj.lora_A.weight", tensor::DType::kF32, {3, 6}},
       "twice");
  for (size_t i = 0; i < 4; ++i) {
    std::vector<Made> tensors = both();
    const std::string missing = tensors[i].name;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    bad.push_back({"half a pair without " + missing, tensors, both()[i ^ 1].name});
    const std::vector<std::vector<uint64_t>> shapes = {{},        {3},     {18},   {3, 6, 1},
                                                       {1, 3, 6}, {6, 3},  {4, 4}, {3, 5},
                                                       {2, 6},    {10, 2}, {9, 3}, {1, 1}};
    for (const auto& dims : shapes) {
      std::vector<Made> bent = both();
      if (bent[i].dims == dims || (dims == std::vector<uint64_t>{6, 3} && i == 3)) continue;
      bent[i].dims = dims;
      bad.push_back({fmt::format("shape {}", dims.size()), bent, bent[i].name});
    }
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      std::vector<Made> bent = both();
      bent[i].value = value;
      bad.push_back({"not finite", bent, bent[i].name});
      bent[i].dtype = tensor::DType::kBF16;
      bad.push_back({"not finite in bf16", bent, bent[i].name});
    }
    for (const tensor::DType dtype :
         {tensor::DType::kI32, tensor::DType::kI64, tensor::DType::kU8, tensor::DType::kF8E4M3}) {
      std::vector<Made> bent = both();
      bent[i].dtype = dtype;
      bad.push_back({"dtype", bent, bent[i].name});
    }
  }
  for (const Bad& one : bad) {
    const auto refused = read(config_of(), file_of(one.tensors));
    ASSERT_FALSE(refused) << one.what << " " << one.named;
    const std::string text = refused.error().to_string();
    EXPECT_NE(text.find("adapter_model.safetensors"), std::string::npos) << text;
    EXPECT_NE(text.find(one.named), std::string::npos) << text << " / " << one.named;
  }
  EXPECT_GE(bad.size(), 110U);
}

// Three rows that differ, and a bias; rows of W + s B A have a length whatever the adapter.
Result<BaseTensors> base_of(const Target& target) {
  static std::vector<float> values;
  static std::vector<float> bias;
  values.clear();
  for (int64_t i = 0; i < target.in * target.out; ++i) {
    values.push_back(0.1875f * static_cast<float>(i % 7 - 3));
  }
  bias.assign(static_cast<size_t>(target.out), 0.375f);
  return BaseTensors{{values.data(), tensor::DType::kF32, {target.out, target.in}},
                     {bias.data(), tensor::DType::kF32, {target.out}}};
}

std::vector<Made> with_magnitude(const Made& magnitude) {
  std::vector<Made> tensors = pair_of(kQ0, 6, 10, 3);
  tensors.push_back(magnitude);
  return tensors;
}

Result<ReadAdapter> read_dora(const std::vector<Made>& tensors, const BaseReader& base) {
  const std::string config = config_of({{"use_dora", "true"}});
  const std::string file = file_of(tensors);
  return read_peft({std::as_bytes(std::span(config)), "adapter_config.json"},
                   {std::as_bytes(std::span(file)), "adapter_model.safetensors"}, kTargets,
                   {.max_rank = 8, .hash_secret = {3, 5}}, base);
}

const Made kMagnitude = {
    std::string(kQ0) + ".lora_magnitude_vector", tensor::DType::kF32, {10}, 1.25f};

// adapter.A9
TEST(PeftAdapter, DoraScalesRowsToTheirMagnitude) {
  const auto got = read_dora(with_magnitude(kMagnitude), base_of);
  ASSERT_TRUE(got) << got.error().to_string();
  const Delta& delta = got->adapter->deltas.front();
  ASSERT_EQ(delta.gains.size(), 10U);
  ASSERT_EQ(delta.offsets.size(), 10U);
  const double change = 5.0 / 3.0 * 3 * 0.28125 * 0.28125;  // of each element
  for (size_t o = 0; o < 10; ++o) {
    double square = 0;
    for (size_t i = 0; i < 6; ++i) {
      const double w = 0.1875 * (static_cast<double>((o * 6 + i) % 7) - 3) + change;
      square += w * w;
    }
    const double gain = 1.25 / std::sqrt(square);
    EXPECT_NEAR(delta.gains[o], gain, 1e-6 * gain) << o;
    EXPECT_NEAR(delta.offsets[o], (1 - gain) * 0.375, 1e-6) << o;
  }
  // What it does to activations is its key.
  Made other = kMagnitude;
  other.value = 1.5f;
  EXPECT_NE(read_dora(with_magnitude(other), base_of)->adapter->key, got->adapter->key);
}

TEST(PeftAdapter, DoraThatLacksAPartIsRefusedByIt) {
  const auto refused = [](const std::vector<Made>& tensors, const BaseReader& base,
                          std::string_view why) {
    const auto got = read_dora(tensors, base);
    ASSERT_FALSE(got) << why;
    const std::string text = got.error().to_string();
    EXPECT_NE(text.find("adapter_model.safetensors: tensor"), std::string::npos) << text;
    EXPECT_NE(text.find(why), std::string::npos) << text;
  };
  refused(with_magnitude(kMagnitude), {}, "are not here");
  refused(pair_of(kQ0, 6, 10, 3), base_of, "its lora_magnitude_vector is missing");
  refused({kMagnitude}, base_of, "its lora_A is missing");
  for (const std::vector<uint64_t>& dims :
       std::vector<std::vector<uint64_t>>{{9}, {10, 1}, {1, 10}, {}, {11}}) {
    Made bent = kMagnitude;
    bent.dims = dims;
    refused(with_magnitude(bent), base_of, "its shape is");
  }
  Made bent = kMagnitude;
  bent.value = std::numeric_limits<float>::infinity();
  refused(with_magnitude(bent), base_of, "not finite");
  bent = kMagnitude;
  bent.dtype = tensor::DType::kI32;
  refused(with_magnitude(bent), base_of, "are not served");
  refused(
      with_magnitude(kMagnitude),
      [](const Target&) -> Result<BaseTensors> {
        return fail(ErrorCode::kUnsupported, "few bits", "base");
      },
      "few bits");
  std::vector<Made> still = with_magnitude(kMagnitude);
  still[1].value = 0;
  refused(
      still,
      [](const Target& target) -> Result<BaseTensors> {
        static std::vector<float> zeros;
        zeros.assign(static_cast<size_t>(target.in * target.out), 0.0f);
        return BaseTensors{{zeros.data(), tensor::DType::kF32, {target.out, target.in}}};
      },
      "no length to divide by");
}

TEST(PeftAdapter, RanksAboveTheServersAreRefused) {
  const auto refused = read(config_of(), file_of(both()), 2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "LoRA rank 3 is greater than max_lora_rank 2.");
}

TEST(PeftAdapter, EmptyAndCutFilesAreRefused) {
  EXPECT_FALSE(read(config_of(), file_of({})));
  const std::string whole = file_of(both());
  for (size_t length = 0; length < whole.size(); length += 13) {
    const auto refused = read(config_of(), whole.substr(0, length));
    ASSERT_FALSE(refused) << length;
    EXPECT_NE(refused.error().to_string().find("adapter_model.safetensors"), std::string::npos);
  }
}

}  // namespace
}  // namespace rudder::lora
