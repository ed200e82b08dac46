#include "rudder/text/stream_decoder.h"

#include <algorithm>
#include <utility>

namespace rudder::text {

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                             std::vector<int32_t> shown_special)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(skip_special),
      shown_special_(std::move(shown_special)) {}

void StreamDecoder::prime(std::span<const int32_t> ids) {
  for (const int32_t id : ids) push(id);
  tokenizer_->decode_pipeline().end_prompt(state_);
  delta_.clear();
}

std::string_view StreamDecoder::push(int32_t id) {
  delta_.clear();
  if (skip_special_ && tokenizer_->is_special(id) &&
      !std::binary_search(shown_special_.begin(), shown_special_.end(), id)) {
    return {};
  }
  tokenizer_->decode_pipeline().push(state_, id, delta_);
  return delta_;
}

std::string_view StreamDecoder::flush() {
  delta_.clear();
  tokenizer_->decode_pipeline().flush(state_, delta_);
  return delta_;
}

}  // namespace rudder::text
