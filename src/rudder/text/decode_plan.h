// DecodePlan: a tokenizer's decoder chain compiled into one table of bytes a token and a few
// streaming stages, so that decoding token by token and decoding a whole text are the same code.
// Made by the tokenizer's loader; run by Tokenizer::decode and StreamDecoder. The plan is immutable
// and shared, a DecodeState belongs to one sequence.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::text {

class DecodePlan;

struct DecodeState {
  bool any_token = false;  // a token has been pushed
  bool any_text = false;   // the fused text has begun
  uint32_t stripped = 0;   // characters removed from the start of the fused text
  std::string pending;     // bytes not yet decided: UTF-8 prefix or byte-fallback run
  std::string tail;        // text not yet decided: the end-strip window
};

}  // namespace rudder::text
