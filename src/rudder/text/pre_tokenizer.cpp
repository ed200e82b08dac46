#include "rudder/text/pre_tokenizer.h"

#include <array>
#include <optional>
#include <utility>

#include "rudder/base/utf8.h"
#include "rudder/text/json_fields.h"
#include "rudder/text/regex.h"
#include "rudder/text/splitters.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

enum class Behavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

// Takes the matches and the gaps of one piece, in order and without holes, and appends the pieces
// that the behavior makes of them.
class SplitSink {
 public:
  SplitSink(Behavior behavior, bool invert, const Piece& piece, std::vector<Piece>& out)
      : behavior_(behavior), invert_(invert), piece_(piece), out_(out), first_(out.size()) {}

  void add(size_t begin, size_t end, bool is_match) {
    is_match ^= invert_;
    switch (behavior_) {
      case Behavior::kIsolated:
        push(begin, end);
        break;
      case Behavior::kRemoved:
        if (!is_match) push(begin, end);
        break;
      case Behavior::kContiguous:
        extend_or_push(begin, end, is_match == previous_);
        break;
      case Behavior::kMergedWithPrevious:
        extend_or_push(begin, end, is_match && !previous_);
        break;
      case Behavior::kMergedWithNext:
        if (is_match) {
          flush_held();
          held_ = begin;
          held_end_ = end;
        } else {
          push(held_ ? *held_ : begin, end);
          held_.reset();
        }
        break;
    }
    previous_ = is_match;
  }

  void finish() {
    flush_held();
    if (has_empty_) {
      out_.erase(std::remove_if(out_.begin() + static_cast<ptrdiff_t>(first_), out_.end(),
                                [](const Piece& p) { return p.begin == p.end; }),
                 out_.end());
    }
  }

 private:
  void push(size_t begin, size_t end) {
    if (begin == end) has_empty_ = true;
    out_.push_back({piece_.begin + static_cast<uint32_t>(begin),
                    piece_.begin + static_cast<uint32_t>(end), piece_.at_origin && begin == 0});
  }
  void extend_or_push(size_t begin, size_t end, bool extend) {
    if (extend && out_.size() > first_) {
      out_.back().end = piece_.begin + static_cast<uint32_t>(end);
    } else {
      push(begin, end);
    }
  }
  void flush_held() {
    if (held_) push(*held_, held_end_);
    held_.reset();
  }

  Behavior behavior_;
  bool invert_;
  const Piece& piece_;
  std::vector<Piece>& out_;
  size_t first_;
  bool previous_ = false;
  bool has_empty_ = false;
  std::optional<size_t> held_;
  size_t held_end_ = 0;
};

// A stage that cuts pieces and leaves the text alone. `matches(view, sink)` feeds the sink.
template <typename Matches>
Result<void> split_all(Pieces& pieces, Behavior behavior, bool invert, const Matches& matches) {
  pieces.next.clear();
  for (const Piece& piece : pieces.list) {
    SplitSink sink(behavior, invert, piece, pieces.next);
    RUDDER_TRY_VOID(matches(pieces.view(piece), sink));
    sink.finish();
  }
  pieces.list.swap(pieces.next);
  return {};
}

// Feeds the matches [start, end) of a pattern and the gaps between them.
class GapFiller {
 public:
  GapFiller(std::string_view text, SplitSink& sink) : text_(text), sink_(sink) {}
  void match(size_t start, size_t end) {
    if (done_ != start) sink_.add(done_, start, false);
    sink_.add(start, end, true);
    done_ = end;
  }
  void finish() {
    if (done_ != text_.size()) sink_.add(done_, text_.size(), false);
  }

 private:
  std::string_view text_;
  SplitSink& sink_;
  size_t done_ = 0;
};

struct SplitStage : PreTokenizerStage {
  Result<void> apply(Pieces& pieces) const override {
    return split_all(pieces, behavior, invert,
                     [this](std::string_view text, SplitSink& sink) -> Result<void> {
                       GapFiller filler(text, sink);
                       if (splitter != nullptr) {
                         for (size_t pos = 0; pos < text.size();) {
                           const size_t end = splitter(text, pos);
                           filler.match(pos, end);
                           pos = end;
                         }
                       } else if (regex) {
                         RUDDER_TRY_VOID(regex->for_each_match(
                             text, [&](size_t start, size_t end) { filler.match(start, end); }));
                       } else {
                         for (size_t at = text.find(literal); at != std::string_view::npos;
                              at = text.find(literal, at + literal.size())) {
                           filler.match(at, at + literal.size());
                         }
                       }
                       filler.finish();
                       return {};
                     });
  }
  Splitter splitter = nullptr;
  std::optional<Regex> regex;
  std::string literal;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
};

