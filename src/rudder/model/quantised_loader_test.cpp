// What a loader makes of an fp8 checkpoint, and which damages it names.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "rudder/model/tensors.h"
#include "rudder/model/tiny_checkpoint.h"

namespace rudder::model {
namespace {

using tensor::DType;

const std::string kAttention = "model.layers.0.self_attn.";
const std::string kMlp = "model.layers.0.mlp.";

const Attention::Weights& attention_weights(const Weights& weights) {
  return std::get<Attention::Weights>(weights.layers[0].mixer);
}

// Every product but the head's is fp8, with a scale a tensor.
struct QuantisedModel : TinyModel {
  QuantisedModel() {
    describe(R"({"quant_method": "fp8", "activation_scheme": "static",
                 "ignored_layers": ["lm_head"]})");
    float scale = 1;
    for (const std::string& module : modules()) {
      weight_of(module).dtype = DType::kF8E4M3;
      add(module + ".weight_scale", {1});
      values[module + ".weight_scale"] = scale++;
    }
  }

  static std::vector<std::string> modules() {
    return {kAttention + "q_proj", kAttention + "k_proj", kAttention + "v_proj",
            kAttention + "o_proj", kMlp + "gate_proj",    kMlp + "up_proj",
            kMlp + "down_proj"};
  }
  weights::TensorDecl& weight_of(const std::string& module) { return decls[module + ".weight"]; }
  void describe(const std::string& description) {
    const size_t begin = config.find(", \"quantization_config\"");
    if (begin != std::string::npos) config.erase(begin, config.rfind('}') - begin);
    config.insert(config.rfind('}'), ", \"quantization_config\": " + description);
  }
};

TEST(QuantisedLoader, PartsKeepTheirOwnScales) {
  QuantisedModel tiny;
  KeepingOps ops;
  const auto weights = tiny.load(ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  const std::vector<std::vector<float>> expected = {{},  // the head
                                                    std::vector<float>(8, 1),
                                                    std::vector<float>(4, 2),
                                                    std::vector<float>(4, 3),
                                                    std::vector<float>(8, 4),
                                                    std::vector<float>(6, 5),
                                                    std::vector<float>(6, 6),
                                                    std::vector<float>(8, 7)};
  EXPECT_EQ(ops.scales, expected);
}

// v of eight bits, gate, up and down likewise; the rest is wide.
struct Int8Model : TinyModel {
  Int8Model() {
    config.insert(config.rfind('}'), R"(, "quantization_config": {
      "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
      "config_groups": {"g": {"targets": ["re:.*(v|gate|up|down)_proj"], "input_activations": null,
        "weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"}}}})");
    for (const std::string& module :
         {kAttention + "v_proj", kMlp + "gate_proj", kMlp + "up_proj", kMlp + "down_proj"}) {
      decls[module + ".weight"].dtype = DType::kI8;
      add(module + ".weight_scale", {decls[module + ".weight"].shape.dims[0], 1});
    }
  }
};

TEST(QuantisedLoader, PartsComeInTheirOwnFormatsWhereTheyAreKept) {
  constexpr ops::WeightFormat kWide = {.codes = ops::Codes::kF32};
  constexpr ops::WeightFormat kInt8 = {.codes = ops::Codes::kI8, .scale = ops::ScaleType::kF32};
  for (const bool keeps : {true, false}) {
    Int8Model tiny;
    const auto checkpoint = tiny.open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    const auto spec = read_spec(**checkpoint);
    ASSERT_TRUE(spec) << spec.error().to_string();
    ASSERT_TRUE(check_tensors(**checkpoint, *spec));
    KeepingOps ops;
    ops.keeps_all = keeps;
    const auto weights = load_weights(**checkpoint, *spec, ops, {});
    ASSERT_TRUE(weights) << weights.error().to_string();
    const ops::WeightFormat kept = keeps ? kInt8 : kWide;
    // Head; q, k, v; o; gate, up; down. Where one part of a product is wide all are.
    EXPECT_EQ(ops.formats, (std::vector{kWide, kWide, kWide, kWide, kWide, kept, kept, kept}));
    EXPECT_EQ(weights->bytes, budget_weights(**checkpoint, *spec, ops)->bytes);
  }
}

