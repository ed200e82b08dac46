#include "eval/logprob_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "rudder/weights/safetensors_writer.h"

namespace rudder::apps {
namespace {

using tensor::DType;
using weights::TensorShape;

std::string test_path() {
  const auto folder = std::filesystem::temp_directory_path();
  return folder / (std::string("rudder-logprobs-") +
                   testing::UnitTest::GetInstance()->current_test_info()->name());
}

ScoredText small_text() {
  ScoredText text;
  text.model = "tiny";
  text.windows = {.kind = WindowKind::kStrided, .window = 5, .stride = 3};
  text.prefix = 2;
  text.tokens = {2, 17, 4, 99, 31, 8, 17};
  text.positions = {1, 2, 3, 4, 5, 6};
  text.top = 2;
  for (int32_t i = 0; i < 6; ++i) {
    text.logprobs.push_back(-0.375F * static_cast<float>(i) - 0.0625F);
    text.top_tokens.insert(text.top_tokens.end(), {i * 7, i * 3 + 1});
    text.top_logprobs.insert(text.top_logprobs.end(), {-0.75F, -1.125F});
  }
  return text;
}

// What a file is made of, so that a test breaks one thing of it.
struct Parts {
  std::vector<weights::TensorDecl> tensors;
  std::vector<std::vector<std::byte>> data;
  weights::Metadata metadata;

  template <typename T>
  void add(const char* name, DType dtype, TensorShape shape, const std::vector<T>& values) {
    tensors.push_back({name, dtype, shape});
    const auto bytes = std::as_bytes(std::span(values));
    data.emplace_back(bytes.begin(), bytes.end());
  }
  std::string& value(std::string_view key) {
    for (auto& [name, value] : metadata) {
      if (name == key) return value;
    }
    return metadata.emplace_back(std::string(key), "").second;
  }
  void erase(std::string_view key) {
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == key; });
  }
};

Parts parts_of(const ScoredText& text) {
  Parts parts;
  const uint64_t scored = text.num_scored();
  const auto top = static_cast<uint64_t>(text.top);
  parts.add("tokens", DType::kI32, TensorShape::of({text.tokens.size()}), text.tokens);
  parts.add("positions", DType::kI32, TensorShape::of({scored}), text.positions);
  parts.add("logprobs", DType::kF32, TensorShape::of({text.logprobs.size()}), text.logprobs);
  parts.add("top_tokens", DType::kI32, TensorShape::of({scored, top}), text.top_tokens);
  parts.add("top_logprobs", DType::kF32, TensorShape::of({scored, top}), text.top_logprobs);
  parts.metadata = {{"format", "rudder.logprobs"},
                    {"version", "1"},
                    {"model", "tiny"},
                    {"windows", "strided"},
                    {"window", "5"},
                    {"stride", "3"},
                    {"prefix", "2"}};
  return parts;
}

// "" where the file is read, else the field that the error names behind the file.
std::string field_at_fault(const Parts& parts) {
  const std::string path = test_path();
  auto writer = weights::SafetensorsWriter::create(path, parts.tensors, parts.metadata);
  EXPECT_TRUE(writer);
  for (size_t i = 0; i < parts.data.size(); ++i) {
    EXPECT_TRUE((*writer)->write(i, 0, parts.data[i]));
  }
  EXPECT_TRUE((*writer)->finish(false));
  const auto read = read_logprobs(path);
  std::filesystem::remove(path);
  if (read) return "";
  EXPECT_EQ(read.error().where.substr(0, path.size()), path);
  return read.error().where.substr(path.size() + 2);
}

std::string refused_text(const std::function<void(ScoredText&)>& edit) {
  ScoredText text = small_text();
  edit(text);
  return field_at_fault(parts_of(text));
}

std::string refused_parts(const std::function<void(Parts&)>& edit) {
  Parts parts = parts_of(small_text());
  edit(parts);
  return field_at_fault(parts);
}

