#include "row_request.h"

#include <boost/json.hpp>
#include <future>
#include <optional>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/steer/capture/result_json.h"
#include "served_model.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

server::TapServices services_of(const ModelSession& session) {
  const bool is_for_clients = !session.engine->limits().taps.captures_prompts_only;
  return {session.steering ? &session.steering->library() : nullptr,
          is_for_clients ? session.engine->captures() : nullptr, &session.engine->programs()};
}

json::object body_of(const PromptLine& line, bool chat, const SamplingFlags& flags) {
  json::object body = line.row;
  if (line.is_plain && chat) {
    const json::object message = {{"role", "user"}, {"content", line.row.at("prompt")}};
    body = {{"messages", json::array{message}}};
  } else if (const json::value* ids = body.if_contains("prompt_ids")) {
    body["prompt"] = json::value(*ids);
    body.erase("prompt_ids");
    body.erase("messages");
  }
  flags.fill(&body);
  return body;
}

// A row has room for one text, as it was generated.
Result<void> check_answer(const server::GenerationRequest& parsed) {
  const server::AnswerOptions& answer = parsed.answer;
  const std::pair<bool, const char*> unanswered[] = {
      {answer.stream, "stream"},
      {answer.num_choices != 1, parsed.prompts.size() > 1 ? "prompt" : "n"},
      {answer.logprobs, "logprobs"},
      {answer.prompt_logprobs.has_value(), "prompt_logprobs"},
      {!parsed.prompts.front().echo.empty() || answer.prompt_only, "echo"}};
  for (const auto& [is_asked, field] : unanswered) {
    if (is_asked) {
      return fail(ErrorCode::kUnsupported, "is not supported in a file of prompts", field);
    }
  }
  return {};
}

Result<engine::FormLease> compile(engine::Engine& engine, const constraint::GrammarSpec& spec) {
  std::promise<Result<engine::FormLease>> compiled;
  engine.compile(spec, 0, [&](const Result<engine::FormLease>& form) { compiled.set_value(form); });
  return compiled.get_future().get();
}

tl::unexpected<Error> refused(const server::ApiError& error) {
  return fail(ErrorCode::kInvalidArgument, error.message, error.param);
}

}  // namespace

Result<RowRequests> RowRequests::create(const ModelSession& session, const SamplingFlags& flags) {
  server::ServerModel model = served_model(session);
  RUDDER_TRY(model.dialect, server::find_dialect(model, "", ""));
  return RowRequests(session, flags, std::move(model));
}

Result<RowRequest> RowRequests::read(const PromptLine& line, bool chat) const {
  const json::object body = body_of(line, chat, flags_);
  const auto api = body.contains("messages") ? server::Api::kChat : server::Api::kCompletions;
  server::GenerationScope scope = {.model = model_,
                                   .limits = session_.engine->limits(),
                                   .keys = keys_,
                                   .request_id = "row",
                                   .taps = services_of(session_)};
  auto parsed = server::parse_generation(api, body, scope);
  if (!parsed) return refused(parsed.error());
  RUDDER_TRY_VOID(check_answer(*parsed));
  server::Prompt& prompt = parsed->prompts.front();
  RowRequest read = {std::move(prompt.request), std::move(prompt.lease), {}};
  if (!parsed->grammar) return read;
  Result<engine::FormLease> form = compile(*session_.engine, *parsed->grammar);
  if (form) {
    read.form = std::move(*form);
    return read;
  }
  scope.grammar_error = form.error();
  parsed = server::parse_generation(api, body, scope);  // once more, for the field at fault
  return parsed ? tl::unexpected<Error>(form.error()) : refused(parsed.error());
}

Result<void> add_capture_results(const steer::capture::CaptureResults& results, json::object* row) {
  if (results.empty()) return {};
  RUDDER_TRY((*row)["capture_results"],
             parse_json(steer::capture::results_json(results), "capture_results"));
  return {};
}

}  // namespace rudder::apps
