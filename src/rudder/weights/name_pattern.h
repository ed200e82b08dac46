// NamePattern: matches the module names in a config of weights or of an adapter. There are three
// spellings: a name, which covers the modules below it too; a glob with '*' and '?'; and "re:" with
// a Python regular expression that must match from the start of the name. Load time, one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::weights {

class NamePattern {
 public:
  // `where` is put into errors: where the pattern stands in its file.
  static Result<NamePattern> parse(std::string_view text, const std::string& where);

  // kUnsupported when the regular expression gives up on the name.
  Result<bool> matches(std::string_view name) const;

 private:
  struct Code;  // a compiled regular expression
  NamePattern(std::string text, std::string where)
      : text_(std::move(text)), where_(std::move(where)) {}

  std::string text_;
  std::string where_;
  std::shared_ptr<const Code> code_;  // null: a plain name
};

}  // namespace rudder::weights