// A tied table in blocks of Q8_0, as a GGUF file has it; the rest as `base` has it.
class PackedTable final : public weights::Checkpoint {
 public:
  explicit PackedTable(std::shared_ptr<const weights::Checkpoint> base) : base_(std::move(base)) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i] = static_cast<std::byte>(i % 34 == 1 ? 0x2c : 37 * i % 101);  // small scales
    }
    tensors_ = base_->tensors();
    for (weights::TensorInfo& tensor : tensors_) {
      if (!tensor.name.ends_with("embed_tokens.weight")) continue;
      tensor.view.data = nullptr;
      tensor.packed = weights::PackedTensor{
          .type = weights::find_block_type("Q8_0"), .bytes = blocks_, .rows = 5, .columns = 32};
    }
  }
  std::string name() const override { return base_->name(); }
  Result<std::string> read_text(std::string_view file) const override {
    return base_->read_text(file);
  }
  bool has_file(std::string_view file) const override { return base_->has_file(file); }
  const std::vector<weights::TensorInfo>& tensors() const override { return tensors_; }
  const weights::TensorInfo* find(std::string_view tensor) const override {
    const auto at = std::ranges::find(tensors_, tensor, &weights::TensorInfo::name);
    return at != tensors_.end() ? &*at : nullptr;
  }
  int64_t tensor_bytes() const override { return base_->tensor_bytes(); }
  void prefetch(const weights::TensorInfo&) const override {}
  void release_pages() const override {}
  Result<void> check_unchanged() const override { return {}; }

 private:
  std::shared_ptr<const weights::Checkpoint> base_;
  std::vector<std::byte> blocks_ = std::vector<std::byte>(5 * size_t{34});
  std::vector<weights::TensorInfo> tensors_;
};

TEST(QuantisedLoader, ATiedHeadThatIsKeptHasATableBesideIt) {
  TinyModel tiny;
  tiny.replace_in_config("\"hidden_size\": 8", "\"hidden_size\": 32");
  tiny.replace_in_config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  tiny.decls.clear();
  tiny.add("model.embed_tokens.weight", {5, 32});
  for (const char* const norm :
       {"norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm"}) {
    tiny.add(std::string("model.") + norm + ".weight", {32});
  }
  for (const char* const wide : {"q_proj", "o_proj"}) {
    tiny.add(kAttention + wide + ".weight", {32, 32});
  }
  for (const char* const narrow : {"k_proj", "v_proj"}) {
    tiny.add(kAttention + narrow + ".weight", {16, 32});
  }
  tiny.add(kMlp + "gate_proj.weight", {6, 32});
  tiny.add(kMlp + "up_proj.weight", {6, 32});
  tiny.add(kMlp + "down_proj.weight", {32, 6});
  const auto base = tiny.open();
  ASSERT_TRUE(base) << base.error().to_string();
  const PackedTable checkpoint(*base);
  const auto spec = read_spec(checkpoint);
  ASSERT_TRUE(spec) << spec.error().to_string();
  for (const bool keeps : {true, false}) {
    KeepingOps ops;
    ops.keeps_all = keeps;
    const auto weights = load_weights(checkpoint, *spec, ops, {});
    ASSERT_TRUE(weights) << weights.error().to_string();
    EXPECT_EQ(weights->embedding.empty(), !keeps);
    EXPECT_EQ(ops.formats[0].codes, keeps ? ops::Codes::kI8 : ops::Codes::kF32);
    EXPECT_EQ(ops.formats[0].group, keeps ? 32 : 0);
    const auto budget = budget_weights(checkpoint, *spec, ops);
    // The tests' backend keeps codes and is in f32: a table in bf16 is what others have.
    EXPECT_EQ(weights->bytes, budget->bytes + (keeps ? 5 * 32 * 2 : 0));
  }
}

