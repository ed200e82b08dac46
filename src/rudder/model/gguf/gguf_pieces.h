// How the tokenizers of bytes in GGUF files cut a text into pieces, by the names of
// "tokenizer.ggml.pre". Constant data; any thread.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

namespace rudder::model {

struct GgufPieces {
  std::initializer_list<std::string_view> names;
  std::initializer_list<std::string_view> patterns;  // one after another, of what is left
  bool is_gpt2 = false;                              // GPT-2's own pattern follows
  bool ignores_merges = false;                       // a piece that is a token is that token
  bool adds_bos = false;                             // where the file does not say
  bool composes = false;                             // the text is in NFC first
};

inline constexpr std::string_view kDigitPiece = R"(\p{N})";

std::span<const GgufPieces> gguf_pieces();

}  // namespace rudder::model
