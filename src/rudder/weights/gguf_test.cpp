// Hostile GGUF files: every rule of the format is broken by hand, every prefix is cut, bits flip.
#include "rudder/weights/gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "rudder/weights/gguf_test_file.h"

namespace rudder::weights {
namespace {

constexpr uint64_t kHugeCount = ~uint64_t{0};

std::vector<std::byte> exact_bytes(std::string_view file) {
  const auto bytes = std::as_bytes(std::span(file));
  return {bytes.begin(), bytes.end()};
}

// An exact heap copy, so that the sanitizer sees a read beyond its end; everything that was
// accepted is read.
Result<void> read_whole(std::string_view file) {
  const std::vector<std::byte> bytes = exact_bytes(file);
  RUDDER_TRY(const GgufFile gguf, GgufFile::parse(bytes, "f.gguf"));
  for (const auto& [key, value] : gguf.values()) {
    const std::string name(key);
    for (const auto& error :
         {gguf.integer(name, INT64_MIN, INT64_MAX).map([](auto) {}),
          gguf.number(name).map([](auto) {}), gguf.text(name).map([](auto) {}),
          gguf.boolean(name).map([](auto) {}), gguf.texts(name).map([](const auto&) {}),
          gguf.numbers(name).map([](const auto&) {})}) {
      EXPECT_TRUE(error || error.error().where == gguf.where(name)) << name;
    }
  }
  for (const GgufTensor& tensor : gguf.tensors()) {
    unsigned sum = 0;
    for (const std::byte b : tensor.bytes) sum += std::to_integer<unsigned>(b);
    EXPECT_LT(sum, 256 * (tensor.bytes.size() + 1));
    EXPECT_EQ(tensor.bytes.size() % tensor.type->bytes, 0U);
  }
  return {};
}

// Every type of value, an array of each, and tensors of several types.
GgufBytes good_values() {
  GgufBytes out;
  out.header(3, 3, 17).value("general.architecture", "llama").value("general.alignment", 64U);
  out.key("u8", 0).put(uint8_t{200}).key("i8", 1).put(int8_t{-7}).key("u16", 2).put(uint16_t{9});
  out.key("i16", 3).put(int16_t{-9}).key("i32", 5).put(int32_t{-70'001}).value("f32", 0.3F);
  out.key("yes", 7).put(uint8_t{1}).key("u64", 10).put(uint64_t{1} << 40);
  out.key("i64", 11).put(int64_t{-5}).key("f64", 12).put(0.7);
  out.key("ids", 9).put(uint32_t{5}).put(uint64_t{3}).put(3).put(1).put(-2);
  out.key("scores", 9).put(uint32_t{6}).put(uint64_t{2}).put(-1.5F).put(0.25F);
  out.key("tokens", 9).put(uint32_t{8}).put(uint64_t{3}).text("a").text("").text("<0x0A>");
  out.key("none", 9).put(uint32_t{8}).put(uint64_t{0});
  out.key("flags", 9).put(uint32_t{7}).put(uint64_t{2}).put(uint8_t{0}).put(uint8_t{1});
  return out;
}
GgufBytes good_file() {
  GgufBytes out = good_values();
  out.tensor("a.weight", {64, 3}, 2, 0).tensor("b.weight", {5}, 0, 128);
  out.tensor("c.weight", {256, 2, 2, 1}, 14, 192);
  return out.pad(64).data(192 + 4 * 210);
}

TEST(GgufFile, ReadsEveryTypeOfValue) {
  const std::vector<std::byte> bytes = exact_bytes(good_file().str());
  const auto gguf = GgufFile::parse(bytes, "f.gguf");
  ASSERT_TRUE(gguf) << gguf.error().to_string();
  EXPECT_EQ(gguf->integer("u8", 0, 255).value(), 200);
  EXPECT_EQ(gguf->integer("i8", -128, 0).value(), -7);
  EXPECT_EQ(gguf->integer("u16", 0, 9).value(), 9);
  EXPECT_EQ(gguf->integer("i16", -9, 0).value(), -9);
  EXPECT_EQ(gguf->integer("i32", -80'000, 0).value(), -70'001);
  EXPECT_EQ(gguf->integer("u64", 0, INT64_MAX).value(), int64_t{1} << 40);
  EXPECT_EQ(gguf->integer("i64", -9, 9).value(), -5);
  EXPECT_EQ(gguf->integer_or("absent", 31, 0, 9).value(), 31);
  EXPECT_EQ(gguf->number("f32").value(), double{0.3F});
  EXPECT_EQ(gguf->number("f64").value(), 0.7);
  EXPECT_EQ(gguf->number("i8").value(), -7);
  EXPECT_TRUE(gguf->boolean("yes").value());
  EXPECT_TRUE(gguf->boolean_or("absent", true).value());
  EXPECT_EQ(gguf->text("general.architecture").value(), "llama");
  EXPECT_EQ(gguf->texts("tokens").value(), (std::vector<std::string_view>{"a", "", "<0x0A>"}));
  EXPECT_TRUE(gguf->texts("none").value().empty());
  EXPECT_EQ(gguf->numbers("ids").value(), (std::vector<double>{3, 1, -2}));
  EXPECT_EQ(gguf->numbers("scores").value(), (std::vector<double>{-1.5, 0.25}));
  EXPECT_EQ(gguf->numbers("flags").value(), (std::vector<double>{0, 1}));

  ASSERT_EQ(gguf->tensors().size(), 3U);
  EXPECT_EQ(gguf->tensors()[0].shape, TensorShape::of({3, 64}));
  EXPECT_EQ(gguf->tensors()[0].type->name, "Q4_0");
  EXPECT_EQ(gguf->tensors()[0].bytes.size(), 6U * 18);
  EXPECT_EQ(gguf->tensors()[2].shape, TensorShape::of({1, 2, 2, 256}));
  EXPECT_EQ(gguf->tensors()[2].bytes.data() - gguf->tensors()[0].bytes.data(), 192);
}

TEST(GgufFile, ValuesOfAnotherKindAreRefusedByTheirKey) {
  const std::vector<std::byte> bytes = exact_bytes(good_file().str());
  const auto gguf = GgufFile::parse(bytes, "f.gguf");
  ASSERT_TRUE(gguf);
  const auto refused = [](const auto& result, std::string_view key, std::string_view message) {
    ASSERT_FALSE(result) << key;
    EXPECT_EQ(result.error().code, ErrorCode::kCorruptFile);
    EXPECT_EQ(result.error().where, fmt::format("f.gguf: key '{}'", key));
    EXPECT_NE(result.error().message.find(message), std::string::npos) << result.error().message;
  };
  refused(gguf->integer("absent", 0, 1), "absent", "missing");
  refused(gguf->integer("u8", 0, 199), "u8", "from 0 to 199");
  refused(gguf->integer("f32", 0, 1), "f32", "an integer");
  refused(gguf->integer("yes", 0, 1), "yes", "an integer");
  refused(gguf->integer("ids", 0, 1), "ids", "one value");
  refused(gguf->number("yes"), "yes", "number");
  refused(gguf->number("general.architecture"), "general.architecture", "number");
  refused(gguf->boolean("u8"), "u8", "bool");
  refused(gguf->text("u8"), "u8", "string");
  refused(gguf->texts("u8"), "u8", "array");
  refused(gguf->texts("ids"), "ids", "strings");
  refused(gguf->numbers("tokens"), "tokens", "numbers");
}

struct Broken {
  std::string file;
  const char* message;
  std::string field = {};  // empty: of the whole file
  ErrorCode code = ErrorCode::kCorruptFile;
};

GgufBytes with_value(uint32_t type) {
  return std::move(GgufBytes().header(3, 0, 1).key("k", type));
}
GgufBytes with_array(uint32_t type, uint64_t count) {
  return std::move(with_value(9).put(type).put(count));
}
std::string of_tensor(const std::vector<uint64_t>& extents, uint32_t type, uint64_t offset,
                      size_t bytes) {
  return GgufBytes().header(3, 1, 0).tensor("t", extents, type, offset).pad().data(bytes).str();
}
std::string of_two(uint64_t second, size_t bytes, std::string_view name = "u") {
  return GgufBytes()
      .header(2, 2, 0)
      .tensor("t", {5}, 0, 0)
      .tensor(name, {5}, 0, second)
      .pad()
      .data(bytes)
      .str();
}

std::vector<Broken> broken_headers() {
  using enum ErrorCode;
  const std::string rest(200, '\0');
  return {
      {"", "no GGUF"},
      {"GGU", "no GGUF"},
      {"GGML" + rest, "no GGUF"},
      {"gguf" + rest, "no GGUF"},
      {GgufBytes().header(0, 0, 0).str(), "version 0", "", kUnsupported},
      {GgufBytes().header(1, 0, 0).str(), "version 1", "", kUnsupported},
      {GgufBytes().header(4, 0, 0).str(), "version 4", "", kUnsupported},
      {GgufBytes().header(0x02000000, 0, 0).str(), "big-endian", "", kUnsupported},
      {GgufBytes().header(0x03000000, 0, 0).str(), "big-endian", "", kUnsupported},
      {GgufBytes().header(3, kHugeCount, 0).raw(rest).str(), "do not fit"},
      {GgufBytes().header(3, 0, kHugeCount).raw(rest).str(), "do not fit"},
      {GgufBytes().header(3, 7, 0).raw(rest).str(), "do not fit"},
      {GgufBytes().header(3, 0, 15).raw(rest).str(), "do not fit"},
      {GgufBytes().header(3, 0, 1).text("").raw(rest).str(), "empty"},
      {GgufBytes().header(3, 0, 1).put(kHugeCount).raw(rest).str(), "too long"},
      {GgufBytes().header(3, 0, 1).put(uint64_t{65'536}).data(65'536).raw(rest).str(), "too long"},
      {GgufBytes().header(3, 1, 0).put(uint64_t{0}).raw(rest).str(), "name of tensor 0"},
  };
}

std::vector<Broken> broken_values() {
  std::vector<Broken> out = {
      {with_value(8).put(kHugeCount).data(64).str(), "cut off", "key 'k'"},
      {with_value(8).put(uint64_t{65}).data(64).str(), "cut off", "key 'k'"},
      {with_value(7).put(uint8_t{2}).data(64).str(), "a bool of 2", "key 'k'"},
      {with_value(7).put(uint8_t{255}).data(64).str(), "a bool of 255", "key 'k'"},
      {with_array(7, 3).put(uint8_t{1}).put(uint8_t{0}).put(uint8_t{3}).data(64).str(),
       "a bool of 3", "key 'k'"},
      {with_array(8, kHugeCount).data(64).str(), "cut off", "key 'k'"},
      {with_array(8, 2).text("a").put(uint64_t{80}).data(64).str(), "cut off", "key 'k'"},
      {with_value(9).put(uint32_t{4}).put(uint32_t{1}).str(), "cut off", "key 'k'"},
  };
  for (const uint32_t type : {13U, 14U, 99U, 255U, 65'536U, ~0U}) {
    out.push_back({with_value(type).data(64).str(), "a value of type", "key 'k'"});
    out.push_back({with_array(type, 1).data(64).str(), "an array of type", "key 'k'"});
  }
  out.push_back({with_array(9, 1).data(64).str(), "an array of type 9", "key 'k'"});
  for (uint32_t type = 0; type < 13; ++type) {  // no room for so many items of any type
    if (type == 9) continue;
    for (const uint64_t count : {uint64_t{70}, uint64_t{1} << 32, uint64_t{1} << 61, kHugeCount}) {
      out.push_back({with_array(type, count).data(64).str(), "cut off", "key 'k'"});
    }
  }
  for (const uint32_t alignment : {0U, 3U, 24U, 48U, 2U << 20, ~0U}) {
    out.push_back({GgufBytes().header(3, 0, 1).value("general.alignment", alignment).str(),
                   "an alignment of", "key 'general.alignment'"});
  }
  out.push_back({GgufBytes().header(3, 0, 1).value("general.alignment", "32").str(),
                 "no 32-bit number", "key 'general.alignment'"});
  out.push_back({GgufBytes().header(3, 0, 1).key("general.alignment", 10).put(uint64_t{32}).str(),
                 "no 32-bit number", "key 'general.alignment'"});
  out.push_back(
      {GgufBytes().header(3, 0, 2).value("k", 1U).value("k", 1U).str(), "twice", "key 'k'"});
  return out;
}

std::vector<Broken> broken_tensors() {
  using enum ErrorCode;
  std::vector<Broken> out = {
      {of_tensor({}, 0, 0, 64), "0 dimensions", "tensor 't'"},
      {of_tensor({2, 2, 2, 2, 2}, 0, 0, 640), "5 dimensions", "tensor 't'"},
      {of_tensor({5}, 0, 0, 19), "outside of the file", "tensor 't'"},
      {of_tensor({5}, 0, 32, 19), "outside of the file", "tensor 't'"},
      {of_tensor({5}, 0, kHugeCount, 64), "outside of the file", "tensor 't'"},
      {of_tensor({5}, 0, 4, 64), "begins at 4, not at 0", "tensor 't'"},
      {of_tensor({5}, 0, 32, 64), "begins at 32, not at 0", "tensor 't'"},
      {of_two(20, 64), "begins at 20, not at 32", "tensor 'u'"},
      {of_two(0, 64), "begins at 0, not at 32", "tensor 'u'"},
      {of_two(64, 96), "begins at 64, not at 32", "tensor 'u'"},
      {of_two(32, 51), "outside of the file", "tensor 'u'"},
      {of_two(32, 64, "t"), "twice", "tensor 't'"},
      {GgufBytes().header(3, 1, 0).tensor("t", {0}, 0, 0).pad(1).str(), "ends before its data",
       "tensor 't'"},
  };
  for (const uint32_t type : {4U, 5U, 31U, 36U, 38U, 77U, ~0U}) {
    out.push_back({of_tensor({256}, type, 0, 2048), "is not known", "tensor 't'", kUnsupported});
  }
  for (const BlockType& type : block_types()) {
    for (const uint64_t huge : {kHugeCount / type.values * type.values,
                                (uint64_t{1} << 62) / type.values * type.values}) {
      out.push_back({of_tensor({huge}, type.number, 0, 64), "outside of the file", "tensor 't'"});
      out.push_back({of_tensor({type.values, huge, huge, 3}, type.number, 0, 64),
                     "outside of the file", "tensor 't'"});
    }
    out.push_back({of_tensor({type.values, 7}, type.number, 0, 7 * type.bytes - size_t{1}),
                   "outside of the file", "tensor 't'"});
    if (type.values == 1) continue;
    out.push_back(
        {of_tensor({type.values - 1, 4}, type.number, 0, 4096), "not whole blocks", "tensor 't'"});
    out.push_back(
        {of_tensor({type.values + 1, 4}, type.number, 0, 4096), "not whole blocks", "tensor 't'"});
  }
  return out;
}

TEST(GgufFile, RefusesEveryHandMadeClassByFileAndField) {
  size_t count = 0;
  for (const auto& cases : {broken_headers(), broken_values(), broken_tensors()}) {
    for (const Broken& one : cases) {
      const auto read = read_whole(one.file);
      ASSERT_FALSE(read) << one.message << ", case " << count;
      EXPECT_EQ(read.error().code, one.code) << read.error().to_string();
      EXPECT_NE(read.error().message.find(one.message), std::string::npos)
          << one.message << " in " << read.error().to_string();
      const std::string where = one.field.empty() ? "f.gguf" : "f.gguf: " + one.field;
      EXPECT_EQ(read.error().where, where) << read.error().to_string();
      ++count;
    }
  }
  EXPECT_GE(count, 200U);
}

TEST(GgufFile, RefusesEveryCut) {
  const std::string whole = good_file().str();
  ASSERT_TRUE(read_whole(whole));
  const size_t first_key = 24 + 8 + std::string_view("general.architecture").size() + 4;
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto read = read_whole(std::string_view(whole).substr(0, length));
    ASSERT_FALSE(read) << length;
    EXPECT_EQ(read.error().code, ErrorCode::kCorruptFile);
    EXPECT_TRUE(read.error().where.starts_with("f.gguf")) << read.error().where;
    const bool names_a_field =
        read.error().where.find('\'') != std::string::npos ||
        read.error().message.find(" is cut off, empty or too long") != std::string::npos ||
        read.error().message.find("do not fit") != std::string::npos;
    EXPECT_TRUE(length <= first_key || names_a_field) << length << read.error().to_string();
  }
}

TEST(GgufFile, FlippedBitsAreAnswered) {
  const std::string whole = good_file().str();
  std::mt19937_64 random(20);
  size_t accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = whole;
    for (uint64_t i = random() % 3 + 1; i > 0; --i) {
      damaged[random() % damaged.size()] ^= static_cast<char>(1U << (random() % 8));
    }
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    const auto read = read_whole(damaged);
    if (read) {
      ++accepted;
    } else {
      EXPECT_TRUE(read.error().where.starts_with("f.gguf"));
    }
  }
  EXPECT_GT(accepted, 1000U);
  EXPECT_LT(accepted, 19'000U);
}

}  // namespace
}  // namespace rudder::weights
