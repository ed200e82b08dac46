// rudder tokenize: text to token ids and back, with the pieces, as the server does it.
#include <fmt/format.h>

#include <charconv>
#include <iostream>
#include <iterator>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "model_session.h"
#include "report_error.h"
#include "rudder/base/json.h"

namespace rudder::apps {
namespace {

struct TokenizeSettings {
  std::string text;
  std::string decode;
  bool special = true;
  bool ids_only = false;

  void declare(SettingsTable& table) {
    table.section("tokenize");
    table.add("text", &text, "The text; without it, standard input is read.");
    table.add("decode", &decode, "Token ids, separated by commas or spaces, to turn into text.");
    table.add("special", &special, "Add the special tokens (BOS) that the model declares.");
    table.add("ids-only", &ids_only, "Print the ids on one line, no table.");
  }
};

Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    if (*at == ',' || *at == ' ' || *at == '[' || *at == ']') {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [rest, ec] = std::from_chars(at, end, id);
    if (ec != std::errc()) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("--decode: '{}' is not an id", at));
    }
    ids.push_back(id);
    at = rest;
  }
  return ids;
}

void print_pieces(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    std::string quoted;
    append_json_string(quoted, tokenizer.id_to_token(id));
    fmt::print("{:>8}  {}{}\n", id, quoted, tokenizer.is_special(id) ? "  special" : "");
  }
  fmt::print("{} tokens\n", ids.size());
}

Result<void> tokenize(const ModelFiles& files, const TokenizeSettings& settings) {
  const text::Tokenizer& tokenizer = *files.tokenizer;
  if (!settings.decode.empty()) {
    RUDDER_TRY(const std::vector<int32_t> ids, parse_ids(settings.decode));
    fmt::print("{}\n", tokenizer.decode(ids, false));
    return {};
  }
  const std::string text =
      !settings.text.empty()
          ? settings.text
          : std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  RUDDER_TRY(const std::vector<int32_t> ids,
             tokenizer.encode(text, {.add_special_tokens = settings.special}));
  if (settings.ids_only) {
    fmt::print("{}\n", fmt::join(ids, " "));
  } else {
    print_pieces(tokenizer, ids);
  }
  return {};
}

}  // namespace

int run_tokenize(int argc, char** argv) {
  TokenizeSettings settings;
  SettingsTable table;
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder tokenize", "Text to token ids and back.", "[MODEL]", 1}, argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  const Result<ModelFiles> files = open_model_files(model);
  if (!files) return report_failure(files.error());
  const Result<void> done = tokenize(*files, settings);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
