#include "rudder/steer/capture/dispatcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/contain.h"
#include "rudder/base/json.h"
#include "rudder/base/log.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/consumers.h"
#include "rudder/steer/capture/host_feature_reader.h"
#include "rudder/steer/capture/inbox.h"
#include "rudder/steer/capture/lane.h"
#include "rudder/steer/capture/slug.h"
#include "rudder/steer/capture/spec_table.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxStopUs = 5'000'000;
constexpr int64_t kIdleUs = 60'000'000;

class ThreadedDispatcher final : public Dispatcher {
 public:
  ThreadedDispatcher(Parts parts, const CaptureSettings& settings)
      : policy_(settings.overload_policy == "block"  ? OverloadPolicy::kBlock
                : settings.overload_policy == "drop" ? OverloadPolicy::kDrop
                                                     : OverloadPolicy::kSpill),
        block_timeout_us_(static_cast<int64_t>(settings.block_timeout_seconds * 1e6)),
        result_timeout_us_(static_cast<int64_t>(settings.result_timeout_seconds * 1e6)) {
    context_.geometry = std::move(parts.geometry);
    context_.limits = parts.limits;
    features_ = std::move(parts.features);
  }
  ~ThreadedDispatcher() override { stop(); }

  Result<void> open(std::vector<std::shared_ptr<Consumer>> consumers,
                    std::shared_ptr<const KeptRows> kept, const CaptureSettings& settings);

  Result<std::shared_ptr<const CaptureSpec>> spec(const json::value* field,
                                                  std::optional<StopWhen> stop_when) override;
  std::shared_ptr<const CaptureSpec> find(SpecId id) const override { return specs_.find(id); }
  CaptureId begin(CaptureRequest request) override;
  void push(std::shared_ptr<const tap::CapturedRows> rows,
            std::span<const CaptureId> by_seq) override;
  void end(CaptureId id) override {
    if (id.value != 0) inbox_->post(EndMessage{id, false});
  }
  void cancel(CaptureId id) override {
    if (id.value != 0) inbox_->post(EndMessage{id, true});
  }
  CaptureStats stats() const override;
  const KeptRows* kept() const override { return kept_.get(); }

 private:
  void run();
  bool handle(Message& message);  // false: stop
  void hand_out(const RowsMessage& message);
  void hand_out(OpenRequest& request, const tap::CapturedRows& rows,
                std::span<const tap::CapturedToken> tokens);
  void end(OpenRequest& request, bool cancelled);
  void settle(CaptureId id);
  void close_late(int64_t now);
  ConsumerResult outcome(const OpenRequest& request, size_t ask);
  void answer(OpenRequest& request);
  static void report(const OpenRequest& request, CaptureResults results);
  static void note_failure(const Message& message, const Error& error);
  void close(CaptureId id);
  void stop();
  std::shared_ptr<Seat> make_seat(const std::shared_ptr<OpenRequest>& request, size_t ask);
  OpenRequest* find(CaptureId id);
  Lane& lane_of(const OpenRequest& request, size_t ask) {
    return *lanes_[static_cast<size_t>(request.asked.spec->asks[ask].consumer)];
  }

  const OverloadPolicy policy_;
  const int64_t block_timeout_us_;
  const int64_t result_timeout_us_;
  SpecContext context_;
  std::vector<ParsedAsk> operator_asks_;
  std::vector<std::shared_ptr<Lane>> lanes_;  // by consumer
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::thread thread_;
  std::atomic<uint64_t> next_id_{1};

  SpecTable specs_;
  std::shared_ptr<const KeptRows> kept_;
  std::shared_ptr<const features::FeatureReader> features_;

  std::atomic<uint64_t> batches_{0};
  std::atomic<uint64_t> tokens_{0};
  std::atomic<uint64_t> lost_tokens_{0};
  std::atomic<int64_t> open_requests_{0};
  std::atomic<uint64_t> block_us_{0};

  // The dispatch thread's.
  std::unordered_map<CaptureId, std::shared_ptr<OpenRequest>> requests_;
  std::deque<std::pair<int64_t, CaptureId>> deadlines_;  // ascending
};

