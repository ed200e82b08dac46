#include "rudder/server/generation/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/server/http/amplification.h"
#include "rudder/server/http/ignored_fields.h"
#include "rudder/server/http/request_id.h"
#include "rudder/server/openai/response_store.h"

namespace rudder::server {
namespace {

int64_t ping_us(const AnswerOptions& options, const ServerSettings& settings) {
  if (!options.stream) return 0;
  if (!options.ping_seconds) return static_cast<int64_t>(settings.sse_ping_interval * 1e6);
  return std::max<int64_t>(0, *options.ping_seconds) * 1'000'000;
}

// With max_tokens 0 an answer is the prompt alone: the one token that the engine had to sample is
// nobody's.
void forget_output(engine::Event& event) {
  event.text.clear();
  event.tokens.clear();
  event.stop_token.reset();
  if (event.finish == engine::FinishReason::kStop) event.finish = engine::FinishReason::kLength;
}

// Of one token and what is told beside it, in memory and as JSON.
constexpr int64_t kBytesPerLogprob = 96;

// Log-probabilities of the prompts, however they are spelled.
int64_t prompt_logprobs_bytes(const AnswerOptions& options, const std::vector<Prompt>& prompts) {
  int64_t bytes = 0;
  for (const Prompt& prompt : prompts) {
    const engine::RequestParams& params = prompt.request.params();
    bytes += std::ssize(params.prompt) * (1 + params.sampling.num_prompt_logprobs);
  }
  const bool is_repeated = options.api == Api::kCompletions;  // in every choice
  return bytes * kBytesPerLogprob * (is_repeated ? options.n : 1);
}

// What the answer will repeat of the prompts, as text and as ids, in JSON.
int64_t repeated_bytes(const AnswerOptions& options, const std::vector<Prompt>& prompts) {
  constexpr int64_t kBytesPerId = 7;
  int64_t bytes = 0;
  for (const Prompt& prompt : prompts) {
    bytes += std::ssize(prompt.echo) + std::ssize(prompt.told_text) +
             std::ssize(prompt.told_ids) * kBytesPerId;
    if (!options.return_steered_tokens) continue;
    bytes += std::ssize(prompt.request.params().taps.segments) * 2 * kBytesPerId;
  }
  return bytes * options.n;
}

// Of a response: its fields that repeat the request, and the conversation that is stored with it.
int64_t turn_bytes(const AnswerOptions& options) {
  const int64_t conversation =
      options.response.turn ? std::ssize(options.response.turn->conversation) : 0;
  return std::ssize(options.response.told_fields) + conversation;
}

ApiError too_much_output() {
  return to_api_error(Error{ErrorCode::kOverloaded, "too much output is held for clients", ""});
}

}  // namespace

Generation::Generation(ServerContext& context, std::shared_ptr<Exchange> exchange,
                       GenerationRequest request, std::shared_ptr<ActivityMark> mark)
    : context_(context),
      exchange_(std::move(exchange)),
      format_(AnswerFormat::create(std::move(request.answer), context.model().tokenizer)),
      prompts_(std::move(request.prompts)),
      held_(prompts_.size()),
      charge_(context.output_bytes),
      sent_bytes_(request.sent_bytes),
      ignored_fields_(std::move(request.ignored_fields)),
      parser_(std::move(request.parser)),
      mark_(std::move(mark)),
      choices_(prompts_.size() * static_cast<size_t>(format_->options().n)),
      num_open_(choices_.size()),
      ping_us_(ping_us(format_->options(), context.settings)),
      last_sent_us_(context.clock.now_us()) {
  if (format_->options().return_steered_tokens) {
    const size_t n = choices_.size() / std::max<size_t>(1, prompts_.size());
    for (size_t i = 0; i < choices_.size(); ++i) {
      const engine::RequestParams& params = prompts_[i / n].request.params();
      choices_[i].steered.emplace(params.taps, static_cast<int32_t>(params.prompt.size()));
    }
  }
  if (!parser_) return;
  for (Choice& choice : choices_) choice.parser = dialect::make_parser(*parser_, random_bits());
}

void Generation::start() {
  exchange_->io->add_generation(shared_from_this());
  exchange_->on_abandon([weak = weak_from_this()] {
    const std::shared_ptr<Generation> self = weak.lock();
    if (!self || self->closed_) return;
    self->cancel_all();
    self->close(499, "client gone");
  });
  if (const Result<void> begun = contain([this] { submit_prompts(); }); !begun) {
    on_failure(begun.error());
  }
}

void Generation::submit_prompts() {
  if (!charge_prompts()) return;
  for (uint32_t prompt = 0; prompt < prompts_.size() && !closed_; ++prompt) {
    if (!prompts_[prompt].waits_for_last) submit(prompt);
  }
}

void Generation::submit(uint32_t prompt) {
  auto sink = [self = shared_from_this(), io = exchange_->io, prompt](engine::Event&& event) {
    io->deliver(self, prompt, std::move(event));
  };
  Result<engine::RequestId> id =
      context_.engine().submit(std::move(prompts_[prompt].request), std::move(sink));
  if (!id) {
    cancel_all();
    return fail(context_.engine_error(id.error()));
  }
  ids_.push_back(*id);
  prompts_[prompt].lease = {};
}

// Before anything is computed: what the answer will hold beside what is generated.
bool Generation::charge_prompts() {
  const AnswerOptions& options = format_->options();
  const int64_t limit = exchange_->limits().total;
  const int64_t logprobs = prompt_logprobs_bytes(options, prompts_);
  const int64_t repeated = repeated_bytes(options, prompts_);
  const int64_t computed = format_->computed_bytes();
  const auto refuse = [&](ErrorCode code, std::string message, std::string_view field) {
    fail(to_api_error(Error{code, std::move(message), std::string(field)}));
    return false;
  };
  if (repeated > largest_answer_to(sent_bytes_)) {
    return refuse(ErrorCode::kInvalidArgument,
                  fmt::format("{} choices would repeat {} bytes of the prompt, more than {} times "
                              "what was sent",
                              options.n, repeated, kMaxAmplification),
                  options.n > 1 ? "n" : "echo");
  }
  if (logprobs > limit) {
    return refuse(
        ErrorCode::kInvalidArgument,
        fmt::format("the prompt's log-probabilities take {} bytes, more than the server's "
                    "{}",
                    logprobs, limit),
        options.echo_logprobs ? "logprobs" : "prompt_logprobs");
  }
  if (computed > exchange_->limits().answer) {
    return refuse(ErrorCode::kInvalidArgument,
                  fmt::format("the answer takes up to {} bytes, more than the {} that are held for "
                              "one",
                              computed, exchange_->limits().answer),
                  options.api == Api::kEmbeddings ? "input" : "documents");
  }
  if (charge(logprobs + repeated + computed + turn_bytes(options))) return true;
  fail(too_much_output());
  return false;
}

// So many bytes more are held until the answer is made. False: there is no room for them.
bool Generation::charge(int64_t bytes) {
  charged_bytes_ += bytes;
  return bytes == 0 || charge_.set(charged_bytes_, exchange_->limits().total);
}

// Keeps what the event tells of its prompt. True when an event has nothing else to say.
bool Generation::take_scores(uint32_t prompt, engine::Event& event) {
  std::vector<engine::OutputToken>& scored = prompts_[prompt].scored;
  std::move(event.prompt_logprobs.begin(), event.prompt_logprobs.end(), std::back_inserter(scored));
  return event.tokens.empty() && event.text.empty() && event.captures.empty() && !event.finish;
}

// What was thrown may have left half an event in the output, which nobody has seen yet.
void Generation::on_failure(const Error& error) {
  if (closed_) return;
  log_error("request {}: {}", exchange_->request_id, error.to_string());
  cancel_all();
  std::string& output = exchange_->output();
  output.resize(std::min(output.size(), whole_bytes_));
  fail(to_api_error(error));
}

void Generation::on_event(uint32_t source, engine::Event&& event) {
  if (closed_) return;
  whole_bytes_ = exchange_->output().size();
  const Prompt& prompt = prompts_[source];
  if (take_scores(source, event)) return;
  // A choice that echoes begins with all of its prompt, which the first choice is told.
  const bool waits = format_->options().stream && format_->options().echo_logprobs &&
                     event.choice != 0 && !prompt.is_scored() && !event.error;
  if (waits) return held_[source].push_back(std::move(event));
  take_event(source, std::move(event));
  if (held_[source].empty() || !prompt.is_scored()) return;
  for (engine::Event& held : std::exchange(held_[source], {})) {
    if (!closed_) take_event(source, std::move(held));
  }
}

void Generation::take_event(uint32_t source, engine::Event&& event) {
  const int32_t n = format_->options().n;
  const auto index = static_cast<int32_t>(source) * n + event.choice;
  if (event.choice < 0 || event.choice >= n) return;
  if (format_->options().prompt_only) forget_output(event);
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.usage = event.usage;
  if (first_token_us_ == 0 && !event.tokens.empty()) first_token_us_ = context_.clock.now_us();
  if (event.finish == engine::FinishReason::kError ||
      event.finish == engine::FinishReason::kCancelled) {
    const Error error = event.error.value_or(Error{
        event.finish == engine::FinishReason::kError ? ErrorCode::kInternal : ErrorCode::kCancelled,
        "the engine gave no reason", ""});
    log_warn("request {}: {}", exchange_->request_id, error.to_string());
    cancel_all();
    return fail(context_.engine_error(error));
  }
  if (choice.steered) {
    for (const engine::OutputToken& token : event.tokens) choice.steered->note(token.token);
    if (event.finish) choice.steered_tokens = to_json(choice.steered->ranges());
  }
  if (event.finish) {
    choice.finish = event.finish;
    choice.stop_reason = event.stop_reason;
    choice.stop_token = event.stop_token;
    if (event.capture_results) {
      choice.routed_experts = format_->take_routed_experts(*event.capture_results);
      Result<std::string> kept = format_->keep_captures(*event.capture_results);
      if (!kept) {
        cancel_all();
        return fail(to_api_error(kept.error()));
      }
      choice.capture_results = std::move(*kept);
    }
    --num_open_;
    const size_t next = size_t{source} + 1;
    if (next < prompts_.size() && prompts_[next].waits_for_last) submit(source + 1);
    if (closed_) return;
  }
  if (format_->options().stream) {
    stream_event(source, choice, index, std::move(event));
  } else {
    if (!collect_event(choice, std::move(event))) {
      cancel_all();
      return fail(too_much_output());
    }
  }
  if (num_open_ == 0) succeed();
}

dialect::Delta Generation::part(Choice& choice, engine::Event& event) const {
  dialect::Delta delta;
  if (choice.parser == nullptr) {
    delta.content = std::move(event.text);
    return delta;
  }
  if (choice.parser->thinking()) {
    choice.reasoning_tokens += static_cast<int32_t>(event.tokens.size());
  }
  choice.usage.reasoning_tokens = choice.reasoning_tokens;
  delta = choice.parser->push(event.text);
  if (event.finish) {
    const bool is_whole = *event.finish == engine::FinishReason::kStop;
    delta.append(
        choice.parser->finish(is_whole ? dialect::Ending::kWhole : dialect::Ending::kCutOff));
  }
  if (!format_->options().include_reasoning) delta.reasoning.clear();
  choice.called = choice.called || !delta.tool_calls.empty();
  return delta;
}

HttpResponse Generation::head() const {
  HttpResponse response;
  if (format_->options().stream) {
    response.content_type = "text/event-stream; charset=utf-8";
    response.fields.push_back({"cache-control", "no-cache"});
    response.fields.push_back({"x-accel-buffering", "no"});
  }
  name_ignored_fields(ignored_fields_, &response);
  return response;
}

void Generation::begin_stream() {
  if (streaming_) return;
  streaming_ = true;
  exchange_->begin_stream(head());
}

// A ping, which clients pass over, keeps proxies and clients from taking silence for a dead
// connection. Between events always: what is appended to the output is whole. Before the first
// token it sends the head, so that a failure after it is an event.
int64_t Generation::due_us() const {
  return ping_us_ != 0 && !closed_ ? last_sent_us_ + ping_us_ : kNever;
}

void Generation::on_due(int64_t now_us) {
  if (closed_) return;  // since
  last_sent_us_ = now_us;
  if (!exchange_->output().empty()) return;  // the client does not even take what there is
  begin_stream();
  format_->append_ping(exchange_->output());
  exchange_->commit();
}

void Generation::stream_event(uint32_t prompt, Choice& choice, int32_t index,
                              engine::Event&& event) {
  begin_stream();
  for (const steer::capture::CaptureEvent& captured : event.captures) {
    const size_t before = exchange_->output().size();
    format_->append_capture_event(exchange_->output(), index, captured);
    exchange_->count_apart(exchange_->output().size() - before);
    dirty_ = true;
  }
  if (!event.captures.empty() && event.tokens.empty() && !event.finish) return;
  ChoicePiece piece;
  piece.index = index;
  piece.first = !choice.begun;
  dialect::Delta delta = part(choice, event);
  if (piece.first) {
    piece.prompt_ids = prompts_[prompt].told_ids;
    piece.prompt_text = prompts_[prompt].told_text;
    piece.prompt_tokens = prompts_[prompt].scored;
    delta.content.insert(0, prompts_[prompt].echo);
  }
  piece.text = delta.content;
  piece.reasoning = delta.reasoning;
  piece.tool_calls = delta.tool_calls;
  piece.called = choice.called;
  if (tells_tokens()) piece.tokens = {event.tokens.data(), event.tokens.size()};
  piece.text_offset = choice.text_offset;
  piece.finish = event.finish;
  piece.stop_reason = event.stop_reason;
  piece.stop_token = event.stop_token;
  piece.capture_results = choice.capture_results;
  piece.routed_experts = choice.routed_experts;
  piece.steered_tokens = choice.steered_tokens;
  piece.usage = choice.usage;
  const size_t before = exchange_->output().size();
  format_->append_events(exchange_->output(), piece);
  choice.begun = true;
  dirty_ = true;
  // A choice's first event repeats the request, a response's last ones all that was said: as much
  // at once as no reader has had time for.
  const bool is_response = format_->options().api == Api::kResponses;
  if (piece.first || (is_response && piece.finish)) {
    exchange_->count_apart(exchange_->output().size() - before);
  }
  if (!format_->options().logprobs || format_->options().api != Api::kCompletions) return;
  const text::Tokenizer& tokenizer = *context_.model().tokenizer;
  if (piece.first && format_->options().echo_logprobs) {
    for (const engine::OutputToken& token : piece.prompt_tokens) {
      choice.text_offset += text_length(tokenizer, token.token);
    }
  }
  for (const engine::OutputToken& token : event.tokens) {
    choice.text_offset += text_length(tokenizer, token.token);
  }
}

bool Generation::collect_event(Choice& choice, engine::Event&& event) {
  const AnswerOptions& options = format_->options();
  int64_t held = std::ssize(event.text);
  if (options.logprobs)
    held += std::ssize(event.tokens) * (1 + options.top_logprobs) * kBytesPerLogprob;
  const bool is_charged = format_->computed_bytes() > 0;
  if (event.finish && !is_charged) {
    held += std::ssize(choice.capture_results) + std::ssize(choice.routed_experts);
  }
  choice.said.append(part(choice, event));
  if (tells_tokens()) {
    std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(choice.tokens));
  }
  return charge(held);
}

