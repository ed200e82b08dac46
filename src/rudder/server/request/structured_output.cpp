#include "rudder/server/request/structured_output.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

#include "rudder/base/exact_json.h"
#include "rudder/constraint/json_schema.h"
#include "rudder/constraint/structural_tag.h"
#include "rudder/constraint/translate.h"
#include "rudder/dialect/call_format.h"
#include "rudder/server/request/tool_fields.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

using constraint::GrammarKind;
using constraint::JsonSpace;

// How a field's value may be spelled.
enum class Spelling : uint8_t {
  kText,    // a string that is the text
  kJson,    // JSON, or a string that holds it
  kList,    // a list
  kSwitch,  // true
};

struct FormField {
  const char* name;
  GrammarKind kind;
  Spelling spelling;
};

// Of structured_outputs, as vLLM names them.
constexpr FormField kForms[] = {
    {"json", GrammarKind::kJsonSchema, Spelling::kJson},
    {"json_object", GrammarKind::kJsonObject, Spelling::kSwitch},
    {"regex", GrammarKind::kRegex, Spelling::kText},
    {"choice", GrammarKind::kChoice, Spelling::kList},
    {"grammar", GrammarKind::kEbnf, Spelling::kText},
    {"structural_tag", GrammarKind::kStructuralTag, Spelling::kJson},
};

// Of the body itself, as SGLang and llama.cpp name them.
constexpr FormField kOtherNames[] = {
    {"regex", GrammarKind::kRegex, Spelling::kText},
    {"ebnf", GrammarKind::kEbnf, Spelling::kText},
    {"grammar", GrammarKind::kEbnf, Spelling::kText},
    {"json_schema", GrammarKind::kJsonSchema, Spelling::kJson},
};

class Reader {
 public:
  explicit Reader(StructuredOutput* out) : out_(out) {}

  // The field, when it is there and on. Errors go to `reader`.
  void form(FieldReader& reader, const FormField& field) {
    const json::value* value = reader.raw(field.name);
    if (value == nullptr) return;
    std::string text;
    switch (field.spelling) {
      case Spelling::kText:
        if (!is_string(*value)) return wrong(reader, field.name, "a string", *value);
        text = value->get_string();
        if (text.empty()) return empty(reader, field.name);
        break;
      case Spelling::kJson:
        if (is_string(*value)) {
          text = value->get_string();
          if (text.empty()) return empty(reader, field.name);
        } else if (value->is_object() ||
                   (value->is_bool() && field.kind == GrammarKind::kJsonSchema)) {
          text = to_json_text(*value);
        } else {
          return wrong(reader, field.name, "an object", *value);
        }
        break;
      case Spelling::kList:
        if (!value->is_array()) return wrong(reader, field.name, "a list of strings", *value);
        if (!is_list_of_strings(reader, field.name, value->get_array())) return;
        text = to_json_text(*value);
        break;
      case Spelling::kSwitch:
        if (!value->is_bool()) return wrong(reader, field.name, "a boolean", *value);
        if (!value->get_bool()) return;
        break;
    }
    set(reader, field.name, {.kind = field.kind, .text = std::move(text)});
  }

  void set(FieldReader& reader, std::string_view name, constraint::GrammarSpec spec) {
    if (out_->spec) {
      return reader.error(
          ErrorCode::kInvalidArgument,
          fmt::format("is not allowed together with {}: one form at most", out_->path), name);
    }
    out_->spec = std::move(spec);
    out_->path = reader.path_of(name);
  }

 private:
  static void wrong(FieldReader& reader, std::string_view name, std::string_view want,
                    const json::value& value) {
    reader.error(ErrorCode::kInvalidArgument,
                 fmt::format("must be {}, not {}", want, json_type_name(value)), name);
  }
  static bool is_list_of_strings(FieldReader& reader, std::string_view name,
                                 const json::array& list) {
    if (list.empty()) reader.error(ErrorCode::kInvalidArgument, "is an empty list", name);
    for (size_t i = 0; i < list.size(); ++i) {
      if (!is_string(list[i])) wrong(reader, fmt::format("{}[{}]", name, i), "a string", list[i]);
    }
    return reader.ok();
  }
  static void empty(FieldReader& reader, std::string_view name) {
    reader.error(ErrorCode::kInvalidArgument, "is an empty string", name);
  }

  StructuredOutput* out_;
};

// {"type": "json_object"}, with a `schema` where the object has to have a form.
void read_object_format(FieldReader& format, Reader& forms) {
  const json::object* schema = format.object("schema");
  if (schema == nullptr || schema->empty()) {
    return forms.set(format, "type", {.kind = GrammarKind::kJsonObject, .text = ""});
  }
  json::object of_objects(*schema);
  if (!of_objects.contains("type")) of_objects["type"] = "object";
  forms.set(format, "schema", {.kind = GrammarKind::kJsonSchema, .text = to_json_text(of_objects)});
}

// The object that has the schema, with its name and what else is said of it.
void read_schema(FieldReader& about, Reader& forms) {
  constexpr size_t kMaxName = 1024;
  std::string ignored;
  bool strict = false;
  about.string("name", kMaxName, &ignored);
  about.skip("description");
  about.boolean("strict", &strict);  // what is generated is strict either way
  if (about.raw("schema") == nullptr) {
    about.error(ErrorCode::kInvalidArgument, "is missing", "schema");
  }
  forms.form(about, {"schema", GrammarKind::kJsonSchema, Spelling::kJson});
}

