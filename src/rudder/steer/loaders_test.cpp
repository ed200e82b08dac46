#include "rudder/steer/loaders.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "rudder/steer/parse_test_support.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::steer {
namespace {

// Files that numpy, gguf and safetensors wrote: tools/golden/steering_files.py.
std::vector<std::byte> bytes_of(const std::string& name) {
  const auto file =
      weights::MappedFile::open(std::string(RUDDER_SOURCE_DIR) + "/tests/steering/" + name);
  EXPECT_TRUE(file.has_value()) << name;
  const auto bytes = (*file)->bytes();
  return {bytes.begin(), bytes.end()};
}

Result<LoadedModule> load(std::span<const std::byte> bytes, const std::string& name) {
  return load_module_bytes(bytes, name, small_model(), OneName());
}

tap::ContentKey key_of_ops(std::vector<OpSpec> ops) {
  const auto config = Config::build(std::make_shared<const Model>(small_model()), std::move(ops));
  EXPECT_TRUE(config.has_value()) << config.error().to_string();
  return (*config)->program(1).key;
}

// What all of the files hold.
tap::ContentKey expected_key() {
  return key_of_ops(parse(R"({"steering_vectors": {"resid_post": {"3": [3, -1.5, 0.25, 9],
                                                              "7": [7, -3.5, 0.25, 49]}}})")
                        ->ops);
}

TEST(Loaders, FilesOfOtherLibrariesHoldTheSame) {
  for (const char* name : {"named.npz", "deflated.npz", "stacked.npz", "half.npz",
                           "named.safetensors", "control.gguf"}) {
    const auto loaded = load(bytes_of(name), name);
    ASSERT_TRUE(loaded.has_value()) << name << ": " << loaded.error().to_string();
    EXPECT_EQ(key_of_ops(loaded->ops), expected_key()) << name;
    const bool has_hint = !std::string_view(name).ends_with(".npz");
    EXPECT_EQ(loaded->model_hint, has_hint ? "tiny" : "") << name;
  }
}

// tools/golden/field_files.py: block 0 counts, and numbers are f64.
TEST(Loaders, AControlVectorAsEasySteerWritesIt) {
  const auto loaded = load(bytes_of("easysteer.gguf"), "easysteer.gguf");
  ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
  EXPECT_EQ(loaded->model_hint, "tiny");
  EXPECT_EQ(key_of_ops(loaded->ops), key_of_ops(parse(R"({"steering_vectors": {"resid_post": {
                "0": [0, 0, 0.1, 49], "7": [7, -3.5, 0.1, 49]}}})")
                                                    ->ops));
}

// Numbers that f32 does not hold are rounded, those beyond it refused.
TEST(Loaders, DoublesAreRounded) {
  const auto module = [](double value) {
    const std::vector<double> row = {value, 0, 0.1, -1};
    const std::vector<weights::TensorDecl> list = {
        {"resid_post.2", tensor::DType::kF64, weights::TensorShape::of({4})}};
    std::vector<std::byte> bytes = *weights::make_safetensors_header(list, {});
    const auto data = std::as_bytes(std::span(row));
    bytes.insert(bytes.end(), data.begin(), data.end());
    return load(bytes, "m.safetensors");
  };
  const auto loaded = module(1.0 / 3);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
  const Row& row = loaded->ops.front().vector;
  EXPECT_EQ(row.buffer[0], 1.0f / 3);
  EXPECT_EQ(row.buffer[2], 0.1f);
  for (const double beyond : {1e39, -1e39, 1e300}) {
    const auto refused = module(beyond);
    ASSERT_FALSE(refused.has_value()) << beyond;
    EXPECT_NE(refused.error().where.find("resid_post.2"), std::string::npos);
  }
}

