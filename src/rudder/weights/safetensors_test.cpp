// Hostile files: every rule of the format is broken by hand at least once, then by mutation.
#include "rudder/weights/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "rudder/weights/safetensors_writer.h"

namespace rudder::weights {
namespace {

std::string file_of(std::string_view header, size_t data_bytes) {
  std::string out(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  return out.append(header).append(data_bytes, 'd');
}

Result<Safetensors> parse(const std::string& file) {
  // An exact heap copy, so that the sanitizer sees a read beyond its end.
  const std::vector<std::byte> exact(reinterpret_cast<const std::byte*>(file.data()),
                                     reinterpret_cast<const std::byte*>(file.data()) + file.size());
  auto out = parse_safetensors(exact, "f.safetensors");
  if (out) {
    for (const TensorEntry& tensor : out->tensors) {  // every accepted byte can be read
      unsigned sum = 0;
      for (const std::byte b : out->bytes_of(tensor)) sum += std::to_integer<unsigned>(b);
      EXPECT_LT(sum, 256 * (tensor.bytes() + 1));
    }
    out->data = {};
  }
  return out;
}

struct Case {
  const char* what;
  std::string file;
  const char* message;  // part of the error's text
};

std::string one(std::string_view fields, size_t data_bytes = 8) {
  return file_of(fmt::format(R"({{"a":{{{}}}}})", fields), data_bytes);
}

std::string repeat(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

const std::string kGood = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

std::vector<Case> length_cases() {
  std::string huge = file_of("{}", 0);
  std::memset(huge.data(), 0xff, 8);
  std::string beyond = file_of("{}", 0);
  beyond[0] = 3;
  std::string over_limit = file_of("{}", 0);
  const uint64_t limit = kMaxHeaderBytes + 1;
  std::memcpy(over_limit.data(), &limit, 8);
  std::string wraps = file_of("{}", 0);
  const uint64_t minus = uint64_t{0} - 8;
  std::memcpy(wraps.data(), &minus, 8);
  return {
      {"empty file", "", "too few"},
      {"seven bytes", std::string(7, '\0'), "too few"},
      {"no header", std::string(8, '\0'), "does not begin"},
      {"length 2^64 - 1", huge, "above the limit"},
      {"length that wraps with the prefix", wraps, "above the limit"},
      {"length above 100 MB", over_limit, "above the limit"},
      {"length beyond the file by one", beyond, "beyond the file"},
      {"header cut in the middle", file_of(R"({"a":{"dtype":"F3)", 0), "does not end"},
      {"one byte of data is missing", one(kGood, 7), "the tensors take 8"},
      {"one byte too much", one(kGood, 9), "the file holds 9"},
      {"data but no tensor", file_of("{}", 4), "the file holds 4"},
      {"second header behind the data", one(kGood, 8) + file_of("{}", 0), "the file holds 18"},
  };
}

std::vector<Case> json_cases() {
  return {
      {"list at the top", file_of("[]", 0), "does not begin"},
      {"leading space", file_of(" {}", 0), "does not begin"},
      {"byte order mark", file_of("\xef\xbb\xbf{}", 0), "does not begin"},
      {"trailing newline", file_of("{}\n", 0), "does not end"},
      {"trailing NUL", file_of(std::string_view("{}\0", 3), 0), "does not end"},
      {"two objects", file_of("{}{}", 0), "not JSON"},
      {"trailing comma", file_of(R"({"a":{)" + kGood + "},}", 8), "not JSON"},
      {"comment", file_of("{/**/}", 0), "not JSON"},
      {"single quotes", file_of("{'a':{}}", 0), "not JSON"},
      {"unquoted key", file_of("{a:{}}", 0), "not JSON"},
      {"invalid UTF-8 in a name", file_of("{\"\xff\":{" + kGood + "}}", 8), "not JSON"},
      {"overlong UTF-8", file_of("{\"\xc0\xaf\":{" + kGood + "}}", 8), "not JSON"},
      {"lone surrogate escape", file_of("{\"\\ud800\":{" + kGood + "}}", 8), "not JSON"},
      {"control character in a name", file_of("{\"a\nb\":{" + kGood + "}}", 8), "not JSON"},
      {"NaN", one(R"("dtype":"F32","shape":[NaN],"data_offsets":[0,8])"), "not JSON"},
      {"unclosed object", file_of(R"({"a":{"b":{"c":{"d":{}}}})", 0), "not"},
      {"deep lists", file_of("{\"a\":" + repeat("[", 100000) + repeat("]", 100000) + "}", 0),
       "a list stands"},
      {"deep objects",
       file_of("{\"a\":{\"shape\":" + repeat("{\"a\":", 5000) + "1" + repeat("}", 5002), 0),
       "an object stands"},
      {"deep inside the metadata",
       file_of(R"({"__metadata__":{"a":)" + repeat("[", 9999) + repeat("]", 9999) + "}}", 0),
       "a list stands"},
  };
}

std::vector<Case> structure_cases() {
  return {
      {"a tensor is null", file_of(R"({"a":null})", 0), "a null stands"},
      {"a tensor is a number", file_of(R"({"a":1})", 0), "a number stands"},
      {"a tensor is a string", file_of(R"({"a":"F32"})", 0), "a string stands"},
      {"a tensor is a list", file_of(R"({"a":[]})", 0), "a list stands"},
      {"a tensor is true", file_of(R"({"a":true})", 0), "a boolean stands"},
      {"no fields", file_of(R"({"a":{}})", 0), "'dtype' is missing"},
      {"no dtype", one(R"("shape":[2],"data_offsets":[0,8])"), "'dtype' is missing"},
      {"no shape", one(R"("dtype":"F32","data_offsets":[0,8])"), "'shape' is missing"},
      {"no offsets", one(R"("dtype":"F32","shape":[2])"), "'data_offsets' is missing"},
      {"an unknown field", one(kGood + R"(,"strides":[1])"), "'strides' is not known"},
      {"dtype twice", one(R"("dtype":"F32",)" + kGood), "'dtype' is given twice"},
      {"shape twice", one(kGood + R"(,"shape":[2])"), "'shape' is given twice"},
      {"offsets twice", one(kGood + R"(,"data_offsets":[0,8])"), "is given twice"},
      {"a name twice", file_of("{\"a\":{" + kGood + "},\"a\":{" + kGood + "}}", 8), "twice"},
      {"a name twice, once escaped",
       file_of("{\"a\":{" + kGood + "},\"\\u0061\":{" + kGood + "}}", 8), "twice"},
      {"a name of 2 KB", file_of("{\"" + std::string(2000, 'n') + "\":{" + kGood + "}}", 8),
       "longer than"},
      {"metadata is a list", file_of(R"({"__metadata__":[]})", 0), "a list stands"},
      {"metadata is null", file_of(R"({"__metadata__":null})", 0), "a null stands"},
      {"metadata holds a number", file_of(R"({"__metadata__":{"a":1}})", 0), "a number stands"},
      {"metadata holds an object", file_of(R"({"__metadata__":{"a":{}}})", 0), "an object stands"},
      {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "twice"},
      {"a metadata key twice", file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "twice"},
  };
}

std::vector<Case> dtype_and_shape_cases() {
  const auto with_shape = [](std::string_view shape, size_t data_bytes = 8) {
    return one(fmt::format(R"("dtype":"F32","shape":{},"data_offsets":[0,8])", shape), data_bytes);
  };
  return {
      {"dtype unknown", one(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), "'F31'"},
      {"dtype in lower case", one(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), "'f32'"},
      {"dtype empty", one(R"("dtype":"","shape":[2],"data_offsets":[0,8])"), "not known"},
      {"dtype a number", one(R"("dtype":4,"shape":[2],"data_offsets":[0,8])"), "a number stands"},
      {"dtype very long", one("\"dtype\":\"" + std::string(5000, 'F') + "\""), "longer than"},
      {"shape a number", with_shape("2"), "a number stands"},
      {"shape null", with_shape("null"), "a null stands"},
      {"shape nested", with_shape("[[2]]"), "a list stands"},
      {"shape of strings", with_shape("[\"2\"]"), "a string stands"},
      {"shape negative", with_shape("[-2]"), "negative"},
      {"shape minus zero", with_shape("[-0]"), "negative"},
      {"shape fractional", with_shape("[2.0]"), "not a 64-bit integer"},
      {"shape with an exponent", with_shape("[2e0]"), "not a 64-bit integer"},
      {"shape above 64 bits", with_shape("[18446744073709551616]"), "not a 64-bit integer"},
      {"shape with a leading zero", with_shape("[02]"), "not JSON"},
      {"nine dimensions", with_shape("[1,1,1,1,1,1,1,1,2]"), "more than 8"},
      {"product that wraps to 4 bytes", with_shape("[4611686018427387905]"), "overflows"},
      {"product of two that wraps to 0", with_shape("[4294967296,4294967296]", 0), "overflows"},
      {"overflow hidden by a zero", with_shape("[9223372036854775808,4,0]", 0), "overflows"},
      {"shape smaller than the offsets", with_shape("[1]"), "do not hold the 4 bytes"},
      {"shape larger than the offsets", with_shape("[3]"), "do not hold the 12 bytes"},
      {"zero elements with bytes", with_shape("[0]"), "do not hold the 0 bytes"},
  };
}

std::vector<Case> offset_cases() {
  const auto with_offsets = [](std::string_view offsets, size_t data_bytes = 8) {
    return one(fmt::format(R"("dtype":"F32","shape":[2],"data_offsets":{})", offsets), data_bytes);
  };
  const auto pair = [](std::string_view a, std::string_view b, size_t data_bytes) {
    return file_of(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                               R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                               a, b),
                   data_bytes);
  };
  return {
      {"one offset", with_offsets("[8]"), "two numbers"},
      {"no offset", with_offsets("[]"), "two numbers"},
      {"three offsets", with_offsets("[0,8,8]"), "two numbers"},
      {"offsets an object", with_offsets("{}"), "an object stands"},
      {"offsets reversed", with_offsets("[8,0]"), "do not hold"},
      {"offset negative", with_offsets("[-8,0]"), "negative"},
      {"first not at zero", with_offsets("[8,16]", 16), "begins at byte 8"},
      {"end beyond the file", with_offsets("[0,8]", 4), "take 8 bytes"},
      {"offsets of 2^64 - 8", with_offsets("[18446744073709551608,18446744073709551615]"),
       "do not hold"},
      {"offsets that wrap", with_offsets("[18446744073709551608,0]"), "do not hold"},
      {"a hole", pair("[0,4]", "[5,9]", 9), "begins at byte 5"},
      {"an overlap", pair("[0,4]", "[3,7]", 7), "begins at byte 3"},
      {"the same bytes twice", pair("[0,4]", "[0,4]", 4), "begins at byte 0"},
      {"the second before the first, with a hole", pair("[8,12]", "[0,4]", 12), "begins at byte 8"},
  };
}

TEST(Safetensors, RefusesEveryHandMadeClass) {
  std::vector<Case> cases;
  for (auto&& part :
       {length_cases(), json_cases(), structure_cases(), dtype_and_shape_cases(), offset_cases()}) {
    cases.insert(cases.end(), part.begin(), part.end());
  }
  EXPECT_GE(cases.size(), 60U);
  for (const Case& c : cases) {
    const auto out = parse(c.file);
    ASSERT_FALSE(out) << c.what;
    EXPECT_EQ(out.error().code, ErrorCode::kCorruptFile) << c.what;
    EXPECT_NE(out.error().message.find(c.message), std::string::npos)
        << c.what << ": " << out.error().to_string();
    EXPECT_EQ(out.error().where.rfind("f.safetensors", 0), 0U) << c.what;
  }
}

TEST(Safetensors, ErrorsNameTheTensor) {
  const auto out = parse(one(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"));
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().where, "f.safetensors: tensor 'a'");
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  EXPECT_TRUE(parse(file_of("{}", 0)));
  EXPECT_TRUE(parse(file_of("{}   ", 0)));
  EXPECT_TRUE(parse(file_of(R"({ "__metadata__" : { "format" : "pt" } })", 0)));
  EXPECT_TRUE(parse(one(R"("data_offsets":[0,8],"shape":[2],"dtype":"F32")")));
  EXPECT_TRUE(parse(one(R"("dtype":"I64","shape":[],"data_offsets":[0,8])")));
  EXPECT_TRUE(parse(one(R"("dtype":"F32","shape":[7,0,3],"data_offsets":[0,0])", 0)));
  const auto two = parse(file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                 R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[1,5]}})",
                                 5));
  ASSERT_TRUE(two) << two.error().to_string();
  ASSERT_EQ(two->tensors.size(), 2U);
  EXPECT_EQ(two->tensors[0].name, "a");
  EXPECT_EQ(two->find("b")->begin, 0U);
  EXPECT_EQ(two->find("c"), nullptr);
}

TEST(Safetensors, EmptyTensorsMayShareAnOffset) {
  EXPECT_TRUE(parse(file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},)"
                            R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                            R"("c":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                            4)));
}

TEST(Safetensors, ManyTensorsAreRefusedQuickly) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    header += fmt::format(R"("t{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  }
  header += R"("last":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}})";
  const auto out = parse(file_of(header, 2));
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().where, "f.safetensors: tensor 'last'");
}

