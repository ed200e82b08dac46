// For tests of schemas: what their forms accept.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "rudder/constraint/form_checker.h"

namespace rudder::constraint {

using Documents = std::initializer_list<const char*>;

inline void expect_documents(const char* schema, Documents valid, Documents invalid) {
  const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
  ASSERT_TRUE(form) << schema << ": " << form.error().to_string();
  for (const char* text : valid) EXPECT_TRUE(form->accepts(text)) << schema << " and " << text;
  for (const char* text : invalid) EXPECT_FALSE(form->accepts(text)) << schema << " and " << text;
}

// Where a schema is refused.
inline std::string form_error_path(const std::string& schema) {
  const auto form = FormChecker::make({.kind = GrammarKind::kJsonSchema, .text = schema});
  return form ? "accepted" : form.error().where;
}

}  // namespace rudder::constraint
