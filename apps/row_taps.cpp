#include "row_taps.h"

#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/text_prompts.h"
#include "rudder/server/steering/prompt_roles.h"
#include "rudder/steer/capture/result_json.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

server::TapServices services_of(const ModelSession& session) {
  const bool is_for_clients = !session.engine->limits().taps.captures_prompts_only;
  return {session.steering ? &session.steering->library() : nullptr,
          is_for_clients ? session.engine->captures() : nullptr, &session.engine->programs()};
}

Result<std::vector<steer::RoleSpan>> roles_of(const ModelFiles& files, const PromptRow& row) {
  const json::array& messages = row.row->at("messages").get_array();
  RUDDER_TRY(const std::string text, files.chat->render(messages, nullptr, nullptr));
  RUDDER_TRY(const std::vector<text::MessageSpan> spans,
             files.chat->find_messages(text, messages, nullptr, nullptr));
  return server::prompt_roles(spans, messages, *files.tokenizer, row.prompt, text);
}

}  // namespace

Result<server::TapsLease> add_row_taps(const ModelSession& session, const PromptRow& row,
                                       engine::RequestParams* params) {
  server::FieldReader reader(*row.row, "");
  RUDDER_TRY(const server::TapFields taps,
             server::TapFields::read(reader, *row.row, services_of(session)));
  RUDDER_TRY_VOID(reader.result());
  server::PromptText prompt;
  const bool has_roles = taps.needs_roles() && row.row->contains("messages");
  if (has_roles) {
    RUDDER_TRY(prompt.roles, roles_of(session.files, row));
  }
  // What it generates is text, thoughts and all: every generated token is the assistant's.
  return taps.apply(prompt, *session.files.tokenizer, has_roles, std::nullopt, params);
}

Result<void> add_capture_results(const steer::capture::CaptureResults& results, json::object* row) {
  if (results.empty()) return {};
  RUDDER_TRY((*row)["capture_results"],
             parse_json(steer::capture::results_json(results), "capture_results"));
  return {};
}

}  // namespace rudder::apps