void Generation::on_batch_end() {
  if (!std::exchange(dirty_, false)) return;
  last_sent_us_ = context_.clock.now_us();
  exchange_->commit();
}

ChoicePiece Generation::whole_piece(size_t index) const {
  const Choice& choice = choices_[index];
  ChoicePiece piece;
  piece.index = static_cast<int32_t>(index);
  piece.first = true;
  piece.text = choice.said.content;
  piece.reasoning = choice.said.reasoning;
  piece.tool_calls = choice.said.tool_calls;
  piece.called = choice.called;
  piece.tokens = choice.tokens;
  const Prompt& prompt = prompts_[index / static_cast<size_t>(format_->options().n)];
  piece.prompt_ids = prompt.told_ids;
  piece.prompt_text = prompt.told_text;
  piece.prompt_tokens = prompt.scored;
  piece.finish = choice.finish;
  piece.stop_reason = choice.stop_reason;
  piece.stop_token = choice.stop_token;
  piece.capture_results = choice.capture_results;
  piece.routed_experts = choice.routed_experts;
  piece.steered_tokens = choice.steered_tokens;
  return piece;
}

engine::Usage Generation::total_usage() const {
  engine::Usage total;
  const auto n = static_cast<size_t>(format_->options().n);
  for (size_t i = 0; i < choices_.size(); ++i) {
    total.completion_tokens += choices_[i].usage.completion_tokens;
    total.reasoning_tokens += choices_[i].usage.reasoning_tokens;
    total.accepted_prediction_tokens += choices_[i].usage.accepted_prediction_tokens;
    total.rejected_prediction_tokens += choices_[i].usage.rejected_prediction_tokens;
    if (i % n != 0) continue;  // the choices of a prompt share it
    total.prompt_tokens += choices_[i].usage.prompt_tokens;
    total.cached_tokens += choices_[i].usage.cached_tokens;
    total.cached_host_tokens += choices_[i].usage.cached_host_tokens;
    total.cached_disk_tokens += choices_[i].usage.cached_disk_tokens;
  }
  return total;
}