// Mutants of a good file: nothing crashes, and what is accepted keeps every promise of the header.
TEST(Safetensors, MutationsNeverCrash) {
  const std::string good =
      file_of(R"({"__metadata__":{"format":"pt"},)"
              R"("model.a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
              R"("model.b":{"dtype":"F32","shape":[],"data_offsets":[12,16]},)"
              R"("z":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}}   )",
              24);
  ASSERT_TRUE(parse(good));
  const std::string_view tokens[] = {"{",           "}",
                                     "[",           "]",
                                     ",",           ":",
                                     "\"",          "0",
                                     "-1",          "1e308",
                                     "null",        "true",
                                     "\\u0000",     "F32",
                                     "[]",          "{}",
                                     "4",           "\"a\"",
                                     "12",          "dtype",
                                     "\xff",        "9999999999999999999",
                                     "data_offsets"};
  std::mt19937_64 random(12345);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string mutant = good;
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits && !mutant.empty(); ++e) {
      const size_t at = random() % mutant.size();
      const size_t other = random() % mutant.size();
      switch (random() % 6) {
        case 0:
          mutant[at] = static_cast<char>(random());
          break;
        case 1:
          mutant[at] = static_cast<char>(mutant[at] ^ (1 << (random() % 8)));
          break;
        case 2:
          mutant.erase(at, 1 + random() % 8);
          break;
        case 3:
          mutant.insert(at, tokens[random() % std::size(tokens)]);
          break;
        case 4:
          mutant.insert(at, mutant.substr(other, random() % 40));
          break;
        default:
          mutant.resize(at);
      }
    }
    if (random() % 2 == 0 && mutant.size() >= 8) {  // keep the length right, to get past it
      const uint64_t length = mutant.size() < 32 ? 0 : mutant.size() - 8 - 24;
      std::memcpy(mutant.data(), &length, 8);
    }
    const auto out = parse(mutant);
    if (!out) {
      EXPECT_EQ(out.error().code, ErrorCode::kCorruptFile);
      continue;
    }
    ++accepted;
    uint64_t total = 0;
    for (const TensorEntry& tensor : out->tensors) total += tensor.bytes();
    EXPECT_LE(total, mutant.size());
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 10'000);
}

