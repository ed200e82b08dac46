#include "rudder/text/decode_stage.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <optional>
#include <utility>

#include "rudder/base/utf8.h"
#include "rudder/text/json_fields.h"
#include "rudder/text/regex.h"
#include "rudder/text/unicode.h"

namespace rudder::text {

bool append_alphabet_bytes(std::string_view token, std::string& out) {
  const size_t before = out.size();
  for (size_t pos = 0; pos < token.size();) {
    const auto byte = char_byte(next_char(token, pos));
    if (!byte) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(*byte));
  }
  return true;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos;
       at = text.find(from, at + from.size())) {
    out += text.substr(done, at - done);
    out += to;
    done = at + from.size();
  }
  out += text.substr(done);
  return out;
}

void DecodeStage::finish(DecodeStageState& state, const DecodeSink& next) const {
  if (state.is_open) take(state, {}, true, next);  // of a fused token
}

namespace {

bool is_in_alphabet(std::string_view text) {
  std::string ignored;
  return append_alphabet_bytes(text, ignored);
}

// A stage that looks at whole tokens. Of one that is fused from all, that is at the end.
class WholeTokens : public DecodeStage {
 public:
  void take(DecodeStageState& state, std::string_view piece, bool ends,
            const DecodeSink& next) const final {
    state.is_open = !ends;
    state.held += piece;
    if (!ends) return;
    std::string token;
    token.swap(state.held);
    end_token(state, std::move(token), next);
    ++state.tokens;
  }

 protected:
  virtual void end_token(DecodeStageState& state, std::string token,
                         const DecodeSink& next) const = 0;
};

class FuseDecoder : public DecodeStage {
  void take(DecodeStageState&, std::string_view piece, bool,
            const DecodeSink& next) const override {
    next(piece, false);
  }
  void finish(DecodeStageState&, const DecodeSink& next) const override { next({}, true); }
  bool leaves_alphabet(bool) const override { return false; }
};

// Replaces a string. A piece's end that may begin one waits for the next piece.
class ReplaceDecoder : public DecodeStage {
 public:
  ReplaceDecoder(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}

  void take(DecodeStageState& state, std::string_view piece, bool ends,
            const DecodeSink& next) const override {
    state.is_open = !ends;
    state.held += piece;
    size_t done = 0;
    std::string out;
    for (size_t at = state.held.find(from_); at != std::string::npos;
         at = state.held.find(from_, done)) {
      out.append(state.held, done, at - done);
      out += to_;
      done = at + from_.size();
    }
    size_t sure = state.held.size();
    if (!ends) {
      sure = std::max(done, sure - std::min(sure, from_.size() - 1));
      while (sure < state.held.size() &&
             !std::string_view(from_).starts_with(std::string_view(state.held).substr(sure))) {
        ++sure;
      }
    }
    out.append(state.held, done, sure - done);
    state.held.erase(0, sure);
    if (!out.empty() || ends) next(out, ends);
  }
  std::string inside(std::string token) const override { return replace_all(token, from_, to_); }
  bool leaves_alphabet(bool) const override { return is_in_alphabet(from_); }

 private:
  std::string from_, to_;
};

class RegexReplaceDecoder : public WholeTokens {
 public:
  RegexReplaceDecoder(Regex regex, std::string to) : regex_(std::move(regex)), to_(std::move(to)) {}
  std::string inside(std::string token) const override {
    std::string out;
    size_t done = 0;
    const auto replaced = regex_.for_each_match(token, [&](size_t start, size_t end) {
      out.append(token, done, start - done);
      out += to_;
      done = end;
    });
    if (!replaced) return token;
    out.append(token, done);
    return out;
  }

 protected:
  void end_token(DecodeStageState&, std::string token, const DecodeSink& next) const override {
    next(inside(std::move(token)), true);
  }

 private:
  Regex regex_;
  std::string to_;
};

// Up to so many of one character from each end of a token.
class StripDecoder : public DecodeStage {
 public:
  StripDecoder(std::string mark, size_t start, size_t stop)
      : mark_(std::move(mark)), start_(start), stop_(stop) {}

