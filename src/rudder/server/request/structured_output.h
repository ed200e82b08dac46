// Reads the fields of a request about the form of its output: the format of its API
// (`response_format`), `structured_outputs`, and other servers' names for them. Runs on the
// tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <string>

#include "rudder/base/result.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/dialect/dialect.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/text/tokenizer.h"

namespace rudder::server {

struct StructuredOutput {
  std::optional<constraint::GrammarSpec> spec;  // nothing: any text
  std::string path;                             // of the field that the spec's text came from
  bool is_of_text = false;                      // the API's own format, which no call has to have

  // The spec for an answer that may have thoughts in front, which the spec does not bind.
  // kInvalidArgument for a spec that is at fault by itself.
  Result<constraint::GrammarSpec> after_thoughts(const dialect::ParserSetup& setup,
                                                 const text::Tokenizer& tokenizer) const;
  // The spec as a format inside a structural tag. An Error is the spec's own.
  Result<boost::json::object> content() const;
  // An error of the spec, with the field in front of its path.
  Error blame(Error error) const;
};

// The field in which an API has the format of a text.
struct FormatField {
  const boost::json::value* value = nullptr;  // null: absent
  std::string path = {};
  bool has_wrapper = false;  // the schema is in an object `json_schema`, else beside the type
};

// Errors stay in `reader`. At most one field may ask for a form.
StructuredOutput read_structured_output(FieldReader& reader, const FormatField& format);
// With chat's `response_format`.
StructuredOutput read_structured_output(FieldReader& reader);

}  // namespace rudder::server
