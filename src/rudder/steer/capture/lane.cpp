#include "rudder/steer/capture/lane.h"

#include <chrono>
#include <utility>

#include "rudder/base/clock.h"
#include "rudder/base/contain.h"
#include "rudder/base/log.h"

namespace rudder::steer::capture {
namespace {

ConsumerResult error_result(const Error& error) {
  return {.consumer = {}, .status = Status::kError, .error = error.to_string(), .payload = {}};
}

}  // namespace

Lane::Lane(std::shared_ptr<Consumer> consumer, const Backlog::Bounds& bounds)
    : consumer_(std::move(consumer)), backlog_(std::make_shared<Backlog>(bounds)) {}

std::shared_ptr<Lane> Lane::start(std::shared_ptr<Consumer> consumer,
                                  const Backlog::Bounds& bounds) {
  std::shared_ptr<Lane> lane(new Lane(std::move(consumer), bounds));
  lane->thread_ = std::thread([lane] { lane->run(); });
  return lane;
}

Lane::~Lane() {
  // The thread holds the lane: the last pointer is given up by the thread itself, or after join().
  if (thread_.joinable()) thread_.detach();
}

bool Lane::join(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  if (!done_.wait_for(lock, std::chrono::microseconds(timeout_us), [&] { return is_done_; })) {
    return false;
  }
  lock.unlock();
  thread_.join();
  return true;
}

void Lane::open(const std::shared_ptr<Seat>& seat) {
  backlog_->push(BacklogItem::Kind::kOpen, seat);
}

void Lane::rows(const std::shared_ptr<Seat>& seat, const std::shared_ptr<const Chunk>& chunk) {
  std::vector<Record> records;
  for (const Record& record : chunk->records) {
    if (contains(seat->ranges, record.position)) records.push_back(record);
  }
  if (records.empty()) return;
  const size_t num_rows = records.size() * seat->info.rows.size();
  switch (backlog_->push_rows(seat, chunk, std::move(records))) {
    case Backlog::Pushed::kQueued:
      return;
    case Backlog::Pushed::kSpilled:
      spilled_rows_ += num_rows;
      spilled_bytes_ += chunk->bytes;
      return;
    case Backlog::Pushed::kDropped:
      dropped_rows_ += num_rows;
      seat->num_dropped += static_cast<int64_t>(num_rows);
      return;
  }
}

void Lane::end(const std::shared_ptr<Seat>& seat, bool cancelled) {
  backlog_->push(cancelled ? BacklogItem::Kind::kCancel : BacklogItem::Kind::kEnd, seat);
}

void Lane::run() {
  const SteadyClock clock;
  std::deque<BacklogItem> items;
  while (std::optional<BacklogItem> first = backlog_->pop()) {
    items.push_back(std::move(*first));
    add_ready(items);
    while (!items.empty()) {
      call_began_us_ = clock.now_us();
      if (consumer_->records_ahead() > 0) read_ahead(items);
      BacklogItem& item = items.front();
      const Result<void> handled = contain([&] { handle(item); });
      if (!handled) note_failure(item, handled.error());
      items.pop_front();  // gives its rows back
    }
    call_began_us_ = 0;
  }
  if (const Result<void> drained = contain([this] { consumer_->drain(); }); !drained) {
    log_warn("capture consumer {}: {}", consumer_->name(), drained.error().to_string());
  }
  std::lock_guard lock(mutex_);
  is_done_ = true;
  done_.notify_all();
}

void Lane::add_ready(std::deque<BacklogItem>& items) {
  size_t num_records = items.front().batch.records.size();
  while (num_records < consumer_->records_ahead()) {
    std::optional<BacklogItem> next = backlog_->pop_ready();
    if (!next) break;
    num_records += next->batch.records.size();
    items.push_back(std::move(*next));
  }
}

// Before a session takes the first of them, for all that have a session by then. Should it throw,
// they do without.
void Lane::read_ahead(std::deque<BacklogItem>& items) {
  const auto is_news = [](const BacklogItem& item) {
    return item.kind == BacklogItem::Kind::kRows && !item.lost && !item.is_shown &&
           item.seat->session != nullptr;
  };
  if (!is_news(items.front())) return;
  std::vector<Consumer::Upcoming> upcoming;
  for (BacklogItem& item : items) {
    if (!is_news(item)) continue;
    item.is_shown = true;
    upcoming.push_back({item.seat->session.get(), &item.batch});
  }
  const Result<void> read = contain([&] { consumer_->read_ahead(upcoming); });
  if (!read) log_warn("capture consumer {}: {}", consumer_->name(), read.error().to_string());
}

void Lane::handle(BacklogItem& item) {
  Seat& seat = *item.seat;
  switch (item.kind) {
    case BacklogItem::Kind::kOpen: {
      Result<std::shared_ptr<Session>> session = consumer_->open(seat.info);
      if (session) {
        seat.session = std::move(*session);
      } else {
        seat.error = session.error();
      }
      return;
    }
    case BacklogItem::Kind::kRows:
      return take(seat, item);
    case BacklogItem::Kind::kEnd:
      if (seat.error) {
        seat.deliver(error_result(*seat.error));
      } else {
        seat.session->finish(false, seat.deliver);
      }
      break;
    case BacklogItem::Kind::kCancel:
      if (seat.session != nullptr) seat.session->finish(true, [](const ConsumerResult&) {});
      seat.deliver(error_result({ErrorCode::kCancelled, "the request was cancelled", ""}));
      break;
  }
  seat.session.reset();
}

// The consumer threw: what it does for others goes on.
void Lane::note_failure(BacklogItem& item, const Error& error) {
  Seat& seat = *item.seat;
  const std::shared_ptr<Session> session = std::move(seat.session);
  seat.session.reset();
  if (item.kind == BacklogItem::Kind::kEnd || item.kind == BacklogItem::Kind::kCancel) {
    return seat.deliver(error_result(error));
  }
  seat.error = error;
  if (session == nullptr) return;
  static_cast<void>(contain([&] { session->finish(true, [](const ConsumerResult&) {}); }));
}

void Lane::take(Seat& seat, BacklogItem& item) {
  const size_t num_rows = item.batch.records.size() * seat.info.rows.size();
  if (seat.session == nullptr || item.lost) {
    dropped_rows_ += num_rows;
    seat.num_dropped += static_cast<int64_t>(num_rows);
    return;
  }
  size_t record_bytes = 0;
  for (const RowLayout& layout : seat.info.rows) record_bytes += layout.bytes;
  rows_ += num_rows;
  bytes_ += item.batch.records.size() * record_bytes;
  const Result<void> taken = seat.session->take(std::move(item.batch));
  if (taken) return;
  seat.error = taken.error();
  seat.session->finish(true, [](const ConsumerResult&) {});
  seat.session.reset();
}

bool Lane::is_stuck(int64_t timeout_us) const {
  const int64_t began = call_began_us_;
  return began != 0 && SteadyClock().now_us() - began > timeout_us;
}

void Lane::count_result(Status status) {
  switch (status) {
    case Status::kOk:
      ++results_ok_;
      return;
    case Status::kPartialError:
      ++results_partial_;
      return;
    default:
      ++results_error_;
      return;
  }
}

ConsumerStats Lane::stats() const {
  return {.name = std::string(consumer_->name()),
          .rows = rows_,
          .bytes = bytes_,
          .dropped_rows = dropped_rows_,
          .spilled_rows = spilled_rows_,
          .spilled_bytes = spilled_bytes_,
          .queued_bytes = backlog_->held_bytes(),
          .spill_bytes = backlog_->spill_held_bytes(),
          .results_ok = results_ok_,
          .results_partial = results_partial_,
          .results_error = results_error_};
}

}  // namespace rudder::steer::capture
