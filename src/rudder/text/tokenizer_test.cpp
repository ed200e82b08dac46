#include "rudder/text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <boost/json.hpp>
#include <random>
#include <span>
#include <thread>

#include "rudder/base/cpu_time.h"
#include "rudder/base/utf8.h"
#include "rudder/text/stream_decoder.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

// A byte-level file over the whole byte alphabet with a few merges; `edit` changes it.
json::object byte_level_file() {
  json::object vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, byte_char(static_cast<uint8_t>(byte)));
    vocab[token] = byte;
  }
  json::array merges;
  for (const char* pair : {"h e", "l l", "he ll", "hell o", "a a", "aa aa", "Ġ hello"}) {
    const std::string_view text = pair;
    const size_t space = text.find(' ');
    std::string joined(text.substr(0, space));
    joined += text.substr(space + 1);
    vocab[joined] = static_cast<int64_t>(vocab.size());
    merges.emplace_back(pair);
  }
  const auto added = [](int64_t id, const char* content, bool special) {
    return json::object{{"id", id},          {"content", content}, {"single_word", false},
                        {"lstrip", false},   {"rstrip", false},    {"normalized", false},
                        {"special", special}};
  };
  return {
      {"version", "1.0"},
      {"added_tokens", {added(263, "<|end|>", true), added(264, "<tool>", false)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// Byte-fallback BPE in the style of Llama 2.
json::object fallback_file() {
  json::object vocab{{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  for (const char* token : {"▁", "a", "b", "▁a", "ab", "▁ab"}) {
    vocab[token] = static_cast<int64_t>(vocab.size());
  }
  const auto replace = [](const char* from, const char* to) {
    return json::object{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  return {{"added_tokens",
           {{{"id", 2}, {"content", "</s>"}, {"special", true}, {"normalized", false}}}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, replace(" ", "▁")}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {replace("▁", " "),
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"▁ a", "a b", "▁a b"}}}}};
}

std::shared_ptr<const Tokenizer> load(const json::object& file, std::string_view config = {}) {
  auto tokenizer = Tokenizer::from_json(json::serialize(file), config);
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  return tokenizer ? *tokenizer : nullptr;
}

Error refusal(const json::object& file) {
  const auto tokenizer = Tokenizer::from_json(json::serialize(file));
  EXPECT_FALSE(tokenizer.has_value());
  return tokenizer ? Error{} : tokenizer.error();
}

using Ids = std::vector<int32_t>;

TEST(Tokenizer, ByteLevelMergesAndSpecials) {
  const auto tokenizer = load(byte_level_file(), R"({"eos_token": {"content": "<|end|>"}})");
  EXPECT_EQ(*tokenizer->encode("hello hello"), (Ids{259, 262}));
  EXPECT_EQ(*tokenizer->encode("hello<|end|>"), (Ids{259, 263}));
  EXPECT_EQ(tokenizer->encode("<|end|>", {.parse_special = false})->size(), 7u);
  EXPECT_EQ(*tokenizer->encode("<tool>", {.parse_special = false}), (Ids{264}));
  EXPECT_EQ(tokenizer->decode(Ids{262, 263}, false), " hello<|end|>");
  EXPECT_EQ(tokenizer->decode(Ids{262, 263}, true), " hello");
  EXPECT_EQ(tokenizer->decode(Ids{-1, 99999}, true), "");
  EXPECT_EQ(tokenizer->eos_id(), 263);
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer->vocab_size(), 265);
  EXPECT_EQ(tokenizer->token_to_id("Ġhello"), 262);
  EXPECT_EQ(tokenizer->token_to_id("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer->id_to_token(262), "Ġhello");
  EXPECT_EQ(tokenizer->token_bytes(262), " hello");
  EXPECT_EQ(tokenizer->token_bytes(0xE4), "\xE4");
  EXPECT_EQ(tokenizer->token_bytes(-1), "");
  EXPECT_TRUE(tokenizer->is_special(263));
  EXPECT_FALSE(tokenizer->is_special(264));
}

TEST(Tokenizer, EncodingEndsWhereThereAreTooManyIds) {
  const auto tokenizer = load(byte_level_file());
  std::string text = "hello";
  for (int i = 0; i < 1000; ++i) text += i % 10 == 0 ? "<|end|>" : " hello";
  const Ids all = *tokenizer->encode(text);
  for (const size_t max_ids : {size_t{1}, size_t{7}, size_t{500}, all.size(), all.size() + 1}) {
    const Ids some = *tokenizer->encode(text, {.max_ids = max_ids});
    EXPECT_GE(some.size(), std::min(max_ids, all.size()));
    EXPECT_LE(some.size(), max_ids + 8);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  }
  // One piece of the pre-tokenizer's, without an end.
  const std::string piece(1'000'000, 'x');
  EXPECT_EQ(tokenizer->encode(piece)->size(), piece.size());
  const size_t some = tokenizer->encode(piece, {.max_ids = 100})->size();
  EXPECT_GE(some, 100u);
  EXPECT_LT(some, 10'000u);
}

TEST(Tokenizer, InvalidUtf8IsAnErrorWithItsOffset) {
  const auto tokenizer = load(byte_level_file());
  for (const std::string_view bad : {"ab\xFF", "ab\xC3", "ab\xED\xA0\x80", "ab\xF4\x90\x80\x80"}) {
    const auto ids = tokenizer->encode(bad);
    ASSERT_FALSE(ids.has_value());
    EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(ids.error().message.find("byte 2"), std::string::npos);
  }
}

TEST(Tokenizer, ByteFallbackAndUnknown) {
  const auto tokenizer = load(fallback_file());
  const Ids ids = *tokenizer->encode("ab é");
  EXPECT_EQ(ids, (Ids{264, 259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer->decode(ids, false), "ab é");
  EXPECT_EQ(tokenizer->token_bytes(3 + 0xC3), "\xC3");
  EXPECT_EQ(tokenizer->token_bytes(264), " ab");
  // A run of byte tokens that is not UTF-8 is one U+FFFD a byte, also where part of it would be.
  EXPECT_EQ(tokenizer->decode(Ids{3 + 0xC3, 3 + 0xA9, 3 + 0xC3, 260}, false),
            "\uFFFD\uFFFD\uFFFDa");
}

// As an exporter writes it for vocabularies of every kind, of GPT-2's bytes here.
json::object exported_decoder() {
  return {{"type", "Sequence"},
          {"decoders",
           {{{"type", "ByteFallback"}},
            {{"type", "Fuse"}},
            {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
            {{"type", "ByteLevel"}}}}};
}

TEST(Tokenizer, DecodersInAnExportersOrderStreamBytesAtOnce) {
  json::object file = byte_level_file();
  file["decoder"] = exported_decoder();
  const auto tokenizer = load(file);
  const Ids ids = *tokenizer->encode("hello hello é中\n");
  EXPECT_EQ(tokenizer->decode(ids, false), "hello hello é中\n");
  StreamDecoder decoder(tokenizer, false);
  EXPECT_EQ(decoder.push(ids[0]), "hello");
  EXPECT_EQ(decoder.push(ids[1]), " hello") << "no token of the vocabulary could be no bytes";
  EXPECT_EQ(tokenizer->token_bytes(262), " hello");
  EXPECT_EQ(tokenizer->token_bytes(0xE4), "\xE4");
}

TEST(Tokenizer, DecodersInAnExportersOrderHoldBackWhatMayBeBytes) {
  json::object file = fallback_file();
  file["decoder"] = exported_decoder();
  file["model"].as_object()["vocab"].as_object()["é"] = 265;
  const auto tokenizer = load(file);
  constexpr int32_t kLetter = 265;
  const int32_t blank = *tokenizer->token_to_id("▁");
  // Alone it is the byte 0xE9 of the alphabet; beside a blank the whole text is no alphabet.
  EXPECT_EQ(tokenizer->decode(Ids{kLetter}, false), "\uFFFD");
  EXPECT_EQ(tokenizer->decode(Ids{kLetter, blank}, false), "é ");
  StreamDecoder decoder(tokenizer, false);
  EXPECT_EQ(decoder.push(*tokenizer->token_to_id("ab")), "ab");
  EXPECT_EQ(decoder.push(kLetter), "");
  EXPECT_EQ(decoder.push(blank), "é ");
  EXPECT_EQ(decoder.push(kLetter), "é");
}

TEST(Tokenizer, PostProcessorPutsTokensAround) {
  json::object file = byte_level_file();
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", json::array()},
      {"special_tokens",
       {{"<|end|>", {{"id", "<|end|>"}, {"ids", {263}}, {"tokens", {"<|end|>"}}}}}}};
  const auto tokenizer = load(file);
  EXPECT_EQ(*tokenizer->encode("hello"), (Ids{263, 259}));
  EXPECT_EQ(*tokenizer->encode("hello", {.add_special_tokens = false}), (Ids{259}));
}

TEST(Tokenizer, APostProcessorAddsTokensOfTheVocabulary) {
  json::object file = byte_level_file();
  file["post_processor"] = {
      {"type", "BertProcessing"}, {"sep", {"<|end|>", 263}}, {"cls", {"<|end|>", 4321}}};
  const auto tokenizer = Tokenizer::from_json(json::serialize(file));
  ASSERT_FALSE(tokenizer.has_value());
  EXPECT_EQ(tokenizer.error().code, ErrorCode::kCorruptFile);
  EXPECT_EQ(tokenizer.error().where, "post_processor");
}

TEST(Tokenizer, WhatIsNotSupportedIsRefusedByName) {
  struct Case {
    const char* part;
    json::value value;
    const char* named;
  };
  const json::value split = {{"type", "Split"},
                             {"pattern", {{"Regex", "[a&&b]"}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
  const std::vector<Case> cases = {
      {"normalizer", {{"type", "Precompiled"}}, "Precompiled"},
      {"pre_tokenizer", {{"type", "UnicodeScripts"}}, "UnicodeScripts"},
      {"pre_tokenizer", split, "&&"},
      {"post_processor", {{"type", "Odd"}}, "Odd"},
      {"decoder", {{"type", "Cipher"}}, "Cipher"},
      {"decoder",
       {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}, {{"type", "Cipher"}}}}},
       "Cipher"},
      {"model", {{"type", "Unigram"}}, "Unigram"},
  };
  for (const Case& test : cases) {
    json::object file = byte_level_file();
    file[test.part] = test.value;
    const Error error = refusal(file);
    EXPECT_EQ(error.code, ErrorCode::kUnsupported) << test.named;
    EXPECT_NE(error.message.find(test.named), std::string::npos) << error.to_string();
    EXPECT_NE(error.where.find(test.part), std::string::npos) << error.to_string();
  }
  for (const char* field : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    json::object file = byte_level_file();
    file["model"].as_object()[field] =
        field == std::string_view("dropout") ? json::value(0.1) : "##";
    EXPECT_EQ(refusal(file).where, std::string("model.") + field);
  }
}

TEST(Tokenizer, MalformedFilesAreRefusedByField) {
  const auto broken = [](const char* part, json::value value) {
    json::object file = byte_level_file();
    file["model"].as_object()[part] = std::move(value);
    return refusal(file);
  };
  EXPECT_EQ(broken("vocab", json::array()).where, "model.vocab");
  EXPECT_EQ(broken("vocab", {{"a", -1}}).where, "model.vocab");
  EXPECT_EQ(broken("vocab", {{"a", 1'000'000'000'000}}).where, "model.vocab");
  EXPECT_EQ(broken("vocab", {{"a", 1}, {"b", 1}}).where, "model.vocab");
  EXPECT_EQ(broken("merges", {"h e", "oops"}).where, "model.merges[1]");
  EXPECT_EQ(broken("merges", {"h zz"}).where, "model.merges[0]");
  EXPECT_EQ(broken("unk_token", "<nope>").where, "model.unk_token");
  EXPECT_EQ(broken("byte_fallback", "yes").where, "model.byte_fallback");
  json::object file = byte_level_file();
  file["added_tokens"].as_array()[0].as_object()["id"] = 300;
  EXPECT_EQ(refusal(file).where, "added_tokens[0]");
  for (const char* text : {"", "[]", "{", "nonsense", "{\"model\": null}"}) {
    const auto tokenizer = Tokenizer::from_json(text);
    ASSERT_FALSE(tokenizer.has_value()) << text;
    EXPECT_EQ(tokenizer.error().code, ErrorCode::kCorruptFile) << text;
  }
}

// Deleting or replacing any one field of a good file must give an error or a tokenizer that works.
TEST(Tokenizer, MutatedFilesNeverCrash) {
  const std::vector<json::value> replacements = {
      nullptr, true, -1, 1e300, "x", json::array{1}, json::object{{"type", "BPE"}}};
  const std::function<void(json::value&, const std::function<void()>&)> mutate =
      [&](json::value& node, const std::function<void()>& check) {
        const json::value saved = node;
        for (const auto& replacement : replacements) {
          node = replacement;
          check();
        }
        node = saved;
        if (node.is_object() && node.get_object().size() < 50) {
          for (auto& member : node.get_object()) mutate(member.value(), check);
        } else if (node.is_array() && node.get_array().size() < 10) {
          for (auto& item : node.get_array()) mutate(item, check);
        }
      };
  for (json::value file : {json::value(byte_level_file()), json::value(fallback_file())}) {
    size_t checked = 0;
    mutate(file, [&] {
      ++checked;
      const auto tokenizer = Tokenizer::from_json(json::serialize(file));
      if (!tokenizer) return;
      const auto ids = (*tokenizer)->encode("hello ab é </s><|end|>");
      if (ids) (*tokenizer)->decode(*ids, true);
    });
    EXPECT_GT(checked, 150u);
  }
}

// A million times one character: no quadratic step anywhere. The bound is loose, for slow machines
// and sanitizers; a quadratic merge would take hours.
TEST(Tokenizer, LongRunsAreNotQuadratic) {
  for (const json::object& file : {byte_level_file(), fallback_file()}) {
    const auto tokenizer = load(file);
    for (const char* unit : {"a", " ", "\n", "é", "<|", "1", "."}) {
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      const double start = thread_cpu_seconds();
      const auto ids = tokenizer->encode(text);
      const double seconds = thread_cpu_seconds() - start;
      ASSERT_TRUE(ids.has_value()) << unit;
      EXPECT_LT(seconds, 20.0) << unit;
      EXPECT_EQ(tokenizer->decode(*ids, false), text) << unit;
    }
  }
}

TEST(StreamDecoder, EqualsTheWholeDecodeAndNeverSplitsACharacter) {
  std::mt19937 rng(3);
  for (const json::object& file : {byte_level_file(), fallback_file()}) {
    const auto tokenizer = load(file);
    for (int round = 0; round < 5000; ++round) {
      Ids ids(rng() % 12);
      for (int32_t& id : ids) {  // mostly bytes of multi-byte characters
        id = static_cast<int32_t>(rng() % 3 == 0 ? rng() % 270 : 3 + 0x80 + rng() % 0x80);
      }
      const bool skip = rng() % 2 == 0;
      StreamDecoder decoder(tokenizer, skip);
      std::string text;
      for (const int32_t id : ids) {
        const std::string_view delta = decoder.push(id);
        ASSERT_EQ(find_invalid_utf8(delta), std::nullopt);
        text += delta;
      }
      text += decoder.flush();
      ASSERT_EQ(text, tokenizer->decode(ids, skip));
    }
  }
}

TEST(StreamDecoder, ShowsTheSpecialTokensItIsToldTo) {
  const auto tokenizer = load(byte_level_file());
  const int32_t end = *tokenizer->token_to_id("<|end|>");
  ASSERT_TRUE(tokenizer->is_special(end));
  StreamDecoder showing(tokenizer, true, {end});
  EXPECT_EQ(showing.push(end), "<|end|>");
  StreamDecoder other(tokenizer, true, {end - 1, end + 1});
  EXPECT_EQ(other.push(end), "");
}

TEST(StreamDecoder, PrimingKeepsTheLeadingSpace) {
  const auto tokenizer = load(fallback_file());
  StreamDecoder fresh(tokenizer, true);
  EXPECT_EQ(fresh.push(264), "ab");
  StreamDecoder primed(tokenizer, true);
  primed.prime(Ids{264});
  EXPECT_EQ(primed.push(264), " ab");
}

// What a prompt's end holds back is the prompt's: the newline of a byte token, blanks that a
// decoder may strip from the end. The answer has only characters that it completes itself.
TEST(StreamDecoder, PrimingDropsWhatThePromptHoldsBack) {
  json::object stripping = fallback_file();
  stripping["decoder"].as_object()["decoders"].as_array().back().as_object()["stop"] = 2;
  const auto byte = [](int value) { return 3 + value; };
  struct Case {
    Ids prompt, answer;
    const char* text;
  };
  const int32_t blank = 259, a = 260, blank_a = 262;
  const Case cases[] = {
      {{a, byte('\n')}, {blank_a}, " a"},
      {{a, byte('\n')}, {byte('\n'), a}, "\na"},
      {{byte('\n')}, {blank_a}, " a"},  // the start has been passed
      {{a, byte('\n')}, {}, ""},
      {{a, blank}, {a}, "a"},
      {{a, byte(0xE2)}, {byte(0x82), byte(0xAC)}, "€"},
      {{a, byte('\n'), byte(0xE2), byte(0x82)}, {byte(0xAC), a}, "€a"},
      {{a, byte(0xE2), byte(0x82)}, {a}, "a"},
      {{a, byte(0xE2), byte(0x82)}, {byte('b'), a}, "ba"},
      {{a, byte(0xE2)}, {byte(0x82), a}, "\uFFFDa"},
      {{a, byte(0xE2)}, {}, ""},
      {{a, byte(0xFF), byte('\n')}, {byte('b'), a}, "ba"},
  };
  for (const json::object& file : {fallback_file(), stripping}) {
    const auto tokenizer = load(file);
    for (const Case& one : cases) {
      StreamDecoder decoder(tokenizer, true);
      decoder.prime(one.prompt);
      std::string text;
      for (const int32_t id : one.answer) text += decoder.push(id);
      text += decoder.flush();
      EXPECT_EQ(text, one.text) << tokenizer->decode(one.prompt, true);
    }
  }
}

// Wherever a text is parted into a prompt and an answer, the answer's text is what the whole has
// behind the prompt's.
TEST(StreamDecoder, AnAnswerIsTheWholeWithoutThePrompt) {
  std::mt19937 rng(5);
  int compared = 0;
  for (const json::object& file : {byte_level_file(), fallback_file()}) {
    const auto tokenizer = load(file);
    for (int round = 0; round < 5000; ++round) {
      std::string written;
      for (size_t i = rng() % 8; i > 0; --i) {
        written += std::array{"a", "b", " ", "\n", "é", "€", "ab", "\t"}[rng() % 8];
      }
      const Ids ids = tokenizer->encode(written).value();
      const size_t cut = rng() % (ids.size() + 1);
      const std::span<const int32_t> prompt = std::span(ids).first(cut);
      const std::string before = tokenizer->decode(prompt, true);
      const std::string whole = tokenizer->decode(ids, true);
      if (!whole.starts_with(before)) continue;  // the cut is inside a character
      ++compared;
      StreamDecoder decoder(tokenizer, true);
      decoder.prime(prompt);
      std::string text;
      for (size_t i = cut; i < ids.size(); ++i) text += decoder.push(ids[i]);
      text += decoder.flush();
      ASSERT_EQ(before + text, whole) << written << " cut after " << cut;
    }
  }
  EXPECT_GT(compared, 8000);
}

TEST(Tokenizer, ManyThreadsShareOne) {
  const auto tokenizer = load(byte_level_file());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string text = fmt::format("hello {} aaaa{} <|end|>", i, t);
        const auto ids = tokenizer->encode(text);
        if (!ids || tokenizer->decode(*ids, false) != text) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace rudder::text