  void take(DecodeStageState& state, std::string_view piece, bool ends,
            const DecodeSink& next) const override {
    state.is_open = !ends;
    state.held += piece;
    std::string_view rest = state.held;
    while (!state.is_decided && state.stripped < start_ && rest.starts_with(mark_)) {
      rest.remove_prefix(mark_.size());
      ++state.stripped;
    }
    state.is_decided = state.is_decided || state.stripped == start_ || !rest.empty();
    size_t sure = rest.size();
    for (size_t i = 0; i < stop_ && rest.substr(0, sure).ends_with(mark_); ++i) {
      sure -= mark_.size();
    }
    if (sure > 0 || ends) next(rest.substr(0, sure), ends);
    if (ends) {
      state = {.held = {}, .bytes = {}, .tokens = state.tokens + 1};
    } else {
      state.held = std::string(rest.substr(sure));
    }
  }
  std::string inside(std::string token) const override {
    DecodeStageState state;
    std::string out;
    take(state, token, true, [&](std::string_view piece, bool) { out += piece; });
    return out;
  }
  bool leaves_alphabet(bool) const override { return false; }

 private:
  std::string mark_;
  size_t start_, stop_;
};

// Marks are blanks; those of the first token are nothing, where the encoder put one in front.
class MetaspaceDecoder : public DecodeStage {
 public:
  MetaspaceDecoder(std::string mark, bool prepends) : mark_(std::move(mark)), prepends_(prepends) {}
  void take(DecodeStageState& state, std::string_view piece, bool ends,
            const DecodeSink& next) const override {
    state.is_open = !ends;
    next(replace_all(piece, mark_, state.tokens == 0 && prepends_ ? "" : " "), ends);
    if (ends) ++state.tokens;
  }
  std::string inside(std::string token) const override { return replace_all(token, mark_, " "); }
  bool leaves_alphabet(bool) const override { return is_in_alphabet(mark_); }

 private:
  std::string mark_;
  bool prepends_;
};

}  // namespace

std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const char* const end = token.data() + 5;
  const auto [stop, error] = std::from_chars(token.data() + 3, end, byte, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return static_cast<char>(byte);
}

namespace {

// "<0xAB>" tokens are bytes; a run of them that is not UTF-8 is one U+FFFD for each.
class ByteFallbackDecoder : public DecodeStage {
 public:
  void take(DecodeStageState& state, std::string_view piece, bool ends,
            const DecodeSink& next) const override {
    state.is_open = !ends;
    if (state.is_decided) {  // no byte token: the rest of a long one
      next(piece, ends);
    } else {
      state.held += piece;
      const size_t size = state.held.size();
      constexpr std::string_view kBegin = "<0x";
      const bool may_be =
          size <= 6 &&
          std::string_view(state.held).starts_with(kBegin.substr(0, std::min(size, kBegin.size())));
      if (!ends && may_be) return;
      const auto byte = ends ? byte_of(state.held) : std::nullopt;
      if (byte) {
        state.bytes.push_back(*byte);
      } else {
        end_run(state, next);
        next(state.held, ends);
        state.is_decided = true;
      }
      state.held.clear();
    }
    if (ends) state.is_decided = false;
  }
  void finish(DecodeStageState& state, const DecodeSink& next) const override {
    DecodeStage::finish(state, next);
    end_run(state, next);
  }
  std::string inside(std::string token) const override {
    const auto byte = byte_of(token);
    return byte ? std::string(1, *byte) : token;
  }
  bool leaves_alphabet(bool has_byte_tokens) const override { return has_byte_tokens; }