void Generation::succeed() {
  if (format_->options().stream) {
    const size_t before = exchange_->output().size();
    format_->append_end(exchange_->output(), total_usage());
    exchange_->count_apart(exchange_->output().size() - before);
    exchange_->end_stream();
  } else {
    const auto n = static_cast<size_t>(format_->options().n);
    std::vector<ChoicePiece> pieces;
    pieces.reserve(choices_.size());
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices_[i].said.content.insert(0, prompts_[i / n].echo);
      pieces.push_back(whole_piece(i));
    }
    HttpResponse response = head();
    response.body = format_->document(pieces, total_usage());
    charge_.release();  // from here on the exchange counts it
    exchange_->respond(std::move(response));
  }
  close(200, "finished");
}

// Before the head is out an error has a status of its own; after it, an event.
void Generation::fail(const ApiError& error) {
  if (closed_) return;
  if (streaming_) {
    format_->append_error(exchange_->output(), error);
    exchange_->end_stream();
  } else {
    exchange_->respond(error_response(error));
  }
  close(error.status, error.code);
}

void Generation::end_now() {
  if (closed_) return;
  cancel_all();
  ApiError error = http_error(503, "the server is shutting down");
  error.code = "shutting_down";
  fail(error);
}

void Generation::cancel_all() {
  for (const engine::RequestId id : ids_) context_.engine().cancel(id);
}

void Generation::close(int status, std::string_view outcome) {
  closed_ = true;
  charge_.release();
  mark_.reset();
  exchange_->io->remove_generation(this);
  if (context_.settings.disable_access_log) return;
  const engine::Usage usage = total_usage();
  log_request_end({.request_id = exchange_->request_id,
                   .path = exchange_->request.path,
                   .status = status,
                   .outcome = outcome,
                   .prompt_tokens = usage.prompt_tokens,
                   .cached_tokens = usage.cached_tokens,
                   .completion_tokens = usage.completion_tokens,
                   .received_us = exchange_->received_us,
                   .first_token_us = first_token_us_,
                   .ended_us = context_.clock.now_us()});
}

}  // namespace rudder::server
