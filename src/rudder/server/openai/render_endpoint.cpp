// POST /v1/chat/completions/render and /v1/completions/render: what the engine would be asked for a
// request, without asking it. As vLLM has them: one object of a chat, a list of completions
// prompts; `prompt`, the text, is ours.
#include <boost/json.hpp>
#include <iterator>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/server/generation/generation_endpoint.h"
#include "rudder/server/handlers.h"
#include "rudder/server/http/amplification.h"
#include "rudder/server/http/ignored_fields.h"
#include "rudder/server/http/pool_answer.h"
#include "rudder/server/request/json_numbers.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

json::value or_null(const std::optional<uint64_t>& number) {
  return number ? json::value(static_cast<int64_t>(*number)) : json::value(nullptr);
}

json::object sampling_params(const engine::RequestParams& params) {
  const step::SamplingParams& sampling = params.sampling;
  json::object bias;
  for (const auto& [token, value] : sampling.logit_bias) {
    bias[std::to_string(token)] = as_written(value);
  }
  json::object shown = {
      {"n", params.n},
      {"temperature", as_written(sampling.temperature)},
      {"top_p", as_written(sampling.top_p)},
      {"top_k", sampling.top_k},
      {"min_p", as_written(sampling.min_p)},
      {"presence_penalty", as_written(sampling.presence_penalty)},
      {"frequency_penalty", as_written(sampling.frequency_penalty)},
      {"repetition_penalty", as_written(sampling.repetition_penalty)},
      {"seed", or_null(params.seed)},
      {"stop", json::value_from(params.stop)},
      {"stop_token_ids", json::value_from(sampling.stop_ids)},
      {"ignore_eos", params.ignore_eos},
      {"disable_spec_decode", params.disable_spec_decode},
      {"max_tokens", nullptr},
      {"min_tokens", sampling.min_tokens},
      {"logprobs", nullptr},
      {"logit_bias", std::move(bias)},
      {"skip_special_tokens", params.skip_special_tokens},
      {"include_stop_str_in_output", params.include_stop},
  };
  if (params.max_tokens) shown["max_tokens"] = *params.max_tokens;
  if (sampling.num_logprobs >= 0) shown["logprobs"] = sampling.num_logprobs;
  return shown;
}

// [[begin, end], ...] of the tokens that some op steers, generated ones too: null for an open end.
// Where thoughts are steered apart, generated tokens are those of the answer behind them.
json::array steered_tokens(const tap::TapsSpec& taps) {
  json::array ranges;
  for (size_t i = 0; i < taps.segments.size(); ++i) {
    if (taps.segments[i].content.none()) continue;
    const bool is_last = i + 1 == taps.segments.size();
    const json::value end = is_last ? json::value() : json::value(taps.segments[i + 1].begin);
    const bool follows = i > 0 && !taps.segments[i - 1].content.none();
    if (follows) {
      ranges.back().get_array()[1] = end;
    } else {
      ranges.push_back(json::array{taps.segments[i].begin, end});
    }
  }
  return ranges;
}

json::object describe(const GenerationRequest& parsed, const Prompt& prompt,
                      const text::Tokenizer& tokenizer) {
  const engine::RequestParams& params = prompt.request.params();
  return {{"request_id", params.client_id},
          {"model", parsed.answer.model},
          {"prompt", tokenizer.decode(params.prompt, false)},
          {"token_ids", json::value_from(params.prompt)},
          {"features", nullptr},
          {"steered_tokens", steered_tokens(params.taps)},
          {"sampling_params", sampling_params(params)},
          {"stream", parsed.answer.stream},
          {"priority", params.priority},
          {"kv_transfer_params", nullptr}};
}

HttpResponse render(Api api, const std::string& body, const GenerationScope& scope) {
  const auto parsed = parse_generation(api, body, scope);
  if (!parsed) return error_response(parsed.error());
  HttpResponse response;
  name_ignored_fields(parsed->ignored_fields, &response);
  if (api == Api::kChat) {
    // Of a pair, the steered half.
    response.body = to_json_text(describe(*parsed, parsed->prompts.back(), *scope.model.tokenizer));
    return response;
  }
  response.body = "[";
  for (const Prompt& prompt : parsed->prompts) {
    if (response.body.size() > 1) response.body.push_back(',');
    response.body += to_json_text(describe(*parsed, prompt, *scope.model.tokenizer));
    // It is refused already: no more of it is made.
    if (std::ssize(response.body) > largest_answer_to(std::ssize(body))) break;
  }
  response.body.push_back(']');
  return response;
}

void answer_rendered(ServerContext& context, const std::shared_ptr<Exchange>& exchange, Api api) {
  answer_on_pool(
      context, exchange,
      [&context, api, tenant = exchange->tenant,
       id = exchange->request_id](const std::string& body) {
        return render(api, body, generation_scope(context, tenant, id));
      },
      api == Api::kChat ? "messages" : "prompt");
}

}  // namespace

void handle_chat_render(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_rendered(context, exchange, Api::kChat);
}

void handle_completions_render(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer_rendered(context, exchange, Api::kCompletions);
}

}  // namespace rudder::server
