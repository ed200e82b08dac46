// A tokenizer.json, and behind a byte 0 a text: ids are those of the vocabulary, and text that
// comes token by token is the text of all tokens.
#include "require.h"
#include "rudder/base/utf8.h"
#include "rudder/text/stream_decoder.h"
#include "rudder/text/tokenizer.h"

namespace rudder::fuzz {
namespace {

using text::StreamDecoder;
using text::Tokenizer;

constexpr std::string_view kSampleText = "Héllo  wörld\n<s> 12,345 \xF0\x9F\x8C\x8A don't\t[x]";

void require_stream(const std::shared_ptr<const Tokenizer>& tokenizer,
                    const std::vector<int32_t>& ids, bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string_view delta = decoder.push(id);
    RUDDER_CHECK(!find_invalid_utf8(delta), "a delta is not UTF-8");
    streamed += delta;
  }
  streamed += decoder.flush();
  const std::string whole = tokenizer->decode(ids, skip_special);
  RUDDER_CHECK(!find_invalid_utf8(whole), "a text is not UTF-8");
  RUDDER_CHECK(streamed == whole, "streamed {:?}, whole {:?}", streamed, whole);
}

}  // namespace

void fuzz_tokenizer(std::string_view input) {
  const size_t end = input.find('\0');
  const std::string_view file = input.substr(0, end);
  const std::string sample = end == std::string_view::npos ? std::string(kSampleText)
                                                           : to_valid_utf8(input.substr(end + 1));
  const auto made = Tokenizer::from_json(file);
  if (!made) {
    return require_error(made.error(), {ErrorCode::kCorruptFile, ErrorCode::kUnsupported});
  }
  const std::shared_ptr<const Tokenizer>& tokenizer = *made;
  for (const bool special : {false, true}) {
    const auto ids =
        tokenizer->encode(sample, {.add_special_tokens = special, .parse_special = special});
    if (!ids) {
      require_error(ids.error(), {ErrorCode::kInvalidArgument});
      continue;
    }
    for (const int32_t id : *ids) {
      RUDDER_CHECK(id >= 0 && id < tokenizer->vocab_size(), "id {}", id);
      const std::string_view token = tokenizer->id_to_token(id);
      RUDDER_CHECK(tokenizer->token_to_id(token).has_value(), "id {}", id);
    }
    require_stream(tokenizer, *ids, special);
  }
  // Ids that no text gives, as a model may.
  auto choices = choices_of(input);
  std::vector<int32_t> ids;
  for (int i = 0; i < 24; ++i) {
    ids.push_back(
        static_cast<int32_t>(choices() % (static_cast<uint64_t>(tokenizer->vocab_size()) + 2)));
  }
  require_stream(tokenizer, ids, choices() % 2 == 0);
}

}  // namespace rudder::fuzz