TEST(QuantisedLoader, ScalesAreOneNumberOrAColumn) {
  const std::string name = kMlp + "down_proj.weight_scale";
  for (const std::initializer_list<uint64_t> shape :
       {std::initializer_list<uint64_t>{}, {1}, {1, 1}, {8}, {8, 1}}) {
    QuantisedModel tiny;
    tiny.add(name, shape);
    KeepingOps ops;
    const auto weights = tiny.load(ops);
    ASSERT_TRUE(weights) << weights.error().to_string();
    EXPECT_EQ(ops.scales.back(), std::vector<float>(8, 7));
  }
  QuantisedModel tiny;
  tiny.add(name, {6});
  tiny.expect_refused(ErrorCode::kCorruptFile, "its shape is [6], the config asks for [1] or [8]");
  tiny.add(name, {1, 8});
  tiny.expect_refused(ErrorCode::kCorruptFile, name);
}

TEST(QuantisedLoader, TheStrategyDecidesTheShape) {
  const std::string description =
      R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
          "config_groups": {"g": {"targets": ["Linear"], "input_activations": null,
            "weights": {"num_bits": 8, "type": "float", "strategy": "STRATEGY"}}}})";
  const auto with = [&](std::string_view strategy) {
    std::string text = description;
    return text.replace(text.find("STRATEGY"), 8, strategy);
  };
  QuantisedModel tiny;
  tiny.describe(with("tensor"));
  KeepingOps ops;
  EXPECT_TRUE(tiny.load(ops));
  tiny.describe(with("channel"));
  tiny.expect_refused(ErrorCode::kCorruptFile, "its shape is [1], the config asks for [8, 1]");
  for (const std::string& module : QuantisedModel::modules()) {
    tiny.add(module + ".weight_scale", {tiny.weight_of(module).shape.dims[0], 1});
  }
  EXPECT_TRUE(tiny.load(ops));
  tiny.describe(with("tensor"));
  tiny.expect_refused(ErrorCode::kCorruptFile, "its shape is [8, 1], the config asks for [1]");
}

TEST(QuantisedLoader, NamesWhatIsDamaged) {
  const std::string scale = kMlp + "up_proj.weight_scale";
  QuantisedModel missing;
  missing.decls.erase(scale);
  missing.expect_refused(ErrorCode::kCorruptFile, "the tensor '" + scale + "' is missing");
  for (const float value : {NAN, INFINITY, -1.0f}) {
    QuantisedModel tiny;
    tiny.values[scale] = value;
    tiny.expect_refused(ErrorCode::kCorruptFile, "tensor '" + scale + "'");
  }
  QuantisedModel type;
  type.add(scale, {1}, DType::kI32);
  type.expect_refused(ErrorCode::kUnsupported, "scales of type I32");
  QuantisedModel weight;
  weight.weight_of(kMlp + "up_proj").dtype = DType::kI8;
  weight.expect_refused(ErrorCode::kUnsupported, "weights of type I8");
  QuantisedModel shape;
  shape.add(kMlp + "up_proj.weight", {8, 6}, DType::kF8E4M3);
  shape.expect_refused(ErrorCode::kCorruptFile, "its shape is [8, 6], the config asks for [6, 8]");
  QuantisedModel zero_point;
  zero_point.add(kMlp + "up_proj.weight_zero_point", {1}, DType::kI8);
  zero_point.expect_refused(ErrorCode::kUnsupported, "up_proj.weight_zero_point");
  QuantisedModel input;
  input.add(kMlp + "up_proj.input_scale", {6});
  input.expect_refused(ErrorCode::kCorruptFile, "up_proj.input_scale");
}

TEST(QuantisedLoader, TheConfigAndTheTensorsAgree) {
  QuantisedModel excluded;
  excluded.describe(R"({"quant_method": "fp8", "activation_scheme": "static",
                        "ignored_layers": ["lm_head", "model.layers.0.mlp.up_proj"]})");
  excluded.expect_refused(ErrorCode::kUnsupported, "excludes its module");
  QuantisedModel undescribed;
  undescribed.describe("null");
  undescribed.expect_refused(ErrorCode::kUnsupported, "no quantization_config says how");
  // One product has operands of one type.
  QuantisedModel mixed;
  mixed.weight_of(kMlp + "up_proj").dtype = DType::kF32;
  mixed.decls.erase(kMlp + "up_proj.weight_scale");
  mixed.expect_refused(ErrorCode::kUnsupported, "module 'model.layers.0.mlp.up_proj'");
  // What is stored wide can be multiplied as it is, whatever the config says of it.
  QuantisedModel wide;
  wide.weight_of(kMlp + "down_proj").dtype = DType::kF32;
  wide.decls.erase(kMlp + "down_proj.weight_scale");
  KeepingOps ops;
  EXPECT_TRUE(wide.load(ops));
  EXPECT_TRUE(ops.scales.back().empty());
}