 private:
  static void end_run(DecodeStageState& state, const DecodeSink& next) {
    if (state.bytes.empty()) return;
    if (!find_invalid_utf8(state.bytes)) {
      next(state.bytes, true);
    } else {
      std::string mark;
      append_utf8(mark, kReplacementChar);
      for (size_t i = 0; i < state.bytes.size(); ++i) next(mark, true);
    }
    state.bytes.clear();
  }
};

// A token of the byte alphabet alone is its bytes, another one itself; all of them are one text. Of
// a token that is fused from all, that shows at its end, or at the first character outside the
// alphabet; until then only what reads alike both ways goes on.
class ByteLevelDecoder : public DecodeStage {
 public:
  void take(DecodeStageState& state, std::string_view piece, bool ends,
            const DecodeSink& next) const override {
    state.is_open = !ends;
    if (state.is_decided) {
      state.bytes += piece;
    } else {
      state.held += piece;
      std::string decoded;
      const bool is_alphabet = append_alphabet_bytes(state.held, decoded);
      if (ends || always_) {
        state.bytes += is_alphabet ? decoded : state.held;
        state.held.clear();
      } else if (!is_alphabet) {
        state.bytes += state.held;
        state.held.clear();
        state.is_decided = true;
      } else {
        size_t alike = 0;
        while (alike < state.held.size() && state.held[alike] > ' ' && state.held[alike] < '\x7f') {
          ++alike;
        }
        state.bytes.append(state.held, 0, alike);
        state.held.erase(0, alike);
      }
    }
    if (ends) state.is_decided = false;
    std::string text;
    drain_utf8(state.bytes, false, text);
    if (!text.empty()) next(text, false);
  }
  void finish(DecodeStageState& state, const DecodeSink& next) const override {
    DecodeStage::finish(state, next);
    std::string text;
    drain_utf8(state.bytes, true, text);
    next(text, true);
  }
  std::string inside(std::string token) const override {
    std::string bytes;
    return append_alphabet_bytes(token, bytes) ? bytes : token;
  }
  void expect_alphabet() override { always_ = true; }

 private:
  bool always_ = false;
};

std::string clean_up(std::string text) {
  for (const auto& [from, to] : {std::pair{" .", "."},
                                 {" ?", "?"},
                                 {" !", "!"},
                                 {" ,", ","},
                                 {" ' ", "'"},
                                 {" n't", "n't"},
                                 {" 'm", "'m"},
                                 {" do not", " don't"},
                                 {" 's", "'s"},
                                 {" 've", "'ve"},
                                 {" 're", "'re"}}) {
    text = replace_all(text, from, to);
  }
  return text;
}

class WordPieceDecoder : public WholeTokens {
 public:
  WordPieceDecoder(std::string prefix, bool cleans) : prefix_(std::move(prefix)), cleans_(cleans) {}
  std::string inside(std::string token) const override { return one(std::move(token), false); }

 protected:
  void end_token(DecodeStageState& state, std::string token,
                 const DecodeSink& next) const override {
    next(one(std::move(token), state.tokens == 0), true);
  }

 private:
  std::string one(std::string token, bool is_first) const {
    if (!is_first && token.starts_with(prefix_)) {
      token.erase(0, prefix_.size());
    } else if (!is_first) {
      token.insert(0, " ");
    }
    return cleans_ ? clean_up(std::move(token)) : token;
  }
  std::string prefix_;
  bool cleans_;
};

// A suffix is a blank, that of the last token nothing: a token goes on when the next one comes.
class BpeSuffixDecoder : public WholeTokens {
 public:
  explicit BpeSuffixDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void finish(DecodeStageState& state, const DecodeSink& next) const override {
    DecodeStage::finish(state, next);
    if (state.tokens > 0) next(replace_all(state.bytes, suffix_, ""), true);
  }
  std::string inside(std::string token) const override { return replace_all(token, suffix_, " "); }

 protected:
  void end_token(DecodeStageState& state, std::string token,
                 const DecodeSink& next) const override {
    if (state.tokens > 0) next(replace_all(state.bytes, suffix_, " "), true);
    state.bytes = std::move(token);
  }

