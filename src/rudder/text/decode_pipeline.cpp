#include "rudder/text/decode_pipeline.h"

#include <boost/json.hpp>

#include "rudder/base/utf8.h"
#include "rudder/text/json_fields.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

// The bytes that a token in GPT-2's byte alphabet stands for; another token stands for itself.
std::string alphabet_bytes(std::string_view token) {
  std::string bytes;
  return append_alphabet_bytes(token, bytes) ? bytes : std::string(token);
}

}  // namespace

// Decoders in their order, sorted into what happens to tokens, the join, and the joined text.
struct DecodePipeline::Usual {
  DecodePipeline& pipeline;
  bool joined = false;    // the join is decided
  bool one_text = false;  // and what follows sees one string

  Result<void> add(const boost::json::value& node, const std::string& path, int depth) {
    RUDDER_TRY(const auto* object, as_object(node, path));
    RUDDER_TRY(const std::string type, string_field(*object, "type", path));
    if (type == "Sequence") return add_sequence(*object, path, depth);
    if (type == "Fuse") {
      joined = one_text = true;
      return {};
    }
    if (type == "ByteLevel" || type == "ByteFallback") {
      if (joined) return out_of_order(type, path);
      pipeline.join_ = type == "ByteLevel" ? Join::kByteLevel : Join::kFallback;
      joined = true;
      one_text = type == "ByteLevel";
      return {};
    }
    RUDDER_TRY(TokenOp op, read_op(*object, type, path));
    if (!joined) {
      pipeline.ops_.push_back(std::move(op));
    } else if (op.kind == TokenOp::Kind::kStrip && one_text && !pipeline.text_strip_) {
      pipeline.text_strip_ = std::move(op);
    } else {
      return out_of_order(type, path);
    }
    return {};
  }

  Result<void> add_sequence(const boost::json::object& object, const std::string& path, int depth) {
    const auto* list = object.if_contains("decoders");
    if (list == nullptr || !list->is_array() || depth > 8) {
      return fail(ErrorCode::kCorruptFile, "must be a list", path + ".decoders");
    }
    size_t index = 0;
    for (const auto& item : list->get_array()) {
      RUDDER_TRY_VOID(add(item, fmt::format("{}.decoders[{}]", path, index++), depth + 1));
    }
    return {};
  }

  static tl::unexpected<Error> out_of_order(std::string_view type, const std::string& path) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("decoder \"{}\" is not supported at this place of the chain", type),
                path);
  }

  static Result<TokenOp> read_op(const boost::json::object& object, const std::string& type,
                                 const std::string& path) {
    TokenOp op{};
    if (type == "Replace") {
      op.kind = TokenOp::Kind::kReplace;
      RUDDER_TRY(PatternField pattern, pattern_field(object, path));
      if (pattern.is_regex || pattern.text.empty()) {
        return fail(ErrorCode::kUnsupported, "decoder \"Replace\" is supported with a string only",
                    path + ".pattern");
      }
      op.from = std::move(pattern.text);
      RUDDER_TRY(op.to, string_field(object, "content", path));
    } else if (type == "Strip") {
      op.kind = TokenOp::Kind::kStrip;
      RUDDER_TRY(op.from, string_field(object, "content", path));
      RUDDER_TRY(op.start, int_field(object, "start", 0, 1 << 20, path));
      RUDDER_TRY(op.stop, int_field(object, "stop", 0, 1 << 20, path));
    } else if (type == "Metaspace") {
      op.kind = TokenOp::Kind::kMetaspace;
      RUDDER_TRY(op.from, string_field(object, "replacement", path));
      RUDDER_TRY(op.prepends, bool_field(object, "add_prefix_space", true, path));
      if (object.if_contains("prepend_scheme") != nullptr) {
        RUDDER_TRY(const std::string scheme, string_field(object, "prepend_scheme", path));
        op.prepends = scheme != "never";
      }
    } else {
      return unsupported_component("decoder", type, path);
    }
    if (op.from.empty()) return fail(ErrorCode::kCorruptFile, "must not be empty", path);
    return op;
  }
};