void read_schema_format(FieldReader& format, bool has_wrapper, Reader& forms) {
  if (!has_wrapper) return read_schema(format, forms);
  const json::object* wrapper = format.object("json_schema");
  if (wrapper == nullptr && format.ok()) {
    format.error(ErrorCode::kInvalidArgument, "is missing", "json_schema");
  }
  if (wrapper == nullptr) return;
  FieldReader inner(*wrapper, format.path_of("json_schema"));
  read_schema(inner, forms);
  format.adopt(inner);
}

void read_format(FieldReader& reader, const FormatField& field, Reader& forms) {
  if (field.value == nullptr) return;
  const json::object* object = field.value->if_object();
  const json::value* type = object != nullptr ? object->if_contains("type") : nullptr;
  if (type == nullptr || !type->is_string()) {
    return reader.error(ErrorCode::kInvalidArgument, "must be an object with a type", field.path);
  }
  FieldReader format(*object, field.path);
  format.skip("type");
  const std::string_view name = type->get_string();
  if (name == "json_object") {
    read_object_format(format, forms);
  } else if (name == "json_schema") {
    read_schema_format(format, field.has_wrapper, forms);
  } else if (name == "structural_tag") {
    forms.set(reader, field.path,
              {.kind = GrammarKind::kStructuralTag, .text = to_json_text(*field.value)});
    return;  // the tag has fields of its own
  } else if (name != "text") {
    format.error(ErrorCode::kInvalidArgument,
                 fmt::format("must be text, json_object, json_schema or structural_tag, not '{}'",
                             name.substr(0, 64)),
                 "type");
  }
  reader.adopt(format);
}

void read_structured_outputs(FieldReader& reader, Reader& forms, StructuredOutput* out) {
  const json::object* object = reader.object("structured_outputs");
  if (object == nullptr) return;
  FieldReader fields(*object, "structured_outputs");
  const bool had_one = out->spec.has_value();
  for (const FormField& field : kForms) forms.form(fields, field);
  bool compact = false;
  fields.boolean("disable_any_whitespace", &compact);
  fields.skip("disable_fallback");  // there is one backend
  fields.refuse("whitespace_pattern", "is not supported; disable_any_whitespace is");
  bool closed = true;
  fields.boolean("disable_additional_properties", &closed);
  if (!closed) {
    fields.error(ErrorCode::kUnsupported, "is not supported other than true",
                 "disable_additional_properties");
  }
  const std::vector<std::string> unknown = fields.ignored();
  if (fields.ok() && !unknown.empty()) {
    fields.error(ErrorCode::kInvalidArgument, "is not a known field",
                 std::string_view(unknown.front()).substr(fields.path_of("").size()));
  }
  if (fields.ok() && !had_one && !out->spec) {
    reader.error(ErrorCode::kInvalidArgument,
                 "must have one of json, json_object, regex, choice, grammar and structural_tag",
                 "structured_outputs");
  }
  if (compact && out->spec) out->spec->space = JsonSpace::kCompact;
  if (!fields.ok()) reader.adopt(fields.error());
}

}  // namespace

StructuredOutput read_structured_output(FieldReader& reader) {
  return read_structured_output(
      reader,
      {.value = reader.raw("response_format"), .path = "response_format", .has_wrapper = true});
}

StructuredOutput read_structured_output(FieldReader& reader, const FormatField& format) {
  StructuredOutput out;
  Reader forms(&out);
  read_format(reader, format, forms);
  out.is_of_text = out.spec.has_value();
  read_structured_outputs(reader, forms, &out);
  for (const FormField& field : kOtherNames) forms.form(reader, field);
  for (const char* name :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "guided_whitespace_pattern", "guided_decoding_backend", "structural_tag"}) {
    reader.refuse(name, "is not supported; use structured_outputs");
  }
  if (reader.ok() && out.spec && out.spec->kind == GrammarKind::kJsonSchema) {
    for (const std::string& path : constraint::ignored_in_schema(out.spec->text)) {
      reader.ignore(out.path + path);
    }
  }
  return out;
}

Result<constraint::GrammarSpec> StructuredOutput::after_thoughts(
    const dialect::ParserSetup& setup, const text::Tokenizer& tokenizer) const {
  if (setup.reasoning == nullptr) return *spec;
  if (spec->kind == GrammarKind::kStructuralTag) return *spec;
  RUDDER_TRY(const json::object format, content());
  return constraint::GrammarSpec{
      .kind = GrammarKind::kStructuralTag,
      .text = to_json_text(dialect::format_after_thoughts(setup, format, special_marks(tokenizer))),
      .space = spec->space};
}

Result<json::object> StructuredOutput::content() const {
  constraint::Fuel fuel(constraint::Fuel::kRequestWork);
  if (spec->kind != GrammarKind::kStructuralTag) {
    RUDDER_TRY(const std::string grammar, constraint::to_ebnf(fuel, *spec));
    return json::object{{"type", "grammar"}, {"grammar", grammar}};
  }
  RUDDER_TRY(const std::string opened, constraint::open_structural_tag(fuel, *spec));
  RUDDER_TRY(const json::value tag, parse_json_exactly(opened, "the structural tag",
                                                       {.max_depth = constraint::kMaxTagDepth}));
  const json::value* format = tag.get_object().if_contains("format");
  if (format == nullptr || !format->is_object()) {
    return fail(ErrorCode::kUnsupported, "without a format is not supported beside tools");
  }
  return format->get_object();
}

Error StructuredOutput::blame(Error error) const {
  error.where = path + error.where;
  error.message = fmt::format("{} {}", error.where, error.message);
  return error;
}

}  // namespace rudder::server
