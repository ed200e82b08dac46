#include "rudder/server/steering/patch_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/server/steering/tap_fields.h"
#include "rudder/steer/segments.h"

namespace rudder::server {
namespace {

constexpr size_t kRunsAtOnce = 8;

ApiError gone_wrong(const engine::Event& event, const ServerContext& context) {
  return context.engine_error(
      event.error.value_or(Error{ErrorCode::kInternal, "the engine gave no reason", ""}));
}

}  // namespace

PatchSweep::PatchSweep(ServerContext& context, std::shared_ptr<Exchange> exchange,
                       PatchSweepRequest request, std::shared_ptr<ActivityMark> mark)
    : context_(context),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      model_(std::make_shared<const steer::Model>(context.parts.steering->model())),
      mark_(std::move(mark)),
      charge_(context.output_bytes),
      logprobs_(static_cast<size_t>(num_runs())) {}

int64_t PatchSweep::num_runs() const {
  return 1 + (request_.num_cells() + 2) * std::ssize(request_.answers);
}

void PatchSweep::start() {
  exchange_->io->add_generation(shared_from_this());
  exchange_->on_abandon([weak = weak_from_this()] {
    const std::shared_ptr<PatchSweep> self = weak.lock();
    if (!self || self->closed_) return;
    self->cancel_all();
    self->close();
  });
  int64_t elements = 0;
  for (const SweepGrid& grid : request_.grids) {
    for (const int32_t layer : grid.layers) {
      elements += context_.engine().limits().geometry.width({layer, grid.site});
    }
  }
  const int64_t bytes = elements * std::ssize(request_.clean) * int64_t{sizeof(float)};
  if (!charge_.set(bytes, exchange_->limits().total)) {
    return fail(to_api_error(
        Error{ErrorCode::kOverloaded, "the rows of the clean run have no room now", "sites"}));
  }
  const Result<void> begun = contain([&]() -> Result<void> { return submit(next_run_++); });
  if (!begun) fail(context_.engine_error(begun.error()));
}

// The patches of a cell behind the server's own steering; each position has the row of its own.
Result<std::shared_ptr<const steer::Config>> PatchSweep::patched(const SweepCell& cell) const {
  std::vector<steer::OpSpec> specs;
  if (request_.global != nullptr) specs = request_.global->specs();
  const CleanRows& rows = rows_.at(cell.point.index());
  for (int32_t position = cell.positions.begin; position < cell.positions.end; ++position) {
    steer::OpSpec& patch = specs.emplace_back();
    patch.op = steer::OpName::kPatch;
    patch.point = cell.point;
    patch.vector = {rows.buffer, rows.begin + rows.stride * position, rows.width};
    patch.select.prompt.push_back({position, position + 1});
    patch.where = "positions";
  }
  return steer::Config::build(model_, std::move(specs));
}

Result<void> PatchSweep::submit(int64_t run) {
  const bool captures = run == 0;
  const int64_t measured = captures ? 0 : (run - 1) / std::ssize(request_.answers);
  const bool is_cell = !captures && measured >= 2;
  const bool is_clean = captures || measured == 0;

  engine::RequestParams params;
  params.client_id = fmt::format("{}-{}", request_.id, run);
  params.prompt = is_clean ? request_.clean : request_.corrupted;
  params.sampling.temperature = 0;
  params.sampling.num_logprobs = 0;
  params.ignore_eos = true;
  params.max_tokens = 1;
  params.disable_spec_decode = true;
  params.tenant = request_.tenant;
  params.adapter = request_.adapter;
  params.cache_salt = request_.cache_salt;
  if (!captures) {
    const int32_t answer =
        request_.answers[static_cast<size_t>((run - 1) % std::ssize(request_.answers))];
    params.constraints.emplace_back(constraint::AllowedTokens{{answer}});
  }

  std::shared_ptr<const steer::Config> config = request_.global;
  if (is_cell) {
    RUDDER_TRY(config, patched(request_.cell(measured - 2)));
  }
  RUDDER_TRY(const TapsLease lease, apply_taps(config.get(), captures ? request_.capture : nullptr,
                                               shape_of(params.prompt, *context_.model().tokenizer),
                                               context_.engine().programs(), &params));
  RUDDER_TRY(engine::Request request,
             engine::validate_request(std::move(params), context_.engine().limits()));
  const auto source = static_cast<uint32_t>(run);
  auto sink = [self = shared_from_this(), io = exchange_->io, source](engine::Event&& event) {
    io->deliver(self, source, std::move(event));
  };
  RUDDER_TRY(const engine::RequestId id,
             context_.engine().submit(std::move(request), std::move(sink)));
  ids_.emplace(source, id);
  return {};
}

// What the consumer `response` gave: the rows of a token follow each other, layer by layer.
Result<void> PatchSweep::keep_rows(const engine::Event& event) {
  const auto failed = [](std::string_view why) {
    return rudder::fail(ErrorCode::kTooLarge,
                        fmt::format("the clean run could not be captured: {}", why), "sites");
  };
  if (!event.capture_results) return failed("there are no results");
  for (const steer::capture::ConsumerResult& result : *event.capture_results) {
    if (result.consumer != "response") continue;
    if (result.status != steer::capture::Status::kOk || !result.values) {
      return failed(result.error);
    }
    for (const steer::capture::ResultRows& pack : result.values->rows) {
      const std::vector<float> floats = pack.to_floats();
      auto buffer = std::make_shared<float[]>(floats.size());
      std::ranges::copy(floats, buffer.get());
      const size_t per_token = pack.layers.size() / request_.clean.size();
      const Result<tap::SiteRef> ref = tap::parse_site(pack.key);
      if (!ref) return tl::unexpected(ref.error());
      for (size_t i = 0; i < per_token; ++i) {
        const tap::Point point = {pack.layers[i], ref->site};
        rows_[point.index()] = {.buffer = buffer,
                                .begin = static_cast<int64_t>(i) * pack.width,
                                .stride = static_cast<int64_t>(per_token) * pack.width,
                                .width = pack.width};
      }
    }
  }
  if (std::cmp_equal(rows_.size() * request_.positions.size(), request_.num_cells())) return {};
  return failed("rows are missing");
}

void PatchSweep::on_event(uint32_t source, engine::Event&& event) {
  if (closed_) return;
  if (source > 0 && !event.tokens.empty()) {
    logprobs_[source] = double{event.tokens.front().logprob};
  }
  if (!event.finish) return;
  ids_.erase(source);
  if (*event.finish == engine::FinishReason::kError ||
      *event.finish == engine::FinishReason::kCancelled) {
    return fail(gone_wrong(event, context_));
  }
  usage_.prompt_tokens += event.usage.prompt_tokens;
  usage_.cached_tokens += event.usage.cached_tokens;
  usage_.completion_tokens += event.usage.completion_tokens;
  if (source == 0) {
    if (const Result<void> kept = keep_rows(event); !kept) return fail(to_api_error(kept.error()));
  }
  submit_more();
  if (!closed_ && ids_.empty()) succeed();
}

void PatchSweep::submit_more() {
  while (!closed_ && ids_.size() < kRunsAtOnce && next_run_ < num_runs()) {
    const Result<void> submitted = submit(next_run_++);
    if (submitted) continue;
    // The queue is full: what runs goes on, and its end brings the next.
    const bool waits = submitted.error().code == ErrorCode::kOverloaded && !ids_.empty();
    if (!waits) return fail(context_.engine_error(submitted.error()));
    --next_run_;
    return;
  }
}

void PatchSweep::succeed() {
  const std::vector<double> metrics = sweep_metrics(request_, logprobs_);
  HttpResponse response;
  response.body = sweep_document(request_, metrics, usage_, *context_.model().tokenizer);
  exchange_->respond(std::move(response));
  close();
}

void PatchSweep::on_failure(const Error& error) {
  if (closed_) return;
  log_error("request {}: {}", exchange_->request_id, error.to_string());
  fail(to_api_error(error));
}

void PatchSweep::fail(const ApiError& error) {
  if (closed_) return;
  cancel_all();
  exchange_->respond(error_response(error));
  close();
}

void PatchSweep::end_now() {
  if (closed_) return;
  ApiError error = http_error(503, "the server is shutting down");
  error.code = "shutting_down";
  fail(error);
}

void PatchSweep::cancel_all() {
  for (const auto& [source, id] : ids_) context_.engine().cancel(id);
}

void PatchSweep::close() {
  closed_ = true;
  charge_.release();
  mark_.reset();
  exchange_->io->remove_generation(this);
}

}  // namespace rudder::server
