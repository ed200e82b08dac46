// DecodeStage: one decoder of a tokenizer's `decoder` as a stream. Tokens come in as pieces of
// text, the last piece of each marked; what the stage is sure of goes on to the next one the same
// way. A stage is immutable and shared between threads; a DecodeStageState belongs to one sequence.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::text {

struct DecodeStageState {
  std::string held;      // of the present token, not yet decided
  std::string bytes;     // decoded, not yet whole characters
  size_t tokens = 0;     // that have ended
  size_t stripped = 0;   // characters taken from the present token's start
  bool is_open = false;  // a piece of the present token has come
  bool is_decided = false;
};

// The next stage's intake: a piece, and whether it ends its token.
using DecodeSink = std::function<void(std::string_view piece, bool ends)>;

class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void take(DecodeStageState& state, std::string_view piece, bool ends,
                    const DecodeSink& next) const = 0;
  // After the last token.
  virtual void finish(DecodeStageState& state, const DecodeSink& next) const;
  // The bytes that a token's string stands for behind others, before they are made characters.
  virtual std::string inside(std::string token) const { return token; }
  // Whether this stage could bring a character outside the byte alphabet into strings that have
  // none.
  virtual bool leaves_alphabet(bool /*has_byte_tokens*/) const { return true; }
  // Told once, by DecodeChain: no token that comes has a character outside the byte alphabet.
  virtual void expect_alphabet() {}
};

// kUnsupported names the decoder; `path` is the node's.
Result<std::unique_ptr<DecodeStage>> make_decode_stage(const boost::json::object& node,
                                                       const std::string& type,
                                                       const std::string& path);

// The bytes that a token in GPT-2's byte alphabet stands for; nothing for another token.
bool append_alphabet_bytes(std::string_view token, std::string& out);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
// That of "<0xAB>"; nothing for another token.
std::optional<char> byte_of(std::string_view token);

}  // namespace rudder::text