TEST(LogprobFile, ComesBackAsItWasWritten) {
  const ScoredText text = small_text();
  const std::string path = test_path();
  ASSERT_TRUE(write_logprobs(text, path));
  const auto read = read_logprobs(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(read) << read.error().message << read.error().where;
  EXPECT_EQ(read->model, text.model);
  EXPECT_EQ(read->windows, text.windows);
  EXPECT_EQ(read->prefix, text.prefix);
  EXPECT_EQ(read->tokens, text.tokens);
  EXPECT_EQ(read->positions, text.positions);
  EXPECT_EQ(read->logprobs, text.logprobs);
  EXPECT_EQ(read->top, 2);
  EXPECT_EQ(read->top_tokens, text.top_tokens);
  EXPECT_EQ(read->top_logprobs, text.top_logprobs);
  EXPECT_EQ(field_at_fault(parts_of(text)), "");
}

TEST(LogprobFile, MetadataAreRefusedByField) {
  for (const char* key : {"format", "version", "model", "windows", "window", "stride", "prefix"}) {
    EXPECT_EQ(refused_parts([&](Parts& parts) { parts.erase(key); }), key);
  }
  const std::pair<const char*, const char*> wrong[] = {{"format", "pt"},
                                                       {"version", "2"},
                                                       {"version", "1.0"},
                                                       {"windows", "half"},
                                                       {"window", "5x"},
                                                       {"window", "2"},
                                                       {"window", ""},
                                                       {"stride", "5"},
                                                       {"stride", "-3"},
                                                       {"prefix", "-2"},
                                                       {"prefix", "none"},
                                                       {"comment", "x"},
                                                       {"window", "99999999999999"}};
  for (const auto& [key, value] : wrong) {
    EXPECT_EQ(refused_parts([&](Parts& parts) { parts.value(key) = value; }), key) << value;
  }
}

TEST(LogprobFile, TensorsAreRefusedByName) {
  for (size_t i = 0; i < 5; ++i) {
    const std::string name = parts_of(small_text()).tensors[i].name;
    EXPECT_EQ(refused_parts([&](Parts& parts) {
                parts.tensors.erase(parts.tensors.begin() + static_cast<std::ptrdiff_t>(i));
                parts.data.erase(parts.data.begin() + static_cast<std::ptrdiff_t>(i));
              }),
              name);
    EXPECT_EQ(refused_parts([&](Parts& parts) {
                DType& dtype = parts.tensors[i].dtype;
                dtype = dtype == DType::kI32 ? DType::kF32 : DType::kI32;
              }),
              name);
  }
  EXPECT_EQ(refused_parts([](Parts& parts) {
              parts.add<float>("more", DType::kF32, TensorShape::of({1}), {0.5F});
            }),
            "more");
  EXPECT_EQ(refused_parts([](Parts& parts) {
              parts.tensors[3].shape = TensorShape::of({4, 3});
            }),
            "top_tokens");
  EXPECT_EQ(refused_parts([](Parts& parts) {
              parts.tensors[4].shape = TensorShape::of({4, 3});
            }),
            "top_logprobs");
}

TEST(LogprobFile, ValuesAreRefusedByField) {
  EXPECT_EQ(refused_text([](ScoredText& text) { text.tokens[3] = -1; }), "tokens");
  EXPECT_EQ(refused_text([](ScoredText& text) { text.tokens.pop_back(); }), "positions");
  EXPECT_EQ(refused_text([](ScoredText& text) { text.tokens.resize(1); }), "tokens");
  EXPECT_EQ(refused_text([](ScoredText& text) { std::swap(text.positions[0], text.positions[1]); }),
            "positions");
  EXPECT_EQ(refused_text([](ScoredText& text) { text.positions[5] = 7; }), "positions");
  EXPECT_EQ(refused_text([](ScoredText& text) { text.logprobs.pop_back(); }), "logprobs");
  const float bad[] = {0.25F, std::numeric_limits<float>::quiet_NaN(),
                       -std::numeric_limits<float>::infinity()};
  for (const float value : bad) {
    EXPECT_EQ(refused_text([&](ScoredText& text) { text.logprobs[2] = value; }), "logprobs");
    EXPECT_EQ(refused_text([&](ScoredText& text) { text.top_logprobs[7] = value; }),
              "top_logprobs");
  }
  EXPECT_EQ(refused_text([](ScoredText& text) { text.top_logprobs[3] = -0.5F; }), "top_logprobs");
  EXPECT_EQ(refused_text([](ScoredText& text) { text.top_logprobs[2] = -0.25F; }),
            "top_logprobs");  // more than 1 together
  EXPECT_EQ(refused_text([](ScoredText& text) { text.top_tokens[4] = -5; }), "top_tokens");
  EXPECT_EQ(refused_text([](ScoredText& text) { text.top_tokens[5] = text.top_tokens[4]; }),
            "top_tokens");
}

TEST(LogprobFile, WhatIsNoSuchFileIsRefused) {
  EXPECT_EQ(read_logprobs(test_path()).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(read_logprobs("tests/golden/qwen3/model.safetensors"));
  EXPECT_FALSE(read_logprobs("LICENSE"));
}

}  // namespace
}  // namespace rudder::apps