// Each character of a class is one match.
struct CharClassStage : PreTokenizerStage {
  using Test = bool (*)(char32_t);
  CharClassStage(Test t, Behavior b) : test(t), behavior(b) {}
  Result<void> apply(Pieces& pieces) const override {
    return split_all(pieces, behavior, false,
                     [this](std::string_view text, SplitSink& sink) -> Result<void> {
                       GapFiller filler(text, sink);
                       for (size_t pos = 0; pos < text.size();) {
                         const size_t start = pos;
                         if (test(next_char(text, pos))) filler.match(start, pos);
                       }
                       filler.finish();
                       return {};
                     });
  }
  Test test;
  Behavior behavior;
};

// \w+|[^\w\s]+ are the pieces.
struct WhitespaceStage : PreTokenizerStage {
  Result<void> apply(Pieces& pieces) const override {
    const uint8_t* flags = char_flags();
    const auto kind = [flags](char32_t c) {
      return is_word_char(c) ? 1 : (flags[c] & kSpace) != 0 ? 2 : 3;
    };
    pieces.next.clear();
    for (const Piece& piece : pieces.list) {
      const std::string_view text = pieces.view(piece);
      int run_kind = 2;
      for (size_t pos = 0; pos < text.size();) {
        const auto start = static_cast<uint32_t>(pos);
        const int now = kind(next_char(text, pos));
        const uint32_t end = piece.begin + static_cast<uint32_t>(pos);
        if (now != 2 && now == run_kind) {
          pieces.next.back().end = end;
        } else if (now != 2) {
          pieces.next.push_back({piece.begin + start, end, piece.at_origin && start == 0});
        }
        run_kind = now;
      }
    }
    pieces.list.swap(pieces.next);
    return {};
  }
};

// Rewrites the text: each piece is passed through `rewrite(view, at_origin, out)`.
template <typename Rewrite>
void rewrite_all(Pieces& pieces, const Rewrite& rewrite) {
  pieces.next_text.clear();
  for (Piece& piece : pieces.list) {
    const auto begin = static_cast<uint32_t>(pieces.next_text.size());
    rewrite(pieces.view(piece), piece.at_origin, pieces.next_text);
    piece.begin = begin;
    piece.end = static_cast<uint32_t>(pieces.next_text.size());
  }
  pieces.text.swap(pieces.next_text);
}

struct MetaspaceStage : PreTokenizerStage {
  enum class Prepend { kNever, kFirst, kAlways };
  Result<void> apply(Pieces& pieces) const override {
    rewrite_all(pieces, [this](std::string_view text, bool at_origin, std::string& out) {
      const bool wants = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && at_origin);
      const bool has = text.starts_with(' ') || text.starts_with(replacement);
      if (wants && !has) out += replacement;
      for (const char c : text) {
        if (c == ' ') {
          out += replacement;
        } else {
          out.push_back(c);
        }
      }
    });
    if (!split) return {};
    return split_all(pieces, Behavior::kMergedWithNext, false,
                     [this](std::string_view text, SplitSink& sink) -> Result<void> {
                       GapFiller filler(text, sink);
                       for (size_t at = text.find(replacement); at != std::string_view::npos;
                            at = text.find(replacement, at + replacement.size())) {
                         filler.match(at, at + replacement.size());
                       }
                       filler.finish();
                       return {};
                     });
  }
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

struct PrefixSpaceStage : PreTokenizerStage {
  Result<void> apply(Pieces& pieces) const override {
    rewrite_all(pieces, [](std::string_view text, bool, std::string& out) {
      if (!text.starts_with(' ')) out.push_back(' ');
      out += text;
    });
    return {};
  }
};

struct ByteAlphabetStage : PreTokenizerStage {
  Result<void> apply(Pieces& pieces) const override {
    rewrite_all(pieces, [](std::string_view text, bool, std::string& out) {
      for (const char c : text) append_utf8(out, byte_char(static_cast<uint8_t>(c)));
    });
    return {};
  }
};

bool is_space(char32_t c) {
  return (char_flags()[c] & kSpace) != 0;
}
bool is_punctuation(char32_t c) {
  return (char_flags()[c] & kPunctuation) != 0;
}

Result<Behavior> behavior_field(const boost::json::object& node, std::string_view path,
                                std::optional<Behavior> fallback) {
  static constexpr std::array<std::pair<std::string_view, Behavior>, 5> kNames = {{
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"Contiguous", Behavior::kContiguous},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
  }};
  if (fallback && node.if_contains("behavior") == nullptr) return *fallback;
  RUDDER_TRY(const std::string name, string_field(node, "behavior", path));
  for (const auto& [known, behavior] : kNames) {
    if (known == name) return behavior;
  }
  return unsupported_component("split behavior", name, join_path(path, "behavior"));
}

using PreTokenizerStages = std::vector<std::unique_ptr<const PreTokenizerStage>>;

