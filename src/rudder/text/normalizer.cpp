#include "rudder/text/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "rudder/base/utf8.h"
#include "rudder/text/json_fields.h"
#include "rudder/text/regex.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

// Normalises a run that has no character unknown to the reference's Unicode version.
void append_normal_form(UnicodeForm form, std::string_view run, std::string& out) {
  if (run.empty()) return;
  int options = UTF8PROC_STABLE;
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.data()),
                                             static_cast<utf8proc_ssize_t>(run.size()), &mapped,
                                             static_cast<utf8proc_option_t>(options));
  if (size < 0) throw std::bad_alloc();  // valid UTF-8 cannot fail otherwise
  out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
  std::free(mapped);
}

struct UnicodeStage : NormalizerStage {
  explicit UnicodeStage(UnicodeForm f) : form(f) {}
  Result<void> apply(std::string& text, bool&) const override {
    normalize_unicode(form, text);
    return {};
  }
  UnicodeForm form;
};

struct LowercaseStage : NormalizerStage {
  Result<void> apply(std::string& text, bool&) const override {
    std::string out;
    out.reserve(text.size());
    for (size_t pos = 0; pos < text.size();) append_lowercase(out, next_char(text, pos));
    text = std::move(out);
    return {};
  }
};

struct StripAccentsStage : NormalizerStage {
  Result<void> apply(std::string& text, bool& at_origin) const override {
    const uint8_t* flags = char_flags();
    std::string out;
    out.reserve(text.size());
    for (size_t pos = 0; pos < text.size();) {
      const size_t start = pos;
      if ((flags[next_char(text, pos)] & kMark) == 0) {
        out.append(text, start, pos - start);
      } else if (start == 0) {
        at_origin = false;
      }
    }
    text = std::move(out);
    return {};
  }
};

struct StripStage : NormalizerStage {
  StripStage(bool l, bool r) : left(l), right(r) {}
  Result<void> apply(std::string& text, bool& at_origin) const override {
    const uint8_t* flags = char_flags();
    size_t begin = 0, end = text.size();
    while (left && begin < end) {
      size_t next = begin;
      if ((flags[next_char(text, next)] & kSpace) == 0) break;
      begin = next;
    }
    while (right && end > begin) {
      size_t previous = end;
      if ((flags[previous_char(text, previous)] & kSpace) == 0) break;
      end = previous;
    }
    if (begin > 0) at_origin = false;
    text.resize(end);
    text.erase(0, begin);
    return {};
  }
  bool left, right;
};

struct PrependStage : NormalizerStage {
  explicit PrependStage(std::string p) : prefix(std::move(p)) {}
  Result<void> apply(std::string& text, bool&) const override {
    if (!text.empty()) text.insert(0, prefix);
    return {};
  }
  std::string prefix;
};

struct ReplaceStage : NormalizerStage {
  ReplaceStage(std::optional<Regex> r, std::string l, std::string c)
      : regex(std::move(r)), literal(std::move(l)), content(std::move(c)) {}
  Result<void> apply(std::string& text, bool& at_origin) const override {
    std::string out;
    out.reserve(text.size() + text.size() / 4);
    size_t from = 0;
    const auto replace = [&](size_t start, size_t end) {
      out.append(text, from, start - from);
      out += content;
      from = end;
      if (start == 0 && end > 0 && content.empty()) at_origin = false;
    };
    if (regex) {
      RUDDER_TRY_VOID(regex->for_each_match(text, replace));
    } else {
      for (size_t at = text.find(literal); at != std::string::npos;
           at = text.find(literal, at + literal.size())) {
        replace(at, at + literal.size());
      }
    }
    if (from == 0 && out.empty()) return {};
    out.append(text, from);
    text = std::move(out);
    return {};
  }
  std::optional<Regex> regex;
  std::string literal, content;
};

struct ByteLevelStage : NormalizerStage {
  Result<void> apply(std::string& text, bool&) const override {
    std::string out;
    out.reserve(text.size() * 2);
    for (const char c : text) append_utf8(out, byte_char(static_cast<uint8_t>(c)));
    text = std::move(out);
    return {};
  }
};

using Stages = std::vector<std::unique_ptr<const NormalizerStage>>;

