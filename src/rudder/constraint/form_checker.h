// For this room's tests: compiles forms over a vocabulary of bytes and some longer tokens, and
// matches outputs token by token and byte by byte. Any thread, one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/constraint/form_engine.h"
#include "rudder/constraint/grammar_spec.h"

namespace rudder::constraint {

inline constexpr int32_t kCheckerStop = 256;

// The bytes, the stop token, and tokens that begin and end anywhere in JSON.
inline Vocabulary checker_vocabulary() {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.token_bytes.emplace_back(1, static_cast<char>(byte));
  }
  vocabulary.token_bytes.emplace_back();
  for (const char* longer : {"\": ",
                             "\", \"",
                             "{\"",
                             "\"}",
                             "\"a",
                             "\",",
                             " \"",
                             "\"\"",
                             "\":\"",
                             "null",
                             "00",
                             "12",
                             "-1",
                             ".5",
                             "1,",
                             ",1,",
                             "2,1",
                             ",0",
                             "0]",
                             "1,-1,",
                             "ab",
                             "abc",
                             "abcdefgh",
                             "a\"",
                             "b\",",
                             "aa\"}",
                             "\xC3",
                             "\xC3\xA9",
                             "\xA9\"",
                             "\xA9z",
                             "\xE2\x82",
                             "\xAC",
                             "\\u",
                             "\\n\"",
                             "\\\\",
                             "\\\"",
                             "\"]",
                             "\\ud83d\\ude00",
                             "\xF0\x9F\x98\x80\xF0\x9F\x98\x80",
                             "de00",
                             "d83d",
                             "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    vocabulary.token_bytes.emplace_back(longer);
  }
  vocabulary.size = static_cast<int32_t>(vocabulary.token_bytes.size());
  vocabulary.stop_ids = {kCheckerStop};
  return vocabulary;
}

class FormChecker {
 public:
  static const Vocabulary& vocabulary() {
    static const Vocabulary vocabulary = checker_vocabulary();
    return vocabulary;
  }
  static const FormEngine& engine() {
    static const FormEngine engine(vocabulary(), 1 << 20);
    return engine;
  }
  static Result<FormChecker> make(const GrammarSpec& spec) {
    RUDDER_TRY(CompiledConstraint compiled, engine().compile(spec));
    return FormChecker(std::move(compiled.constraint));
  }

  static std::vector<uint32_t> allowed(Matcher& matcher) {
    std::vector<uint32_t> words(mask_words(vocabulary().size), ~uint32_t{0});
    if (!matcher.restrict(words)) std::fill(words.begin(), words.end(), 0u);
    return words;
  }
  static bool has(const std::vector<uint32_t>& words, int32_t token) {
    const auto at = static_cast<size_t>(token);
    return (words[at / 32] >> (at % 32) & 1) != 0;
  }

  std::unique_ptr<Matcher> start() const { return constraint_->start(); }
  // The matcher behind these bytes, taken one by one; null where one of them is not allowed.
  std::unique_ptr<Matcher> behind(std::string_view text) const {
    auto matcher = start();
    for (const char c : text) {
      const auto token = static_cast<int32_t>(static_cast<unsigned char>(c));
      if (!has(allowed(*matcher), token) || !matcher->advance(token)) return nullptr;
    }
    return matcher;
  }
  // The whole text is an output.
  bool accepts(std::string_view text) const {
    const auto matcher = behind(text);
    return matcher != nullptr && has(allowed(*matcher), kCheckerStop);
  }

 private:
  explicit FormChecker(std::shared_ptr<const Constraint> constraint)
      : constraint_(std::move(constraint)) {}

  std::shared_ptr<const Constraint> constraint_;
};

}  // namespace rudder::constraint