Result<DecodePipeline> DecodePipeline::parse(
    const boost::json::value& decoder, int32_t size,
    const std::function<std::string_view(int32_t)>& spelling) {
  auto usual = parse_usual(decoder, size, spelling);
  if (usual || usual.error().code != ErrorCode::kUnsupported) return usual;
  DecodePipeline pipeline;
  RUDDER_TRY(pipeline.chain_, DecodeChain::parse(decoder, size, spelling));
  pipeline.spellings_.resize(static_cast<size_t>(size));
  for (int32_t id = 0; id < size; ++id) {
    const std::string_view token = spelling(id);
    if (token.empty()) continue;
    pipeline.spellings_[static_cast<size_t>(id)] = token;
    pipeline.table_.set(id, pipeline.chain_->inside(token));
  }
  return pipeline;
}

Result<DecodePipeline> DecodePipeline::parse_usual(
    const boost::json::value& decoder, int32_t size,
    const std::function<std::string_view(int32_t)>& spelling) {
  DecodePipeline pipeline;
  if (decoder.is_null()) {
    pipeline.join_ = Join::kSpaces;
  } else {
    Usual usual{pipeline};
    RUDDER_TRY_VOID(usual.add(decoder, "decoder", 0));
  }
  for (const TokenOp& op : pipeline.ops_) {
    pipeline.first_differs_ |= op.kind == TokenOp::Kind::kMetaspace && op.prepends;
  }
  if (pipeline.first_differs_ && pipeline.join_ == Join::kByteLevel) {
    return fail(ErrorCode::kUnsupported, "Metaspace before ByteLevel is not supported", "decoder");
  }
  if (pipeline.first_differs_) pipeline.spellings_.resize(static_cast<size_t>(size));
  if (pipeline.join_ == Join::kFallback) pipeline.is_byte_.resize(static_cast<size_t>(size));
  for (int32_t id = 0; id < size; ++id) {
    const std::string_view token = spelling(id);
    if (token.empty()) continue;
    std::string text = apply(pipeline.ops_, std::string(token), false);
    if (pipeline.join_ == Join::kByteLevel) text = alphabet_bytes(text);
    if (pipeline.join_ == Join::kFallback) {
      if (const auto byte = byte_of(text)) {
        pipeline.is_byte_[id] = true;
        text.assign(1, *byte);
      }
    }
    if (pipeline.first_differs_) pipeline.spellings_[id] = token;
    pipeline.table_.set(id, text);
  }
  return pipeline;
}

std::string DecodePipeline::apply(const std::vector<TokenOp>& ops, std::string text, bool first) {
  for (const TokenOp& op : ops) {
    if (op.kind == TokenOp::Kind::kReplace) {
      text = replace_all(text, op.from, op.to);
    } else if (op.kind == TokenOp::Kind::kMetaspace) {
      text = replace_all(text, op.from, first && op.prepends ? "" : " ");
    } else {
      std::string_view view = text;
      for (size_t i = 0; i < op.start && view.starts_with(op.from); ++i) {
        view.remove_prefix(op.from.size());
      }
      for (size_t i = 0; i < op.stop && view.ends_with(op.from); ++i) {
        view.remove_suffix(op.from.size());
      }
      text = std::string(view);
    }
  }
  return text;
}