Result<void> parse_stage(const boost::json::value& node, const std::string& path, int depth,
                         Stages& out) {
  RUDDER_TRY(const auto* object, as_object(node, path));
  RUDDER_TRY(const std::string type, string_field(*object, "type", path));
  if (type == "Sequence") {
    const auto* list = object->if_contains("normalizers");
    if (list == nullptr || !list->is_array() || depth > 8) {
      return fail(ErrorCode::kCorruptFile, "must be a list", path + ".normalizers");
    }
    size_t index = 0;
    for (const auto& item : list->get_array()) {
      RUDDER_TRY_VOID(
          parse_stage(item, fmt::format("{}.normalizers[{}]", path, index++), depth + 1, out));
    }
  } else if (type == "NFC") {
    out.push_back(std::make_unique<UnicodeStage>(UnicodeForm::kNfc));
  } else if (type == "NFD") {
    out.push_back(std::make_unique<UnicodeStage>(UnicodeForm::kNfd));
  } else if (type == "NFKC") {
    out.push_back(std::make_unique<UnicodeStage>(UnicodeForm::kNfkc));
  } else if (type == "NFKD") {
    out.push_back(std::make_unique<UnicodeStage>(UnicodeForm::kNfkd));
  } else if (type == "Lowercase") {
    out.push_back(std::make_unique<LowercaseStage>());
  } else if (type == "StripAccents") {
    out.push_back(std::make_unique<StripAccentsStage>());
  } else if (type == "ByteLevel") {
    out.push_back(std::make_unique<ByteLevelStage>());
  } else if (type == "Strip") {
    RUDDER_TRY(const bool left, bool_field(*object, "strip_left", true, path));
    RUDDER_TRY(const bool right, bool_field(*object, "strip_right", true, path));
    out.push_back(std::make_unique<StripStage>(left, right));
  } else if (type == "Prepend") {
    RUDDER_TRY(std::string prefix, string_field(*object, "prepend", path));
    out.push_back(std::make_unique<PrependStage>(std::move(prefix)));
  } else if (type == "Replace") {
    RUDDER_TRY(PatternField pattern, pattern_field(*object, path));
    RUDDER_TRY(std::string content, string_field(*object, "content", path));
    std::optional<Regex> regex;
    if (pattern.is_regex) {
      RUDDER_TRY(regex, Regex::compile(pattern.text, path + ".pattern"));
    } else if (pattern.text.empty()) {
      return fail(ErrorCode::kCorruptFile, "must not be empty", path + ".pattern");
    }
    out.push_back(std::make_unique<ReplaceStage>(std::move(regex), std::move(pattern.text),
                                                 std::move(content)));
  } else {
    return unsupported_component("normalizer", type, path);
  }
  return {};
}

}  // namespace

bool is_nfc_inert(char32_t c) {
  return c < 0x300 || (c >= 0x400 && c <= 0x482) || (c >= 0x5D0 && c <= 0x5EA) ||
         (c >= 0x620 && c <= 0x64A) || (c >= 0x2010 && c <= 0x2027) ||
         (c >= 0x3041 && c <= 0x3098) || (c >= 0x309B && c <= 0x30FF) ||
         (c >= 0x3400 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) ||
         (c >= 0xFF01 && c <= 0xFFEE) || (c >= 0x1F300 && c <= 0x1FAFF);
}

void normalize_unicode(UnicodeForm form, std::string& text) {
  bool inert = true;
  for (size_t pos = 0; pos < text.size() && inert;) {
    const char32_t c = next_char(text, pos);
    inert = form == UnicodeForm::kNfc ? is_nfc_inert(c) : c < 0x80;
  }
  if (inert) return;
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  size_t run = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = next_char(text, pos);
    if (in_ranges(kUnknownToNormaliser, c) || in_ranges(kLaterCategory, c)) {
      append_normal_form(form, std::string_view(text).substr(run, start - run), out);
      out.append(text, start, pos - start);
      run = pos;
    }
  }
  append_normal_form(form, std::string_view(text).substr(run), out);
  text = std::move(out);
}

Result<Normalizer> Normalizer::parse(const boost::json::value& node) {
  Normalizer normalizer;
  if (!node.is_null()) {
    RUDDER_TRY_VOID(parse_stage(node, "normalizer", 0, normalizer.stages_));
  }
  return normalizer;
}

Result<void> Normalizer::apply(std::string& text, bool& at_origin) const {
  for (const auto& stage : stages_) RUDDER_TRY_VOID(stage->apply(text, at_origin));
  return {};
}

}  // namespace rudder::text
