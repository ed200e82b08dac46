// POST /tokenize and /detokenize, as vLLM has them. Fields of a generation request that nothing
// here depends on, those of steering and capture among them, are named in the header.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/generation/answer_format.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/amplification.h"
#include "rudder/server/http/ignored_fields.h"
#include "rudder/server/http/pool_answer.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/generation_request.h"
#include "rudder/server/request/text_prompts.h"
#include "rudder/server/steering/tap_names.h"

namespace rudder::server {
namespace {

constexpr size_t kMaxIds = size_t{4} << 20;

using Answer = tl::expected<std::string, ApiError>;
using Work = Answer (*)(const ServerModel& model, FieldReader& reader, int64_t sent_bytes);

Answer tokenize(const ServerModel& model, FieldReader& reader, int64_t) {
  bool strings_wanted = false;
  reader.boolean("return_token_strs", &strings_wanted);
  const bool chat = reader.raw("messages") != nullptr;
  PromptText prompt;
  if (chat) {
    Result<PromptText> rendered =
        render_chat(reader, model, read_tool_fields(reader, model.dialect));
    if (!rendered) return tl::unexpected(to_api_error(rendered.error()));
    prompt = std::move(*rendered);
  } else {
    Result<std::vector<PromptText>> prompts =
        read_text_prompts(reader, *model.tokenizer, PromptLimits());
    if (!prompts) return tl::unexpected(to_api_error(prompts.error()));
    prompt = std::move(prompts->front());
  }
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  std::string out = fmt::format(
      "{{\"count\":{},\"max_model_len\":{},\"tokens\":", prompt.ids.size(), model.max_model_len);
  append_ids(out, prompt.ids);
  out += ",\"token_strs\":";
  if (strings_wanted) {
    out.push_back('[');
    for (size_t i = 0; i < prompt.ids.size(); ++i) {
      if (i > 0) out.push_back(',');
      append_json_string(out, model.tokenizer->id_to_token(prompt.ids[i]));
    }
    out += "]}";
  } else {
    out += "null}";
  }
  return out;
}

// A digit and a comma may name a token of a hundred bytes: the text is measured before it is made.
int64_t text_bytes(const text::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  int64_t bytes = 0;
  for (const int32_t id : ids) {
    const std::string_view own = tokenizer.token_bytes(id);
    bytes += std::ssize(own.empty() ? tokenizer.id_to_token(id) : own);
  }
  return bytes;
}

Answer detokenize(const ServerModel& model, FieldReader& reader, int64_t sent_bytes) {
  std::vector<int32_t> ids;
  if (reader.raw("tokens") == nullptr) {
    reader.error(ErrorCode::kInvalidArgument, "is required", "tokens");
  }
  reader.token_ids("tokens", kMaxIds, &ids);
  const int64_t bytes = text_bytes(*model.tokenizer, ids);
  if (bytes > largest_answer_to(sent_bytes)) {
    reader.error(
        ErrorCode::kInvalidArgument,
        fmt::format("are {} bytes of text, over {} times what was sent", bytes, kMaxAmplification),
        "tokens");
  }
  if (!reader.ok()) return tl::unexpected(to_api_error(reader.error()));
  std::string out = "{\"prompt\":";
  append_json_string(out, model.tokenizer->decode(ids, false));
  out.push_back('}');
  return out;
}

HttpResponse run(const ServerModel& model, Work work, const std::string& body) {
  auto object = parse_body(body);
  if (!object) return error_response(object.error());
  FieldReader reader(*object, "");
  const auto name = read_model(reader, model);
  if (!name) return error_response(name.error());
  const Result<void> placed = refuse_misplaced_taps(*object);
  if (!placed) return error_response(to_api_error(placed.error()));
  Answer answer = work(model, reader, std::ssize(body));
  if (!answer) return error_response(answer.error());
  HttpResponse response;
  response.body = std::move(*answer);
  name_ignored_fields(reader.ignored(), &response);
  return response;
}

}  // namespace

void handle_tokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_on_pool(context, exchange, [&context](const std::string& body) {
    return run(context.model(), tokenize, body);
  });
}

void handle_detokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_on_pool(context, exchange, [&context](const std::string& body) {
    return run(context.model(), detokenize, body);
  });
}

}  // namespace rudder::server