TEST(Safetensors, WriterAndReaderAgree) {
  const std::string path =
      fmt::format("{}/writer_{}.safetensors", ::testing::TempDir(), ::getpid());
  ::unlink(path.c_str());  // of an earlier run
  const std::vector<TensorDecl> decls = {
      {"b\"quoted", tensor::DType::kBF16, TensorShape::of({2, 3})},
      {"a", tensor::DType::kF32, TensorShape::of({1})},
      {"empty", tensor::DType::kI64, TensorShape::of({0, 4})},
  };
  const std::string payload = "twelve bytes";
  {
    auto writer = SafetensorsWriter::create(path, decls, {{"format", "pt"}});
    ASSERT_TRUE(writer) << writer.error().to_string();
    ASSERT_TRUE((*writer)->write(0, 6, std::as_bytes(std::span(payload)).subspan(6)));
    ASSERT_TRUE((*writer)->write(0, 0, std::as_bytes(std::span(payload)).first(6)));
    EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the file appears only when it is whole";
    ASSERT_TRUE((*writer)->finish(true));
  }
  std::string bytes(4096, '\0');
  std::FILE* file = std::fopen(path.c_str(), "rb");
  ASSERT_NE(file, nullptr);
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
  std::fclose(file);
  const auto out = parse_safetensors(std::as_bytes(std::span(bytes)), path);
  ASSERT_TRUE(out) << out.error().to_string();
  ASSERT_EQ(out->tensors.size(), 3U);
  EXPECT_EQ(out->metadata[0].second, "pt");
  const TensorEntry* b = out->find("b\"quoted");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape.to_string(), "[2, 3]");
  const auto held = out->bytes_of(*b);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(held.data()), held.size()), payload);
}

TEST(Safetensors, AbandonedWriterLeavesNothing) {
  const std::string path =
      fmt::format("{}/abandoned_{}.safetensors", ::testing::TempDir(), ::getpid());
  const std::vector<TensorDecl> decls = {{"a", tensor::DType::kF32, TensorShape::of({4})}};
  { ASSERT_TRUE(SafetensorsWriter::create(path, decls, {})); }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  EXPECT_NE(::access(fmt::format("{}.{}.tmp", path, ::getpid()).c_str(), F_OK), 0);
}

TEST(Safetensors, WriterRefusesWhatTheReaderWould) {
  const std::vector<TensorDecl> overflow = {
      {"a", tensor::DType::kF32, TensorShape::of({uint64_t{1} << 62, 8})}};
  EXPECT_FALSE(make_safetensors_header(overflow, {}));
}

}  // namespace
}  // namespace rudder::weights
