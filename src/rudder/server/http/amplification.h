// How much larger an answer may be than its request, beside what was generated for it: a client
// that reads nothing makes the server hold little more than it sent. What the model or a dictionary
// computes is generated: tokens with what is told of each, captured values, embeddings, features,
// cells of a sweep. It has bounds of its own (docs/contracts/http.md) and is charged before it is
// computed where its size is known by then. All else repeats the request or spells it out.
#pragma once

#include <cstdint>

namespace rudder::server {

inline constexpr int64_t kMaxAmplification = 10;

// Of what repeats or spells out a body of so many bytes. Small answers are always right.
constexpr int64_t largest_answer_to(int64_t sent_bytes) {
  constexpr int64_t kSmallAnswer = int64_t{64} << 10;
  return kSmallAnswer + kMaxAmplification * sent_bytes;
}

}  // namespace rudder::server
