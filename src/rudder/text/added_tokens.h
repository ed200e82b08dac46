// The `added_tokens` of a tokenizer.json, which are found in the text before the model sees it.
// Tokens with normalized = false are searched in the raw text, the others in the normalised text.
// Owned by the Tokenizer, called by encode. Immutable: safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rudder::text {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  std::string pattern;  // what is searched: the content, normalised where `normalized`
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// A stretch of text: an added token, or (id < 0) ordinary text.
struct Segment {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

// Leftmost-longest search for a set of tokens.
class TokenSearch {
 public:
  void add(const AddedToken& token);
  bool empty() const { return nodes_.size() <= 1; }
  // Appends the segments that cover `text`, in order. Special tokens are passed over where
  // `parse_special` is false.
  void split(std::string_view text, bool parse_special, std::vector<Segment>& out) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> edges;
    int32_t token = -1;  // index into tokens_
  };
  // The longest token that begins at `pos`: its index, or -1.
  int32_t longest_at(std::string_view text, size_t pos) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  std::array<bool, 256> starts_{};  // some token begins with this byte
};

}  // namespace rudder::text
