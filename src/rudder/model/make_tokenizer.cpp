// The tokenizers of make_model: BPE, byte-level as GPT-2's or with byte fallback as Llama 2's, with
// made-up merges of lower-case letters, so that text has realistic lengths and every id of the
// vocabulary decodes to something.
#include <fmt/format.h>

#include <array>

#include "rudder/base/json.h"
#include "rudder/base/utf8.h"
#include "rudder/model/make_model.h"

namespace rudder::model {
namespace {

// GPT-2's printable stand-in for each byte (github.com/openai/gpt-2, src/encoder.py,
// bytes_to_unicode).
std::array<std::string, 256> byte_alphabet() {
  std::array<std::string, 256> out;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    append_utf8(out[byte], printable ? byte : next++);
  }
  return out;
}

constexpr std::string_view kAdded = R"({"version": "1.0", "truncation": null, "padding": null,
"added_tokens": [
{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
{"id": 1, "content": "<|im_start|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
{"id": 2, "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
)";

constexpr std::string_view kByteLevelParts = R"("normalizer": {"type": "NFC"},
"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
{"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": false},
{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
"post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
"decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
)";

// As in the tokenizer.json of Llama 2.
constexpr std::string_view kByteFallbackParts =
    R"("normalizer": {"type": "Sequence", "normalizers": [
{"type": "Prepend", "prepend": "▁"},
{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
"pre_tokenizer": null,
"post_processor": null,
"decoder": {"type": "Sequence", "decoders": [
{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
{"type": "ByteFallback"}, {"type": "Fuse"},
{"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
)";

constexpr std::string_view kModelHead =
    R"("model": {{"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
"end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": {}, "ignore_merges": false,
"vocab": {{"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2)";

// The tokens of one byte or one printable character.
std::vector<std::string> single_tokens(TokenizerKind kind) {
  const std::array<std::string, 256> alphabet = byte_alphabet();
  std::vector<std::string> tokens(alphabet.begin(), alphabet.end());
  if (kind == TokenizerKind::kByteLevel) return tokens;
  for (unsigned byte = 0; byte < 256; ++byte) tokens[byte] = fmt::format("<0x{:02X}>", byte);
  tokens.emplace_back("▁");
  for (char printable = '!'; printable <= '~'; ++printable) tokens.emplace_back(1, printable);
  return tokens;
}

}  // namespace

std::string make_tokenizer_json(int32_t vocab, TokenizerKind kind) {
  const bool is_byte_level = kind == TokenizerKind::kByteLevel;
  std::string tokens(kAdded);
  tokens += is_byte_level ? kByteLevelParts : kByteFallbackParts;
  tokens += fmt::format(kModelHead, !is_byte_level);
  std::string merges;
  int32_t next_id = 3;
  const auto add_token = [&](std::string_view token) {
    tokens += ", ";
    append_json_string(tokens, token);
    tokens += fmt::format(": {}", next_id++);
  };
  for (const std::string& symbol : single_tokens(kind)) add_token(symbol);
  // Each round makes every token of the one before longer by a letter, with and without the space
  // that begins a word, until the vocabulary is full.
  std::vector<std::string> round = {is_byte_level ? byte_alphabet()[' '] : "▁"};
  for (char letter = 'a'; letter <= 'z'; ++letter) round.emplace_back(1, letter);
  while (next_id < vocab) {
    std::vector<std::string> longer;
    for (const std::string& stem : round) {
      for (char letter = 'a'; letter <= 'z' && next_id < vocab; ++letter) {
        longer.push_back(stem + letter);
        add_token(longer.back());
        merges += merges.empty() ? "" : ", ";
        merges += fmt::format("[\"{}\", \"{}\"]", stem, letter);
      }
    }
    round = std::move(longer);
  }
  return fmt::format("{}}},\n\"merges\": [{}]}}}}\n", tokens, merges);
}

}  // namespace rudder::model