TEST(QuantisedLoader, AHeadMayBeQuantised) {
  QuantisedModel tiny;
  tiny.describe(R"({"quant_method": "fp8", "activation_scheme": "dynamic"})");
  tiny.weight_of("lm_head").dtype = DType::kF8E4M3;
  tiny.expect_refused(ErrorCode::kCorruptFile, "'lm_head.weight_scale' is missing");
  tiny.add("lm_head.weight_scale", {1});
  KeepingOps ops;
  ASSERT_TRUE(tiny.load(ops));
  EXPECT_EQ(ops.scales.front(), std::vector<float>(5, 0.25f));
}

// What is fp8 in the file takes a byte where it stays so; the rest is planned as ever.
TEST(QuantisedLoader, MemoryIsPlannedAsItWillBeKept) {
  QuantisedModel tiny;
  const auto checkpoint = tiny.open();
  ASSERT_TRUE(checkpoint);
  const ModelSpec spec = read_spec(**checkpoint).value();
  KeepingOps ops;
  const WeightBudget wide = budget_weights(**checkpoint, spec, ops).value();
  EXPECT_EQ(wide.bytes, weight_budget(spec, {}, all_as({ops::Codes::kF32}))->bytes);
  EXPECT_EQ(wide.formats, "F32");
  ops.keeps = true;
  const WeightBudget kept = budget_weights(**checkpoint, spec, ops).value();
  EXPECT_EQ(kept.formats, "F8_E4M3, head F32");
  const int64_t scales = 4 * (8 + 2 * 4 + 8 + 2 * 6 + 8);  // of rows
  EXPECT_EQ(wide.bytes - kept.bytes, 3 * (8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 6 * 8) - scales);
}

// A wide tensor between those of fp8, in one layer; the golden checkpoint mistral-fp8-static has
// one, too, and runs.
TEST(QuantisedLoader, FormatsDifferTensorByTensor) {
  QuantisedModel tiny;
  const std::string wide = kMlp + "down_proj";
  tiny.describe(R"({"quant_method": "fp8", "activation_scheme": "static",
                    "ignored_layers": ["lm_head", "model.layers.0.mlp.down_proj"]})");
  tiny.weight_of(wide).dtype = DType::kBF16;
  tiny.decls.erase(wide + ".weight_scale");
  KeepingOps ops;
  ops.keeps = true;
  const auto weights = tiny.load(ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  std::vector<bool> is_wide;
  for (const std::vector<float>& scales : ops.scales) is_wide.push_back(scales.empty());
  EXPECT_EQ(is_wide, (std::vector<bool>{true, false, false, false, false, false, false, true}));
  const auto checkpoint = tiny.open();
  ASSERT_TRUE(checkpoint);
  const ModelSpec spec = read_spec(**checkpoint).value();
  const WeightBudget mixed = budget_weights(**checkpoint, spec, ops).value();
  ops.keeps = false;
  const WeightBudget all_wide = budget_weights(**checkpoint, spec, ops).value();
  EXPECT_EQ(mixed.formats, "F8_E4M3, F32");
  const int64_t scales = 4 * (8 + 2 * 4 + 8 + 2 * 6);  // of rows
  EXPECT_EQ(all_wide.bytes - mixed.bytes, 3 * (8 * 8 + 2 * 4 * 8 + 8 * 8 + 2 * 6 * 8) - scales);
}