void DecodePipeline::push(DecodeState& state, int32_t id, std::string& out) const {
  if (!table_.contains(id)) return;
  if (chain_) return chain_->push(state.chain, spellings_[static_cast<size_t>(id)], out);
  const bool first = !state.any_token;
  state.any_token = true;
  if (state.prompt_bytes > 0) drop_prompt_bytes(state, table_.get(id));
  if (join_ == Join::kByteLevel) {
    state.pending += table_.get(id);
    if (!table_.get(id).empty()) state.prompt_bytes = 0;
    if (!text_strip_) {
      drain_utf8(state.pending, false, out);
      return;
    }
    std::string text;
    drain_utf8(state.pending, false, text);
    emit(state, text, out);
    return;
  }
  if (join_ == Join::kFallback && is_byte_[id]) {
    state.pending += table_.get(id);
    return;
  }
  end_byte_run(state, out);
  if (join_ == Join::kSpaces && !first) out.push_back(' ');
  if (first && first_differs_) {
    emit(state, apply(ops_, spellings_[id], true), out);
  } else {
    emit(state, table_.get(id), out);
  }
}

void DecodePipeline::end_prompt(DecodeState& state) const {
  if (chain_) return chain_->end_prompt(state.chain);
  std::string dropped;
  drain_utf8(state.pending, false, dropped);
  std::string ignored;
  emit(state, dropped, ignored);
  state.tail.clear();
  state.prompt_bytes = state.pending.size();
}

// A prompt's unfinished character that the answer's next byte does not go on with stays the
// prompt's: no part of it is shown in the answer.
void DecodePipeline::drop_prompt_bytes(DecodeState& state, std::string_view next) {
  if (state.pending.size() > state.prompt_bytes || next.empty()) return;
  std::string character = state.pending + next.front();
  const bool is_whole = !find_invalid_utf8(character);
  std::string decided;
  drain_utf8(character, false, decided);
  if (is_whole || decided.empty()) return;
  state.pending.clear();
  state.prompt_bytes = 0;
}

void DecodePipeline::flush(DecodeState& state, std::string& out) const {
  if (chain_) return chain_->flush(state.chain, out);
  if (state.pending.size() == state.prompt_bytes) state.pending.clear();
  if (join_ == Join::kByteLevel) {
    std::string text;
    drain_utf8(state.pending, true, text);
    emit(state, text, out);
  } else {
    end_byte_run(state, out);
  }
  if (text_strip_) {
    std::string_view tail = state.tail;
    for (size_t i = 0; i < text_strip_->stop && tail.ends_with(text_strip_->from); ++i) {
      tail.remove_suffix(text_strip_->from.size());
    }
    out += tail;
    state.tail.clear();
  }
}

// A run of byte tokens is one string if it is UTF-8, else one U+FFFD a byte; only its end decides.
void DecodePipeline::end_byte_run(DecodeState& state, std::string& out) const {
  if (state.pending.empty()) return;
  std::string text;
  if (find_invalid_utf8(state.pending)) {
    const size_t wrong = state.pending.size() - state.prompt_bytes;
    for (size_t i = 0; i < wrong; ++i) append_utf8(text, kReplacementChar);
  } else {
    text.swap(state.pending);
  }
  state.pending.clear();
  state.prompt_bytes = 0;
  emit(state, text, out);
}

void DecodePipeline::emit(DecodeState& state, std::string_view text, std::string& out) const {
  if (!text_strip_) {
    out += text;
    return;
  }
  const std::string_view mark = text_strip_->from;
  while (!state.in_text && !text.empty()) {
    if (state.stripped < text_strip_->start && text.starts_with(mark)) {
      text.remove_prefix(mark.size());
      ++state.stripped;
    } else {
      state.in_text = true;
    }
  }
  if (text_strip_->stop == 0) {
    out += text;
    return;
  }
  state.tail += text;
  size_t keep = state.tail.size();  // the trailing marks may yet be the end of the text
  for (size_t i = 0; i < text_strip_->stop && keep >= mark.size() &&
                     std::string_view(state.tail).substr(0, keep).ends_with(mark);
       ++i) {
    keep -= mark.size();
  }
  out.append(state.tail, 0, keep);
  state.tail.erase(0, keep);
}

}  // namespace rudder::text