 private:
  std::string suffix_;
};

class CtcDecoder : public WholeTokens {
 public:
  CtcDecoder(std::string pad, std::string word, bool cleans)
      : pad_(std::move(pad)), word_(std::move(word)), cleans_(cleans) {}
  std::string inside(std::string token) const override {
    std::string text = replace_all(token, pad_, "");
    return cleans_ ? replace_all(clean_up(std::move(text)), word_, " ") : text;
  }

 protected:
  void end_token(DecodeStageState& state, std::string token,
                 const DecodeSink& next) const override {
    if (state.tokens > 0 && token == state.bytes) return;  // the one before, again
    const std::string text = inside(token);
    state.bytes = std::move(token);
    if (!text.empty()) next(text, true);
  }

 private:
  std::string pad_, word_;
  bool cleans_;
};

Result<std::string> mark_field(const boost::json::object& node, std::string_view key,
                               const std::string& path) {
  RUDDER_TRY(std::string mark, string_field(node, key, path));
  if (mark.empty()) {
    return fail(ErrorCode::kCorruptFile, "must not be empty", join_path(path, key));
  }
  return mark;
}

using Made = Result<std::unique_ptr<DecodeStage>>;

Made make_replace(const boost::json::object& node, const std::string& path) {
  RUDDER_TRY(PatternField pattern, pattern_field(node, path));
  RUDDER_TRY(std::string content, string_field(node, "content", path));
  if (pattern.is_regex) {
    RUDDER_TRY(Regex regex, Regex::compile(pattern.text, path + ".pattern"));
    return std::make_unique<RegexReplaceDecoder>(std::move(regex), std::move(content));
  }
  if (pattern.text.empty()) {
    return fail(ErrorCode::kCorruptFile, "must not be empty", path + ".pattern");
  }
  return std::make_unique<ReplaceDecoder>(std::move(pattern.text), std::move(content));
}

Made make_strip(const boost::json::object& node, const std::string& path) {
  RUDDER_TRY(std::string mark, mark_field(node, "content", path));
  RUDDER_TRY(const int64_t start, int_field(node, "start", 0, 1 << 20, path));
  RUDDER_TRY(const int64_t stop, int_field(node, "stop", 0, 1 << 20, path));
  return std::make_unique<StripDecoder>(std::move(mark), static_cast<size_t>(start),
                                        static_cast<size_t>(stop));
}

Made make_metaspace(const boost::json::object& node, const std::string& path) {
  RUDDER_TRY(std::string mark, mark_field(node, "replacement", path));
  RUDDER_TRY(bool prepends, bool_field(node, "add_prefix_space", true, path));
  if (node.if_contains("prepend_scheme") != nullptr) {
    RUDDER_TRY(const std::string scheme, string_field(node, "prepend_scheme", path));
    prepends = scheme != "never";
  }
  return std::make_unique<MetaspaceDecoder>(std::move(mark), prepends);
}

}  // namespace

Made make_decode_stage(const boost::json::object& node, const std::string& type,
                       const std::string& path) {
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Replace") return make_replace(node, path);
  if (type == "Strip") return make_strip(node, path);
  if (type == "Metaspace") return make_metaspace(node, path);
  if (type == "WordPiece") {
    RUDDER_TRY(std::string prefix, mark_field(node, "prefix", path));
    RUDDER_TRY(const bool cleans, bool_field(node, "cleanup", true, path));
    return std::make_unique<WordPieceDecoder>(std::move(prefix), cleans);
  }
  if (type == "BPEDecoder") {
    RUDDER_TRY(std::string suffix, mark_field(node, "suffix", path));
    return std::make_unique<BpeSuffixDecoder>(std::move(suffix));
  }
  if (type == "CTC") {
    RUDDER_TRY(std::string pad, mark_field(node, "pad_token", path));
    RUDDER_TRY(std::string word, mark_field(node, "word_delimiter_token", path));
    RUDDER_TRY(const bool cleans, bool_field(node, "cleanup", true, path));
    return std::make_unique<CtcDecoder>(std::move(pad), std::move(word), cleans);
  }
  return unsupported_component("decoder", type, path);
}

}  // namespace rudder::text
