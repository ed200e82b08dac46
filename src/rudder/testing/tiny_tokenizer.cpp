#include "rudder/testing/tiny_tokenizer.h"

#include <array>
#include <string>

#include "rudder/base/check.h"

namespace rudder::testing {
namespace {

struct Piece {
  const char* spelling;  // as tokenizer.json spells it: byte-level, UTF-8
  const char* text;
  const char* merge;  // "" for a base token
};

// Ids in order.
constexpr std::array<Piece, kTinyVocab> kPieces = {{
    {"</s>", "", ""},
    {"<stop>", "", ""},
    {"a", "a", ""},
    {"b", "b", ""},
    {"c", "c", ""},
    {"d", "d", ""},
    {"e", "e", ""},
    {"f", "f", ""},
    {"g", "g", ""},
    {"h", "h", ""},
    {"i", "i", ""},
    {"j", "j", ""},
    {"k", "k", ""},
    {"l", "l", ""},
    {"m", "m", ""},
    {"n", "n", ""},
    {"o", "o", ""},
    {"p", "p", ""},
    {"q", "q", ""},
    {"r", "r", ""},
    {".", ".", ""},
    {",", ",", ""},
    {"\u0120", " ", ""},
    {"\u010A", "\n", ""},
    {"ab", "ab", "a b"},
    {"cd", "cd", "c d"},
    {"bc", "bc", "b c"},
    {"abcd", "abcd", "ab cd"},
    {"\u0120a", " a", "\u0120 a"},
    {"\u0120b", " b", "\u0120 b"},
    {"ef", "ef", "e f"},
    {"gh", "gh", "g h"},
    {"\u00C3", "\xC3", ""},
    {"\u00A9", "\xA9", ""},
    {"\u00E2", "\xE2", ""},
    {"\u0124", "\x82", ""},
    {"\u00AC", "\xAC", ""},
}};

std::string tokenizer_json() {
  std::string added, vocab, merges;
  for (size_t id = 0; id < kPieces.size(); ++id) {
    const Piece& piece = kPieces[id];
    const std::string number = std::to_string(id);
    if (*piece.text == '\0') {
      if (!added.empty()) added += ',';
      added += R"({"id":)" + number + R"(,"content":")" + piece.spelling +
               R"(","single_word":false,"lstrip":false,"rstrip":false,)"
               R"("normalized":false,"special":true})";
    }
    if (!vocab.empty()) vocab += ',';
    vocab += std::string("\"") + piece.spelling + "\":" + number;
    if (*piece.merge == '\0') continue;
    if (!merges.empty()) merges += ',';
    merges += std::string("\"") + piece.merge + "\"";
  }
  const std::string byte_level =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added +
         R"(],"normalizer":null,"pre_tokenizer":)" + byte_level +
         R"(,"post_processor":null,"decoder":)" + byte_level +
         R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,)"
         R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,)"
         R"("byte_fallback":false,"ignore_merges":false,"vocab":{)" +
         vocab + R"(},"merges":[)" + merges + "]}}";
}

}  // namespace

std::shared_ptr<const text::Tokenizer> tiny_tokenizer() {
  static const std::shared_ptr<const text::Tokenizer> tokenizer = [] {
    auto made = text::Tokenizer::from_json(tokenizer_json(), R"({"eos_token":"</s>"})");
    RUDDER_CHECK(made.has_value(), "{}", made.error().to_string());
    return *made;
  }();
  return tokenizer;
}

std::string_view tiny_text(int32_t id) {
  RUDDER_CHECK(id >= 0 && id < kTinyVocab);
  return kPieces[static_cast<size_t>(id)].text;
}

}  // namespace rudder::testing