Result<void> ThreadedDispatcher::open(std::vector<std::shared_ptr<Consumer>> consumers,
                                      std::shared_ptr<const KeptRows> kept,
                                      const CaptureSettings& settings) {
  kept_ = std::move(kept);
  for (const std::shared_ptr<Consumer>& consumer : consumers) {
    const auto same = [&](const OptionsParser* other) { return other->name() == consumer->name(); };
    if (std::ranges::any_of(context_.consumers, same)) {
      return fail(ErrorCode::kInvalidArgument, "two capture consumers have this name",
                  std::string(consumer->name()));
    }
    context_.consumers.push_back(consumer.get());
  }
  if (!settings.global.empty()) {
    if (!context_.limits.capture()) {
      return fail(ErrorCode::kInvalidArgument, "capture is off", "capture-global");
    }
    RUDDER_TRY(const json::value field, parse_json(settings.global, "capture-global"));
    RUDDER_TRY(operator_asks_, parse_asks(field, "capture-global", context_));
    for (ParsedAsk& ask : operator_asks_) ask.ask.by_operator = true;
    RUDDER_TRY_VOID(combine(operator_asks_, std::nullopt, context_));
  }
  for (std::shared_ptr<Consumer>& consumer : consumers) {
    lanes_.push_back(Lane::start(std::move(consumer), {.policy = policy_,
                                                       .max_bytes = settings.queue_bytes,
                                                       .spill_dir = settings.spill_dir,
                                                       .spill_bytes = settings.spill_bytes}));
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

Result<std::shared_ptr<const CaptureSpec>> ThreadedDispatcher::spec(
    const json::value* field, std::optional<StopWhen> stop_when) {
  const bool is_asked = field != nullptr && !field->is_null();
  if (!is_asked && !stop_when && operator_asks_.empty())
    return std::shared_ptr<const CaptureSpec>();
  if (!context_.limits.capture()) {
    return fail(ErrorCode::kInvalidArgument, "this server was started without capture",
                is_asked ? "capture" : "stop_when");
  }
  std::vector<ParsedAsk> asks = operator_asks_;
  if (is_asked) {
    RUDDER_TRY(std::vector<ParsedAsk> asked, parse_asks(*field, "capture", context_));
    std::ranges::move(asked, std::back_inserter(asks));
  }
  if (asks.empty() && !stop_when) return std::shared_ptr<const CaptureSpec>();
  RUDDER_TRY(CaptureSpec made, combine(std::move(asks), std::move(stop_when), context_));
  return specs_.keep(std::move(made));
}

std::shared_ptr<Seat> ThreadedDispatcher::make_seat(const std::shared_ptr<OpenRequest>& request,
                                                    size_t ask_number) {
  const CaptureRequest& asked = request->asked;
  const Ask& ask = asked.spec->asks[ask_number];
  auto seat = std::make_shared<Seat>();
  Result<std::vector<tap::PositionRange>> ranges = asked_ranges(ask, asked.prompt_len);
  RUDDER_CHECK(ranges.has_value(), "begin() of a capture that apply() refused");
  seat->ranges = std::move(*ranges);
  seat->info.rows = row_layouts(*asked.spec, ask, context_.geometry);
  seat->info.patterns = pattern_layouts(*asked.spec, ask, context_.geometry);
  seat->info.request_id = asked.request_id;
  seat->info.tenant = asked.tenant;
  seat->info.choice = asked.choice;
  seat->info.prompt_len = asked.prompt_len;
  seat->info.stream = asked.stream;
  seat->info.by_operator = ask.by_operator;
  seat->info.dtype = context_.geometry.dtype;
  seat->info.options = ask.options;
  const std::weak_ptr<OpenRequest> weak = request;
  if (asked.on_event && !ask.by_operator) {
    seat->info.emit = [weak, name = std::string(lane_of(*request, ask_number).consumer().name())](
                          int32_t position, CapturedValues values) {
      const std::shared_ptr<OpenRequest> open = weak.lock();
      if (open == nullptr) return;
      std::lock_guard lock(open->mutex);
      if (open->is_reported) return;
      open->asked.on_event({name, open->asked.choice, position, std::move(values)});
    };
  }
  seat->deliver = [weak, ask_number, inbox = inbox_](ConsumerResult result) {
    const std::shared_ptr<OpenRequest> open = weak.lock();
    if (open == nullptr) return;
    {
      std::lock_guard lock(open->mutex);
      std::optional<ConsumerResult>& slot = open->results[ask_number];
      if (slot) return;
      slot = std::move(result);
    }
    inbox->post(ResultMessage{open->id});
  };
  return seat;
}

CaptureId ThreadedDispatcher::begin(CaptureRequest asked) {
  auto request = std::make_shared<OpenRequest>();
  request->id = CaptureId(next_id_.fetch_add(1));
  request->asked = std::move(asked);
  const CaptureSpec& spec = *request->asked.spec;
  Result<std::vector<tap::PositionRange>> captured =
      captured_ranges(spec, request->asked.prompt_len);
  RUDDER_CHECK(captured.has_value(), "begin() of a capture that apply() refused");
  request->captured = std::move(*captured);
  request->record_elements = tap::record_elements(*spec.set, context_.geometry);
  request->results.resize(spec.asks.size());
  for (size_t ask = 0; ask < spec.asks.size(); ++ask) {
    request->seats.push_back(make_seat(request, ask));
  }
  const CaptureId id = request->id;
  inbox_->post(BeginMessage{std::move(request)});
  return id;
}

void ThreadedDispatcher::push(std::shared_ptr<const tap::CapturedRows> rows,
                              std::span<const CaptureId> by_seq) {
  if (rows == nullptr || rows->tokens.empty()) return;
  inbox_->post(RowsMessage{std::move(rows), {by_seq.begin(), by_seq.end()}});
  if (policy_ != OverloadPolicy::kBlock) return;
  const int64_t before = now_us();
  for (const std::shared_ptr<Lane>& lane : lanes_) lane->backlog().wait_for_room(block_timeout_us_);
  block_us_ += static_cast<uint64_t>(now_us() - before);
}

CaptureStats ThreadedDispatcher::stats() const {
  CaptureStats stats{.consumers = {},
                     .batches = batches_,
                     .tokens = tokens_,
                     .lost_tokens = lost_tokens_,
                     .open_requests = open_requests_,
                     .block_us = block_us_,
                     .features = features_->stats()};
  for (const std::shared_ptr<Lane>& lane : lanes_) stats.consumers.push_back(lane->stats());
  return stats;
}

OpenRequest* ThreadedDispatcher::find(CaptureId id) {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

void ThreadedDispatcher::run() {
  std::deque<Message> messages;
  while (true) {
    inbox_->take(messages, deadlines_.empty() ? now_us() + kIdleUs : deadlines_.front().first);
    for (; !messages.empty(); messages.pop_front()) {
      const Result<bool> goes_on =
          contain([&]() -> Result<bool> { return handle(messages.front()); });
      if (goes_on && !*goes_on) return;
      if (!goes_on) note_failure(messages.front(), goes_on.error());
    }
    close_late(now_us());
  }
}

bool ThreadedDispatcher::handle(Message& message) {
  if (auto* begun = std::get_if<BeginMessage>(&message)) {
    OpenRequest& request = *begun->request;
    for (size_t ask = 0; ask < request.seats.size(); ++ask) {
      lane_of(request, ask).open(request.seats[ask]);
    }
    requests_.emplace(request.id, std::move(begun->request));
    open_requests_ = static_cast<int64_t>(requests_.size());
  } else if (auto* rows = std::get_if<RowsMessage>(&message)) {
    hand_out(*rows);
  } else if (auto* ended = std::get_if<EndMessage>(&message)) {
    if (OpenRequest* request = find(ended->id)) end(*request, ended->cancelled);
  } else if (auto* result = std::get_if<ResultMessage>(&message)) {
    settle(result->id);
  } else {
    return false;
  }
  return true;
}

// A request that is known is closed by its deadline at the latest; who else would answer this one?
void ThreadedDispatcher::note_failure(const Message& message, const Error& error) {
  log_error("capture: {}", error.to_string());
  if (const auto* begun = std::get_if<BeginMessage>(&message)) report(*begun->request, {});
}

// Whoever is told throws for himself alone.
void ThreadedDispatcher::report(const OpenRequest& request, CaptureResults results) {
  if (!request.asked.on_results) return;
  const Result<void> told = contain([&] { request.asked.on_results(std::move(results)); });
  if (!told) log_error("capture: who is told its results threw: {}", told.error().to_string());
}

void ThreadedDispatcher::hand_out(const RowsMessage& message) {
  RUDDER_CHECK(message.rows->dtype == context_.geometry.dtype);
  const std::vector<tap::CapturedToken>& tokens = message.rows->tokens;
  const RowsAnnounced announced{lanes_};
  ++batches_;
  tokens_ += tokens.size();
  for (size_t begin = 0; begin < tokens.size();) {
    size_t end = begin + 1;
    while (end < tokens.size() && tokens[end].seq == tokens[begin].seq) ++end;
    const auto seq = static_cast<size_t>(tokens[begin].seq);
    RUDDER_CHECK(seq < message.by_seq.size());
    OpenRequest* request = find(message.by_seq[seq]);
    if (request != nullptr && request->deadline_us == 0) {
      hand_out(*request, *message.rows, std::span(tokens).subspan(begin, end - begin));
    }
    begin = end;
  }
}

void ThreadedDispatcher::hand_out(OpenRequest& request, const tap::CapturedRows& rows,
                                  std::span<const tap::CapturedToken> tokens) {
  const size_t item_bytes = tensor::dtype_bytes(rows.dtype);
  const size_t record_bytes = static_cast<size_t>(request.record_elements) * item_bytes;
  auto chunk = std::make_shared<Chunk>();
  if (rows.data != nullptr) {
    chunk->data = std::make_unique_for_overwrite<std::byte[]>(tokens.size() * record_bytes);
  }
  for (const tap::CapturedToken& token : tokens) {
    if (token.position < request.next_position) continue;  // run again after a preemption
    if (!contains(request.captured, token.position)) continue;
    request.next_position = token.position + 1;
    if (rows.data == nullptr) {
      ++request.num_lost;
      ++lost_tokens_;
      continue;
    }
    std::memcpy(
        chunk->data.get() + chunk->bytes,
        static_cast<const std::byte*>(rows.data) + static_cast<size_t>(token.begin) * item_bytes,
        record_bytes);
    chunk->records.push_back({token.position, chunk->bytes});
    chunk->bytes += record_bytes;
  }
  if (chunk->records.empty()) return;
  const std::shared_ptr<const Chunk> shared = std::move(chunk);
  for (size_t ask = 0; ask < request.seats.size(); ++ask) {
    lane_of(request, ask).rows(request.seats[ask], shared);
  }
}

void ThreadedDispatcher::end(OpenRequest& request, bool cancelled) {
  if (request.deadline_us != 0) return;
  deadlines_.emplace_back(now_us() + result_timeout_us_, request.id);  // first: it will be answered
  request.deadline_us = deadlines_.back().first;
  request.is_cancelled = cancelled;
  for (size_t ask = 0; ask < request.seats.size(); ++ask) {
    Lane& lane = lane_of(request, ask);
    lane.end(request.seats[ask], cancelled);
    if (!lane.is_stuck(result_timeout_us_)) continue;
    std::lock_guard lock(request.mutex);
    request.results[ask] = {.consumer = {},
                            .status = Status::kError,
                            .error = "the consumer is stuck in an earlier request",
                            .payload = {}};
  }
  if (!request.asked.wait) answer(request);
  settle(request.id);
}

void ThreadedDispatcher::settle(CaptureId id) {
  OpenRequest* request = find(id);
  if (request == nullptr || request->deadline_us == 0) return;
  {
    std::lock_guard lock(request->mutex);
    if (!std::ranges::all_of(request->results, [](const auto& r) { return r.has_value(); })) return;
  }
  close(id);
}

void ThreadedDispatcher::close_late(int64_t now) {
  while (!deadlines_.empty() && deadlines_.front().first <= now) {
    const CaptureId id = deadlines_.front().second;
    deadlines_.pop_front();
    if (find(id) != nullptr) close(id);
  }
}

// The result of one consumer, as it is now. Called with the request's mutex held.
ConsumerResult ThreadedDispatcher::outcome(const OpenRequest& request, size_t ask) {
  const int64_t num_dropped = request.seats[ask]->num_dropped;
  ConsumerResult result;
  if (request.results[ask]) {
    result = *request.results[ask];
  } else if (request.asked.wait) {
    result.status = Status::kError;
    result.error = "the consumer did not finish in time";
  } else {
    result.status = Status::kPending;
  }
  if (result.status == Status::kOk && (num_dropped > 0 || request.num_lost > 0)) {
    result.status = Status::kPartialError;
    result.error = fmt::format(
        "{} rows were dropped because the consumer fell behind, {} tokens because the capture "
        "buffer was full",
        num_dropped, request.num_lost);
  }
  result.consumer = lane_of(request, ask).consumer().name();
  return result;
}

void ThreadedDispatcher::answer(OpenRequest& request) {
  const std::vector<Ask>& asks = request.asked.spec->asks;
  CaptureResults results;
  {
    std::lock_guard lock(request.mutex);
    if (request.is_reported) return;
    request.is_reported = true;
    for (size_t i = 0; i < asks.size(); ++i) {
      if (!asks[i].by_operator) results.push_back(outcome(request, i));
    }
    for (size_t i = 0; i < asks.size(); ++i) {
      const std::string name(lane_of(request, i).consumer().name());
      if (std::ranges::find(results, name, &ConsumerResult::consumer) == results.end()) {
        results.push_back({name, Status::kNotRequested, {}, {}});
      }
    }
  }
  report(request, std::move(results));
}

// Who gets the results finds the request in the stats as one that is over.
void ThreadedDispatcher::close(CaptureId id) {
  const auto node = requests_.extract(id);
  OpenRequest& request = *node.mapped();
  {
    std::lock_guard lock(request.mutex);
    for (size_t i = 0; i < request.seats.size(); ++i) {
      ConsumerResult result = outcome(request, i);
      if (result.status == Status::kPending) result.status = Status::kError;  // it never came
      lane_of(request, i).count_result(result.status);
      const bool by_operator = request.asked.spec->asks[i].by_operator;
      if (!by_operator || request.is_cancelled || result.error.empty()) continue;
      log_warn("capture {} of {}: {}", result.consumer, make_slug(request.asked.request_id),
               result.error);
    }
  }
  open_requests_ = static_cast<int64_t>(requests_.size());
  answer(request);
}

void ThreadedDispatcher::stop() {
  if (!thread_.joinable()) return;
  inbox_->post(StopMessage{});
  thread_.join();
  // From here on this thread is the dispatch thread. What had ended gets the time to be published.
  const int64_t until = now_us() + std::min(result_timeout_us_, kMaxStopUs);
  std::vector<CaptureId> open;
  for (const auto& [id, request] : requests_) {
    if (request->deadline_us == 0) open.push_back(id);
  }
  for (const CaptureId id : open) {
    if (OpenRequest* request = find(id)) end(*request, true);
  }
  for (const std::shared_ptr<Lane>& lane : lanes_) lane->close();
  for (const std::shared_ptr<Lane>& lane : lanes_) {
    if (lane->join(std::max<int64_t>(until - now_us(), 0))) continue;
    log_warn("capture: consumer {} does not come back, its thread is left behind",
             lane->consumer().name());
  }
  std::vector<CaptureId> left(requests_.size());
  std::ranges::transform(requests_, left.begin(), [](const auto& one) { return one.first; });
  for (const CaptureId id : left) settle(id);
  std::deque<Message> messages;
  while (!requests_.empty() && now_us() < until) {
    inbox_->take(messages, until);
    for (; !messages.empty(); messages.pop_front()) handle(messages.front());
  }
  while (!requests_.empty()) close(requests_.begin()->first);
}

}  // namespace

Result<std::unique_ptr<Dispatcher>> Dispatcher::create(Parts parts,
                                                       const CaptureSettings& settings) {
  if (parts.features == nullptr) parts.features = make_host_feature_reader();
  RUDDER_TRY(MadeConsumers made, make_consumers(settings, parts.geometry, parts.lookup,
                                                parts.dictionaries, parts.lens, parts.features));
  std::ranges::move(parts.consumers, std::back_inserter(made.consumers));
  parts.consumers.clear();
  auto dispatcher = std::make_unique<ThreadedDispatcher>(std::move(parts), settings);
  RUDDER_TRY_VOID(dispatcher->open(std::move(made.consumers), std::move(made.kept), settings));
  return dispatcher;
}

Result<void> Dispatcher::apply(const CaptureSpec& spec, int32_t prompt_len,
                               tap::SequenceTaps& taps) {
  RUDDER_TRY(taps.captured, captured_ranges(spec, prompt_len));
  taps.capture = spec.set;
  return {};
}

}  // namespace rudder::steer::capture
