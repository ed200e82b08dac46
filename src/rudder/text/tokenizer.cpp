#include "rudder/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/utf8.h"
#include "rudder/text/tokenizer_impl.h"

namespace rudder::text {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // offsets inside a text are 32 bits
constexpr size_t kKeptScratch = size_t{1} << 20;

// Buffers of one thread, kept between calls while they are small.
Pieces& scratch_pieces() {
  thread_local Pieces pieces;
  return pieces;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view utf8,
                                               const EncodeOptions& options) const {
  if (utf8.size() > kMaxTextBytes) {
    return fail(ErrorCode::kTooLarge,
                fmt::format("text has {} bytes, the limit is {}", utf8.size(), kMaxTextBytes));
  }
  if (const auto bad = find_invalid_utf8(utf8)) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("text is not UTF-8 at byte {}", *bad));
  }
  std::vector<int32_t> ids;
  ids.reserve(std::min(utf8.size() / 4, options.max_ids) + 8);
  if (options.add_special_tokens) ids = impl_->prefix;
  std::vector<Segment> segments;
  impl_->raw_tokens.split(utf8, options.parse_special, segments);
  for (const Segment& segment : segments) {
    if (ids.size() >= options.max_ids) return ids;
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      RUDDER_TRY_VOID(impl_->encode_text(utf8.substr(segment.begin, segment.end - segment.begin),
                                         segment.begin == 0, options, ids));
    }
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  }
  return ids;
}

Result<void> Tokenizer::Impl::encode_text(std::string_view text, bool at_origin,
                                          const EncodeOptions& options,
                                          std::vector<int32_t>& out) const {
  std::string normal;
  if (!normalizer.empty()) {
    normal = text;
    RUDDER_TRY_VOID(normalizer.apply(normal, at_origin));
    text = normal;
  }
  std::vector<Segment> segments;
  normalized_tokens.split(text, options.parse_special, segments);
  Pieces& pieces = scratch_pieces();
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
      continue;
    }
    if (segment.begin == segment.end) continue;
    pieces.text = text.substr(segment.begin, segment.end - segment.begin);
    pieces.list.assign(
        1, Piece{0, static_cast<uint32_t>(pieces.text.size()), at_origin && segment.begin == 0});
    RUDDER_TRY_VOID(pre_tokenizer.apply(pieces));
    for (const Piece& piece : pieces.list) {
      if (out.size() >= options.max_ids) break;
      model.encode(pieces.view(piece), out, options.max_ids);
    }
    if (pieces.text.capacity() + pieces.list.capacity() * sizeof(Piece) > kKeptScratch) {
      pieces = Pieces{};
    }
  }
  return {};
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  DecodeState state;
  for (const int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    impl_->decode.push(state, id, text);
  }
  impl_->decode.flush(state, text);
  return text;
}

int32_t Tokenizer::vocab_size() const {
  return impl_->tokens.size();
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const int32_t id = impl_->index.find(token);
  if (id < 0) return std::nullopt;
  return id;
}

std::string_view Tokenizer::id_to_token(int32_t id) const {
  return impl_->tokens.get(id);
}
std::string_view Tokenizer::token_bytes(int32_t id) const {
  return impl_->decode.bytes(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->special.size() && impl_->special[id];
}

std::optional<int32_t> Tokenizer::bos_id() const {
  return impl_->bos;
}
std::optional<int32_t> Tokenizer::eos_id() const {
  return impl_->eos;
}
const DecodePipeline& Tokenizer::decode_pipeline() const {
  return impl_->decode;
}

}  // namespace rudder::text
