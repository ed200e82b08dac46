// grammar_tool: constraints from outside, for the differential tests (tools/grammar_diff). Reads
// one JSON object a line and answers with one JSON object a line:
//   {"kind", "text", "compact"?, "seed"?, "walks"?, "documents": [...]}
//   -> {"error", "where"} or {"accepted": [bool or null, ...], "generated": [text, ...]}
// null: the matcher gave up, as it does on ambiguous grammars.
// The vocabulary is the bytes and some longer tokens, so that token borders fall anywhere.
#include <fmt/core.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/exact_json.h"
#include "rudder/constraint/form_engine.h"
#include "rudder/constraint/translate.h"

namespace rudder::constraint {
namespace {

namespace json = boost::json;

constexpr int32_t kStopToken = 256;
constexpr size_t kMaxWalk = 400;  // tokens

Vocabulary make_vocabulary() {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.token_bytes.emplace_back(1, static_cast<char>(byte));
  vocabulary.token_bytes.emplace_back();  // the end of the output
  for (const char* longer :
       {"\": ", "\", \"", "{\"", "\"}", "\"a", "\", ", "true",     "null",  "00",
        "12",   "\"]",    "}]",  "}}",  "  ",  "\n  ", "\xC3\xA9", "\\u00", "\\\\",
        "\\\"", "ab",     "the", "-1",  ".5",  ": [",  "[[",       "]]"}) {
    vocabulary.token_bytes.emplace_back(longer);
  }
  vocabulary.size = static_cast<int32_t>(vocabulary.token_bytes.size());
  vocabulary.stop_ids = {kStopToken};
  return vocabulary;
}

class Tool {
 public:
  Tool() : vocabulary_(make_vocabulary()), engine_(vocabulary_, 16 << 20) {}

  json::object answer(const json::object& ask) {
    json::object reply;
    const auto report = [&](const Error& error) {
      reply["error"] = error.message;
      reply["where"] = error.where;
      return reply;
    };
    const auto spec = read_spec(ask);
    if (ask.contains("show")) reply["ebnf"] = to_ebnf(spec).value_or("");
    const auto compiled = engine_.compile(spec);
    if (!compiled) return report(compiled.error());
    json::array accepted;
    if (const json::value* documents = ask.if_contains("documents")) {
      for (const json::value& document : documents->get_array()) {
        accepted.emplace_back(accepts(*compiled->constraint, document.get_string()));
      }
    }
    json::array generated;
    if (const json::value* walks = ask.if_contains("walks")) {
      const json::value* seed = ask.if_contains("seed");
      std::mt19937_64 random(seed == nullptr ? 0 : seed->to_number<uint64_t>());
      for (int64_t i = 0; i < walks->to_number<int64_t>(); ++i) {
        generated.emplace_back(walk(*compiled->constraint, random));
      }
    }
    reply["accepted"] = std::move(accepted);
    reply["generated"] = std::move(generated);
    return reply;
  }

 private:
  static GrammarSpec read_spec(const json::object& ask) {
    const std::map<std::string_view, GrammarKind> kinds = {
        {"json_schema", GrammarKind::kJsonSchema},
        {"json_object", GrammarKind::kJsonObject},
        {"regex", GrammarKind::kRegex},
        {"choice", GrammarKind::kChoice},
        {"grammar", GrammarKind::kEbnf},
        {"structural_tag", GrammarKind::kStructuralTag}};
    GrammarSpec spec;
    spec.kind = kinds.at(ask.at("kind").get_string());
    if (const json::value* text = ask.if_contains("text")) {
      spec.text = text->is_string() ? std::string(text->get_string()) : to_json_text(*text);
    }
    if (ask.contains("compact")) spec.space = JsonSpace::kCompact;
    return spec;
  }

  std::vector<uint32_t> allowed(Matcher& matcher) const {
    std::vector<uint32_t> words(mask_words(vocabulary_.size), ~0u);
    if (!matcher.restrict(words)) std::fill(words.begin(), words.end(), 0u);
    return words;
  }
  static bool has(const std::vector<uint32_t>& words, int32_t token) {
    return (words[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
  }

  static json::value accepts(const Constraint& constraint, std::string_view text,
                             const Tool& tool) {
    const auto matcher = constraint.start();
    for (const char c : text) {
      const auto token = static_cast<int32_t>(static_cast<unsigned char>(c));
      if (!has(tool.allowed(*matcher), token)) return false;
      if (!matcher->advance(token)) return nullptr;
    }
    return has(tool.allowed(*matcher), kStopToken);
  }
  json::value accepts(const Constraint& constraint, std::string_view text) const {
    return accepts(constraint, text, *this);
  }

  // Random allowed tokens until the end: endings more and more likely, so that it comes. Empty
  // when it does not.
  std::string walk(const Constraint& constraint, std::mt19937_64& random) const {
    const auto matcher = constraint.start();
    std::string text;
    for (size_t step = 0; step < kMaxWalk; ++step) {
      const std::vector<uint32_t> words = allowed(*matcher);
      std::vector<int32_t> tokens;
      std::vector<int32_t> closing;
      for (int32_t token = 0; token < vocabulary_.size; ++token) {
        if (!has(words, token)) continue;
        tokens.push_back(token);
        const std::string& bytes = vocabulary_.token_bytes[static_cast<size_t>(token)];
        if (token == kStopToken || bytes == "\"" || bytes == "}" || bytes == "]")
          closing.push_back(token);
      }
      if (tokens.empty()) return "";
      const bool close = !closing.empty() && random() % 400 < 40 + step * 4;
      const std::vector<int32_t>& from = close ? closing : tokens;
      const int32_t token = from[random() % from.size()];
      if (token == kStopToken) return text;
      text += vocabulary_.token_bytes[static_cast<size_t>(token)];
      if (!matcher->advance(token)) return "";
    }
    return "";
  }

  const Vocabulary vocabulary_;
  const FormEngine engine_;
};

int run() {
  Tool tool;
  std::string line;
  while (std::getline(std::cin, line)) {
    const Result<json::value> ask = parse_json_exactly(line, "the line", {.max_depth = 512});
    json::object reply;
    if (!ask) {
      reply["error"] = ask.error().message;
    } else {
      reply = tool.answer(ask->get_object());
    }
    fmt::print("{}\n", to_json_text(reply));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace rudder::constraint

int main() {
  return rudder::constraint::run();
}