TEST(Loaders, JsonIsTheFieldsOfARequest) {
  const std::string text =
      R"({"vectors": {"resid_post.3": [3, -1.5, 0.25, 9]},
          "steering": {"op": "add", "site": "post_mlp", "layers": 7, "vector": [7, -3.5, 0.25, 49]}})";
  const auto loaded = load(std::as_bytes(std::span(text)), "m.json");
  ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
  EXPECT_EQ(key_of_ops(loaded->ops), expected_key());
  const std::string bad = R"({"vectors": {"resid_post.3": [3, -1.5]}})";
  EXPECT_EQ(load(std::as_bytes(std::span(bad)), "m.json").error().where,
            "m.json: vectors.resid_post.3");
  EXPECT_FALSE(load(std::as_bytes(std::span("[1]", 3)), "m.json").has_value());
}

TEST(Loaders, PicklesAreNeverOpened) {
  const auto objects = load(bytes_of("pickled.npz"), "pickled.npz");
  ASSERT_FALSE(objects.has_value());
  EXPECT_EQ(objects.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(objects.error().where.find("resid_post.3"), std::string::npos);
  for (const char* name : {"m.pt", "m.pth", "m.pkl", "m"}) {
    EXPECT_EQ(load({}, name).error().code, ErrorCode::kUnsupported);
  }
}

struct TestTensor {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  std::vector<uint64_t> shape;
  std::vector<float> values = {};
  std::vector<int32_t> numbers = {};
};

std::vector<std::byte> safetensors_of(const std::vector<TestTensor>& tensors) {
  std::vector<weights::TensorDecl> declared;
  for (const TestTensor& tensor : tensors) {
    weights::TensorDecl& one = declared.emplace_back();
    one.name = tensor.name;
    one.dtype = tensor.dtype;
    one.shape.rank = static_cast<uint8_t>(tensor.shape.size());
    std::ranges::copy(tensor.shape, one.shape.dims.begin());
  }
  auto bytes = *weights::make_safetensors_header(declared, {});
  for (const TestTensor& tensor : tensors) {
    std::ranges::copy(std::as_bytes(std::span(tensor.values)), std::back_inserter(bytes));
    std::ranges::copy(std::as_bytes(std::span(tensor.numbers)), std::back_inserter(bytes));
  }
  return bytes;
}

TestTensor vector_named(std::string name) {
  return {std::move(name), tensor::DType::kF32, {4}, {1, 2, 3, 4}};
}

TEST(Loaders, NamesSayPhaseSiteAndLayer) {
  const auto loaded =
      load(safetensors_of({vector_named("resid_post.1"),
                           vector_named("prefill.blocks.2.hook_resid_mid"),
                           vector_named("decode.direction.3"),
                           {"attn_out", tensor::DType::kF32, {16, 4}, std::vector<float>(64, 1)}}),
           "m.safetensors");
  ASSERT_TRUE(loaded.has_value()) << loaded.error().to_string();
  ASSERT_EQ(loaded->ops.size(), 19U);
  // Sorted by name, as the format's reader gives them.
  EXPECT_EQ(loaded->ops[15].point, (tap::Point{15, tap::Site::kAttnOut}));
  EXPECT_EQ(loaded->ops[16].select.phase, Phase::kDecode);
  EXPECT_EQ(loaded->ops[16].point, (tap::Point{3, tap::Site::kResidPost}));
  EXPECT_EQ(loaded->ops[17].select.phase, Phase::kPrefill);
  EXPECT_EQ(loaded->ops[17].point, (tap::Point{2, tap::Site::kResidMid}));
  EXPECT_EQ(loaded->ops[18].point, (tap::Point{1, tap::Site::kResidPost}));
}

TEST(Loaders, WhatDoesNotFitTheModelIsRefusedWithFileAndTensor) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<std::vector<TestTensor>, std::string>> cases = {
      {{vector_named("resid_post.16")}, "16 layers"},
      {{vector_named("resid.1")}, "no place"},
      {{vector_named("final_norm.1")}, "final_norm"},
      {{vector_named("mlp_act.1")}, "has 6"},
      {{vector_named("resid_post.1"), vector_named("post_mlp.1")}, "already"},
      {{vector_named("resid_post")}, "1 rows"},
      {{{"resid_post.1", tensor::DType::kF32, {2, 4}, std::vector<float>(8, 1)}}, "2 rows"},
      {{{"resid_post.1", tensor::DType::kF32, {1, 1, 4}, {1, 2, 3, 4}}}, "row"},
      {{{"resid_post.1", tensor::DType::kF32, {0}, {}}}, "row"},
      {{{"resid_post.1", tensor::DType::kI32, {4}, {}, {1, 2, 3, 4}}}, "dtype I32"},
      {{{"resid_post.1", tensor::DType::kF32, {4}, {1, 2, infinity, 4}}}, "element 2"},
      {{{"resid_post.1", tensor::DType::kF32, {4}, {1, 2, 3, 1e7f}}}, "element 3"},
      {{{"resid_post.layers", tensor::DType::kI32, {1}, {}, {3}}}, "no tensor"},
      {{{"resid_post", tensor::DType::kF32, {17, 4}, std::vector<float>(68, 1)}}, "17 rows"},
      {{{"resid_post", tensor::DType::kF32, {2, 4}, std::vector<float>(8, 1)},
        {"resid_post.layers", tensor::DType::kI32, {1}, {}, {3}}},
       "list of 2"},
      {{{"resid_post", tensor::DType::kF32, {2, 4}, std::vector<float>(8, 1)},
        {"resid_post.layers", tensor::DType::kI32, {2}, {}, {3, 16}}},
       "layer 16"},
      {{{"resid_post", tensor::DType::kF32, {2, 4}, std::vector<float>(8, 1)},
        {"resid_post.layers", tensor::DType::kI32, {2}, {}, {3, 3}}},
       "already"},
      {{vector_named("resid_post.1"), {"resid_post.1.layers", tensor::DType::kI32, {1}, {}, {3}}},
       "which layer"},
  };
  for (const auto& [tensors, message] : cases) {
    const auto loaded = load(safetensors_of(tensors), "m.safetensors");
    ASSERT_FALSE(loaded.has_value()) << message;
    EXPECT_EQ(loaded.error().code, ErrorCode::kInvalidArgument) << message;
    EXPECT_TRUE(loaded.error().where.starts_with("m.safetensors: ")) << loaded.error().where;
    EXPECT_NE(loaded.error().message.find(message), std::string::npos) << loaded.error().message;
  }
}