// A backend that quantises what it loads, and keeps the head in more bits.
class WideHeadOps final : public KeepingOps {
 public:
  Result<ops::WeightFormat> stored_format(const ops::WeightFormat& file) const override {
    return file.is_wide() ? ops::kFp8Rows : file;
  }
  Result<ops::WeightFormat> format_for(const ops::WeightFormat& file,
                                       ops::ProductUse use) const override {
    return is_wide && use == ops::ProductUse::kHead ? ops::wide_format(DType::kBF16)
                                                    : stored_format(file);
  }
  Result<ops::View> upload(const ops::View& host, DType dtype) override {
    return allocate(dtype, host.shape);
  }
  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    for (const ops::LinearPart& part : parts) heads.push_back(part.use == ops::ProductUse::kHead);
    return KeepingOps::make_linear(parts);
  }

  bool is_wide = true;
  std::vector<bool> heads;  // of each part
};

TEST(QuantisedLoader, TheHeadHasAFormatOfItsOwn) {
  for (const bool is_tied : {false, true}) {
    TinyModel tiny;
    if (is_tied) {
      tiny.config.replace(tiny.config.find("false"), 5, "true");
      tiny.decls.erase("lm_head.weight");
    }
    WideHeadOps ops;
    const auto weights = tiny.load(ops);
    ASSERT_TRUE(weights) << weights.error().to_string();
    EXPECT_EQ(ops.heads,
              (std::vector<bool>{true, false, false, false, false, false, false, false}));
    const auto checkpoint = tiny.open();
    ASSERT_TRUE(checkpoint);
    const ModelSpec spec = read_spec(**checkpoint).value();
    const WeightBudget wide = budget_weights(**checkpoint, spec, ops).value();
    EXPECT_EQ(wide.formats, "F8_E4M3, head BF16");
    ops.is_wide = false;
    const WeightBudget quantised = budget_weights(**checkpoint, spec, ops).value();
    EXPECT_EQ(quantised.formats, "F8_E4M3");
    EXPECT_EQ(wide.bytes - quantised.bytes, 5 * 8 * (2 - 1) - 4 * 5);  // no scales of its rows
  }
}

TEST(QuantisedLoader, KvScalesHaveSeveralNames) {
  for (const auto& [k, v] :
       {std::pair("k_scale", "v_scale"), std::pair("k_proj.k_scale", "v_proj.v_scale"),
        std::pair("k_proj.output_scale", "v_proj.output_scale")}) {
    TinyModel tiny;
    tiny.add(kAttention + k, {1});
    tiny.add(kAttention + v, {1, 1, 1});
    tiny.values[kAttention + k] = 0.5f;
    KeepingOps ops;
    const auto weights = tiny.load(ops);
    ASSERT_TRUE(weights) << weights.error().to_string();
    EXPECT_EQ(attention_weights(*weights).k_scale.as<float>()[0], 0.5f) << k;
    EXPECT_EQ(attention_weights(*weights).v_scale.as<float>()[0], 0.25f) << v;
  }
  TinyModel none;
  KeepingOps ops;
  const auto loaded = none.load(ops);
  ASSERT_TRUE(loaded) << loaded.error().to_string();
  EXPECT_TRUE(attention_weights(*loaded).k_scale.empty());
}

TEST(QuantisedLoader, KvScalesAreOneALayerOrOneAHead) {
  TinyModel tiny;
  tiny.replace_in_config("\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2");
  tiny.add(kAttention + "k_proj.weight", {8, 8});
  tiny.add(kAttention + "v_proj.weight", {8, 8});
  tiny.add(kAttention + "k_scale", {2, 1, 1});
  tiny.add(kAttention + "v_scale", {1});
  KeepingOps ops;
  const auto weights = tiny.load(ops);
  ASSERT_TRUE(weights) << weights.error().to_string();
  EXPECT_EQ(attention_weights(*weights).k_scale.shape, tensor::Shape{2});
  EXPECT_EQ(attention_weights(*weights).v_scale.shape, tensor::Shape{2});
  EXPECT_EQ(attention_weights(*weights).v_scale.as<float>()[1], 0.25f);
  tiny.add(kAttention + "k_scale", {3});
  tiny.expect_refused(ErrorCode::kCorruptFile, "the config asks for [1] or [2]");
  tiny.add(kAttention + "k_scale", {2});
  for (const float value : {0.0f, -1.0f, NAN}) {
    tiny.values[kAttention + "k_scale"] = value;
    tiny.expect_refused(ErrorCode::kCorruptFile, "is no scale");
  }
}

}  // namespace
}  // namespace rudder::model
