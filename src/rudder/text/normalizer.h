// Normalizer: the `normalizer` of a tokenizer.json, a chain of text-to-text stages. Owned by the
// Tokenizer, called by encode. Immutable: safe from any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::text {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Replaces `text` (valid UTF-8) by its normal form in the reference's Unicode version.
void normalize_unicode(UnicodeForm form, std::string& text);

// A character that NFC leaves alone whatever stands beside it: it is its own normal form, has
// combining class 0 and is the second half of no composition. True of most text, which is then not
// touched; false for some characters that are inert all the same.
bool is_nfc_inert(char32_t c);

struct NormalizerStage {
  virtual ~NormalizerStage() = default;
  // `at_origin`: the text's first character is the first of the original text. Cleared by stages
  // that remove it (the Metaspace scheme "first" asks).
  virtual Result<void> apply(std::string& text, bool& at_origin) const = 0;
};

class Normalizer {
 public:
  // `node` may be null: nothing is changed. kUnsupported names the stage.
  static Result<Normalizer> parse(const boost::json::value& node);
  Result<void> apply(std::string& text, bool& at_origin) const;
  bool empty() const { return stages_.empty(); }

 private:
  std::vector<std::unique_ptr<const NormalizerStage>> stages_;
};

}  // namespace rudder::text