// GGUF by hand: what a writer would not write.
class Gguf {
 public:
  template <typename T>
  Gguf& put(T value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Gguf& text(std::string_view text, bool with_length = true) {
    if (with_length) put(uint64_t{text.size()});
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Gguf& header(uint32_t version, uint64_t tensors, uint64_t values) {
    return text("GGUF", false).put(version).put(tensors).put(values);
  }
  Gguf& architecture(std::string_view name) {
    return text("general.architecture").put(uint32_t{8}).text(name);
  }
  Gguf& tensor(std::string_view name, uint64_t extent, uint32_t type, uint64_t offset) {
    return text(name).put(uint32_t{1}).put(extent).put(type).put(offset);
  }
  const std::vector<std::byte>& padded(size_t data) {
    bytes_.resize((bytes_.size() + 31) / 32 * 32 + data);
    return bytes_;
  }

 private:
  std::vector<std::byte> bytes_;
};

TEST(Loaders, BrokenGgufIsRefused) {
  const auto refused = [](const std::vector<std::byte>& bytes, ErrorCode code,
                          std::string_view message) {
    const auto loaded = load(bytes, "m.gguf");
    ASSERT_FALSE(loaded.has_value()) << message;
    EXPECT_EQ(loaded.error().code, code) << loaded.error().to_string();
    EXPECT_NE(loaded.error().message.find(message), std::string::npos)
        << loaded.error().to_string();
  };
  using enum ErrorCode;
  constexpr uint64_t kHuge = ~uint64_t{0};
  refused(Gguf().text("GGML", false).padded(64), kCorruptFile, "no GGUF");
  refused(Gguf().header(1, 0, 0).padded(0), kUnsupported, "version 1");
  refused(Gguf().header(3, kHuge, 0).padded(0), kCorruptFile, "tensors");
  refused(Gguf().header(3, 0, 1).architecture("llama").padded(0), kUnsupported, "llama");
  refused(Gguf().header(3, 0, 1).put(kHuge).padded(32), kCorruptFile, "cut off");
  refused(Gguf().header(3, 0, 1).text("k").put(uint32_t{99}).padded(0), kCorruptFile, "type 99");
  refused(Gguf().header(3, 0, 1).text("k").put(uint32_t{9}).put(uint32_t{4}).put(kHuge).padded(0),
          kCorruptFile, "array");
  refused(Gguf()
              .header(3, 0, 2)
              .architecture("controlvector")
              .text("general.alignment")
              .put(uint32_t{4})
              .put(uint32_t{24})
              .padded(0),
          kCorruptFile, "alignment");
  const auto with_tensor = [](std::string_view name, uint64_t extent, uint32_t type,
                              uint64_t offset) {
    return Gguf()
        .header(3, 1, 1)
        .architecture("controlvector")
        .tensor(name, extent, type, offset)
        .padded(16);
  };
  EXPECT_TRUE(load(with_tensor("direction.1", 4, 0, 0), "m.gguf").has_value());
  refused(with_tensor("direction.1", 5, 0, 0), kCorruptFile, "outside");
  refused(with_tensor("direction.1", kHuge, 0, 0), kCorruptFile, "outside");
  refused(with_tensor("direction.1", 4, 0, 32), kCorruptFile, "outside");
  refused(with_tensor("direction.1", 3, 0, 4), kCorruptFile, "begins at 4");
  // An empty tensor lies nowhere where the file ends before the data begins.
  std::vector<std::byte> cut = with_tensor("direction.1", 0, 0, 0);
  while (cut.size() % 32 != 31) cut.pop_back();
  refused(cut, kCorruptFile, "ends before its data");
  refused(with_tensor("direction.1", 4, 24, 0), kUnsupported, "I8");
  const auto first = load(with_tensor("direction.0", 4, 0, 0), "m.gguf");
  ASSERT_TRUE(first.has_value()) << "as EasySteer writes it";
  EXPECT_EQ(first->ops.front().point.layer, 0);
  refused(with_tensor("resid_post.1", 4, 0, 0), kCorruptFile, "direction.0");
  refused(with_tensor("direction.x", 4, 0, 0), kInvalidArgument, "no place");
  refused(with_tensor("direction.16", 4, 0, 0), kInvalidArgument, "16 layers");
}

// Cut anywhere and flipped anywhere: an answer, and never another vector than was written, save
// where the format has no checksum and the flip is in the data itself.
TEST(Loaders, DamagedFilesAreAnswered) {
  for (const char* name : {"named.npz", "deflated.npz", "stacked.npz", "half.npz",
                           "named.safetensors", "control.gguf"}) {
    const std::vector<std::byte> whole = bytes_of(name);
    for (size_t length = 0; length < whole.size(); ++length) {
      const auto loaded = load(std::span(whole).first(length), name);
      if (loaded) {  // GGUF pads the end of its last tensor
        ASSERT_EQ(key_of_ops(loaded->ops), expected_key()) << name << " of " << length << " bytes";
        ASSERT_LT(whole.size() - length, 32U) << name;
      } else {
        ASSERT_FALSE(loaded.error().where.empty());
      }
    }
    const bool checked = std::string_view(name).ends_with(".npz");
    Random random(7);
    for (int round = 0; round < 4000; ++round) {
      std::vector<std::byte> damaged = whole;
      for (int i = random.below(3); i >= 0; --i) {
        damaged[static_cast<size_t>(random.below(static_cast<int32_t>(whole.size())))] ^=
            static_cast<std::byte>(1 << random.below(8));
      }
      const auto loaded = load(damaged, name);
      if (!loaded) {
        EXPECT_FALSE(loaded.error().where.empty());
      } else if (checked && loaded->ops.size() == 2 &&
                 loaded->ops[0].point == tap::Point{3, tap::Site::kResidPost} &&
                 loaded->ops[1].point == tap::Point{7, tap::Site::kResidPost}) {
        EXPECT_EQ(key_of_ops(loaded->ops), expected_key()) << name;
      }
    }
  }
}

}  // namespace
}  // namespace rudder::steer
