// rudder chat: talk to a model in the terminal. The whole conversation is the prompt each time; the
// prefix cache makes that cheap.
#include <fmt/format.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <iostream>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "local_client.h"
#include "model_session.h"
#include "report_error.h"
#include "sampling_flags.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

class Conversation {
 public:
  Conversation(ModelSession& session, const SamplingFlags& sampling, std::string system)
      : session_(session),
        client_(*session.engine),
        sampling_(sampling),
        system_(std::move(system)) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!system_.empty()) add("system", system_);
  }

  Result<void> say(const std::string& text) {
    add("user", text);
    RUDDER_TRY(const std::string prompt, session_.files.chat->render(messages_, nullptr, nullptr));
    RUDDER_TRY(std::vector<int32_t> ids,
               session_.files.tokenizer->encode(prompt, {.add_special_tokens = false}));
    RUDDER_TRY(const LocalAnswer answer,
               client_.ask(sampling_.params(std::move(ids)), [](const std::string& piece) {
                 fmt::print("{}", piece);
                 std::fflush(stdout);
               }));
    fmt::print("\n");
    if (answer.error) return tl::unexpected<Error>(*answer.error);
    add("assistant", answer.text);
    return {};
  }

 private:
  void add(std::string_view role, const std::string& content) {
    messages_.push_back(json::object{{"role", role}, {"content", content}});
  }

  ModelSession& session_;
  LocalClient client_;
  const SamplingFlags& sampling_;
  const std::string system_;
  json::array messages_;
};

int talk(ModelSession& session, const SamplingFlags& sampling, const std::string& system) {
  Conversation conversation(session, sampling, system);
  const bool person = isatty(STDIN_FILENO) != 0;
  if (person) fmt::print("{}. /reset starts over, /exit or Ctrl-D ends.\n", session.files.name);
  std::string line;
  for (;;) {
    if (person) {
      fmt::print("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line) || line == "/exit") return 0;
    if (line.empty()) continue;
    if (line == "/reset") {
      conversation.reset();
      continue;
    }
    const Result<void> said = conversation.say(line);
    if (!said) {
      fmt::print(stderr, "rudder: {}\n", said.error().to_string());
      if (!person) return 1;
    }
  }
}

}  // namespace

int run_chat(int argc, char** argv) {
  SessionSettings settings;
  settings.log_level = "warn";
  SamplingFlags sampling;
  std::string system;
  SettingsTable table;
  table.section("chat");
  table.add("system", &system, "The system message.");
  sampling.declare(table);
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder chat", "Talk to a model in the terminal.", "[MODEL]", 1}, argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  Result<ModelSession> session = open_session(model, settings);
  if (!session) return report_failure(session.error());
  if (session->files.chat == nullptr) {
    return report_failure(
        Error{ErrorCode::kUnsupported, "this model has no chat template", session->files.name});
  }
  sampling.take_defaults(session->files.generation.defaults, table);
  return talk(*session, sampling, system);
}

}  // namespace rudder::apps
