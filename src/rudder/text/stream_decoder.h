// StreamDecoder: token ids in, text out, one token at a time. The concatenation of all deltas and
// the flush equals Tokenizer::decode of the same ids, and no delta ends inside a UTF-8 character.
// One object a sequence, owned and called by the output thread; it keeps the tokenizer alive.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/text/decode_pipeline.h"
#include "rudder/text/tokenizer.h"

namespace rudder::text {

class StreamDecoder {
 public:
  // `shown_special`: special tokens that are text even where the others are skipped. Ascending.
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                std::vector<int32_t> shown_special = {});

  // Context in front of the first push (the end of the prompt): its own text is dropped, what is
  // held back of it too, but a leading-space rule no longer applies to the text that follows. A
  // last character that the prompt leaves unfinished belongs to the answer if the answer completes
  // it. Call before the first push.
  void prime(std::span<const int32_t> ids);

  // The text that `id` made certain, possibly empty. Valid until the next call. Ids outside the
  // vocabulary give nothing. O(bytes of the token).
  std::string_view push(int32_t id);

  // What was held back: an unfinished character becomes U+FFFD. Valid until the next call; after it
  // only destruction is allowed.
  std::string_view flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  DecodeState state_;
  const bool skip_special_;
  const std::vector<int32_t> shown_special_;
  std::string delta_;
};

}  // namespace rudder::text