Result<void> parse_split(const boost::json::object& object, const std::string& path,
                         PreTokenizerStages& out) {
  RUDDER_TRY(PatternField pattern, pattern_field(object, path));
  auto stage = std::make_unique<SplitStage>();
  RUDDER_TRY(stage->behavior, behavior_field(object, path, std::nullopt));
  RUDDER_TRY(stage->invert, bool_field(object, "invert", false, path));
  if (!pattern.is_regex) {
    if (pattern.text.empty()) {
      return fail(ErrorCode::kCorruptFile, "must not be empty", path + ".pattern");
    }
    stage->literal = std::move(pattern.text);
  } else if (stage->splitter = find_splitter(pattern.text); stage->splitter == nullptr) {
    RUDDER_TRY(stage->regex, Regex::compile(pattern.text, path + ".pattern"));
  }
  out.push_back(std::move(stage));
  return {};
}

Result<void> parse_metaspace(const boost::json::object& object, const std::string& path,
                             PreTokenizerStages& out) {
  auto stage = std::make_unique<MetaspaceStage>();
  RUDDER_TRY(stage->replacement, string_field(object, "replacement", path));
  if (stage->replacement.empty() ||
      utf8_length(static_cast<unsigned char>(stage->replacement[0])) != stage->replacement.size()) {
    return fail(ErrorCode::kCorruptFile, "must be one character", path + ".replacement");
  }
  RUDDER_TRY(stage->split, bool_field(object, "split", true, path));
  RUDDER_TRY(const bool prefix, bool_field(object, "add_prefix_space", true, path));
  std::string scheme = prefix ? "always" : "never";
  if (object.if_contains("prepend_scheme") != nullptr) {
    RUDDER_TRY(scheme, string_field(object, "prepend_scheme", path));
  }
  if (scheme == "first") {
    stage->prepend = MetaspaceStage::Prepend::kFirst;
  } else if (scheme == "never") {
    stage->prepend = MetaspaceStage::Prepend::kNever;
  } else if (scheme != "always") {
    return unsupported_component("prepend scheme", scheme, path + ".prepend_scheme");
  }
  out.push_back(std::move(stage));
  return {};
}

Result<void> parse_pre_tokenizer_stage(const boost::json::value& node, const std::string& path,
                                       int depth, PreTokenizerStages& out) {
  RUDDER_TRY(const auto* object, as_object(node, path));
  RUDDER_TRY(const std::string type, string_field(*object, "type", path));
  if (type == "Sequence") {
    const auto* list = object->if_contains("pretokenizers");
    if (list == nullptr || !list->is_array() || depth > 8) {
      return fail(ErrorCode::kCorruptFile, "must be a list", path + ".pretokenizers");
    }
    size_t index = 0;
    for (const auto& item : list->get_array()) {
      RUDDER_TRY_VOID(parse_pre_tokenizer_stage(
          item, fmt::format("{}.pretokenizers[{}]", path, index++), depth + 1, out));
    }
  } else if (type == "Split") {
    return parse_split(*object, path, out);
  } else if (type == "Metaspace") {
    return parse_metaspace(*object, path, out);
  } else if (type == "ByteLevel") {
    RUDDER_TRY(const bool prefix, bool_field(*object, "add_prefix_space", true, path));
    RUDDER_TRY(const bool use_regex, bool_field(*object, "use_regex", true, path));
    if (prefix) out.push_back(std::make_unique<PrefixSpaceStage>());
    if (use_regex) {
      auto stage = std::make_unique<SplitStage>();
      stage->splitter = find_splitter(kGpt2Pattern);
      out.push_back(std::move(stage));
    }
    out.push_back(std::make_unique<ByteAlphabetStage>());
  } else if (type == "Digits") {
    RUDDER_TRY(const bool single, bool_field(*object, "individual_digits", false, path));
    out.push_back(std::make_unique<CharClassStage>(
        is_numeric, single ? Behavior::kIsolated : Behavior::kContiguous));
  } else if (type == "Punctuation") {
    RUDDER_TRY(const Behavior behavior, behavior_field(*object, path, Behavior::kIsolated));
    out.push_back(std::make_unique<CharClassStage>(is_punctuation, behavior));
  } else if (type == "Whitespace") {
    out.push_back(std::make_unique<WhitespaceStage>());
  } else if (type == "WhitespaceSplit") {
    out.push_back(std::make_unique<CharClassStage>(is_space, Behavior::kRemoved));
  } else if (type == "BertPreTokenizer") {
    out.push_back(std::make_unique<CharClassStage>(is_space, Behavior::kRemoved));
    out.push_back(std::make_unique<CharClassStage>(is_punctuation, Behavior::kIsolated));
  } else {
    return unsupported_component("pre-tokenizer", type, path);
  }
  return {};
}

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const boost::json::value& node) {
  PreTokenizer result;
  if (node.is_null()) return result;
  RUDDER_TRY_VOID(parse_pre_tokenizer_stage(node, "pre_tokenizer", 0, result.stages_));
  if (!result.stages_.empty() &&
      dynamic_cast<const ByteAlphabetStage*>(result.stages_.back().get()) != nullptr) {
    result.stages_.pop_back();
    result.ends_in_bytes_ = true;
  }
  return result;
}

Result<void> PreTokenizer::apply(Pieces& pieces) const {
  for (const auto& stage : stages_) RUDDER_TRY_VOID(stage->apply(pieces));
  return {};
}

}  // namespace rudder::text
