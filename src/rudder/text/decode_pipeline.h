// DecodePipeline: a tokenizer's `decoder` compiled into a table of bytes by token and a few
// streaming stages, so that decoding token by token and decoding a whole text are the same code.
// Decoders in an order for which there is no such table run one behind the other (DecodeChain).
// Made by the tokenizer's loader; run by Tokenizer::decode and StreamDecoder. The pipeline is
// immutable and shared between threads; a DecodeState belongs to one sequence.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/decode_chain.h"
#include "rudder/text/token_table.h"

namespace rudder::text {

struct DecodeState {
  bool any_token = false;  // a token has been pushed
  uint32_t stripped = 0;   // characters removed from the start of the text
  bool in_text = false;    // the start has been passed: nothing more is stripped from it
  std::string pending;     // bytes not yet decided: an unfinished character, or a byte-token run
  size_t prompt_bytes =
      0;             // of pending, at its front: of a character that the prompt left unfinished
  std::string tail;  // text not yet decided: it may be stripped from the end
  DecodeChainState chain;
};

class DecodePipeline {
 public:
  // `spelling(id)` is the token as the decoder sees it, empty where there is none; ids are below
  // `size`. kUnsupported names the decoder.
  static Result<DecodePipeline> parse(const boost::json::value& decoder, int32_t size,
                                      const std::function<std::string_view(int32_t)>& spelling);

  // Appends the text that `id` makes certain. Ids outside the vocabulary add nothing.
  void push(DecodeState& state, int32_t id, std::string& out) const;
  // The tokens so far were a prompt, and an answer follows: what is held back is the prompt's text
  // and is dropped. Only the bytes of an unfinished last character stay, for the answer to
  // complete.
  void end_prompt(DecodeState& state) const;
  // Appends what was held back.
  void flush(DecodeState& state, std::string& out) const;

  // What the token stands for inside a text; empty if there is no such id.
  std::string_view bytes(int32_t id) const { return table_.get(id); }

 private:
  // A decoder that works on one token's string at a time.
  struct TokenOp {
    enum class Kind { kReplace, kStrip, kMetaspace } kind;
    std::string from;       // replace: what; strip: the character; metaspace: the replacement
    std::string to;         // replace: by what
    size_t start = 0;       // strip: at most so many from the start
    size_t stop = 0;        // and from the end
    bool prepends = false;  // metaspace: the first token's leading marks are dropped
  };
  // How the tokens' strings become one text.
  enum class Join {
    kSpaces,     // no decoder: joined with spaces
    kPlain,      // concatenated
    kByteLevel,  // bytes, decoded with U+FFFD for what is not UTF-8
    kFallback,   // "<0xAB>" tokens are bytes; a run of them that is not UTF-8 is all U+FFFD
  };
  struct Usual;  // the parser's state

  static Result<DecodePipeline> parse_usual(
      const boost::json::value& decoder, int32_t size,
      const std::function<std::string_view(int32_t)>& spelling);

  static std::string apply(const std::vector<TokenOp>& ops, std::string text, bool first);
  void emit(DecodeState& state, std::string_view text, std::string& out) const;
  void end_byte_run(DecodeState& state, std::string& out) const;
  static void drop_prompt_bytes(DecodeState& state, std::string_view next);

  Join join_ = Join::kPlain;
  std::vector<TokenOp> ops_;
  bool first_differs_ = false;          // some op treats the first token differently
  std::optional<TokenOp> text_strip_;   // Strip on the joined text
  TokenTable table_;                    // bytes by id, as for a token that is not the first
  std::vector<bool> is_byte_;           // Join::kFallback: the id is a byte token
  std::vector<std::string> spellings_;  // the file's strings, where first_differs_ or of a chain
  std::shared_ptr<const DecodeChain> chain_;  // in place of all but the table
};

}  // namespace rudder::text
