#include "rudder/cpu/host_comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

#include "rudder/base/check.h"
#include "rudder/base/starvation.h"
#include "rudder/cpu/device_memory.h"

namespace rudder::cpu {
namespace {

// Patience is counted in waits of this length: of a time in which the process stood still only one
// of them ends.
constexpr int32_t kWaitMs = 50;
constexpr int32_t kMostWaits = HostComm::kStarvedPatienceMs / kWaitMs;
// After a failure a rank waits so long for those that read what it showed; reading is a part of an
// op. Who reads longer stands still.
constexpr int32_t kReadMs = 500;

}  // namespace

// The ranks come to one exchange after another. No rank can be two exchanges ahead of another, so
// two boards are enough: what was shown at one is read while the next one fills.
struct HostComm::Group {
  struct Board {
    std::vector<tensor::View> shown;
    std::string_view op;
    uint64_t step = 0;
    int64_t rows = 0;
  };

  Group(int32_t count, int32_t patience_ms) : waits(std::max(1, patience_ms / kWaitMs)) {
    for (Board& board : boards) board.shown.resize(static_cast<size_t>(count));
    num_exchanges.resize(static_cast<size_t>(count));
    is_reading.resize(static_cast<size_t>(count));
  }

  // What `rank` shows does not fit what others showed; empty: it does.
  std::string disagreement(int32_t rank, const Board& board, std::string_view op, uint64_t step,
                           int64_t rows) const {
    if (num_come == 0 || (board.op == op && board.step == step && board.rows == rows)) return {};
    return fmt::format("rank {} is at {} of {} rows (step {}), others at {} of {} rows (step {})",
                       rank, op, rows, step, board.op, board.rows, board.step);
  }

  // Wakes nobody, each waiter looks for it: to wake them could take as long as a rank stands still
  // that was woken before.
  void fail_locked(Error error) {
    if (!fault) fault = std::move(error);
  }

  // What this rank showed is about to be written again, and no exchange orders that any more.
  tl::unexpected<Error> leave_failed(std::unique_lock<std::mutex>& lock) {
    const auto is_left = [&] { return std::ranges::find(is_reading, true) == is_reading.end(); };
    all_come.wait_for(lock, std::chrono::milliseconds(kReadMs), is_left);
    is_reading.assign(is_reading.size(), false);  // nobody waits for them again
    return tl::unexpected<Error>(*fault);
  }

  // Waits for every rank. `number` counts the exchanges of this rank.
  Result<std::span<const tensor::View>> come(int32_t rank, std::string_view op, uint64_t step,
                                             const tensor::View& mine) {
    std::unique_lock lock(mutex);
    is_reading[static_cast<size_t>(rank)] = false;
    if (fault) {
      all_come.notify_all();
      return leave_failed(lock);
    }
    const uint64_t number = num_exchanges[static_cast<size_t>(rank)]++;
    RUDDER_CHECK(number == num_done, "rank {} is at exchange {} of {}", rank, number, num_done);
    Board& board = boards[number % 2];
    const int64_t rows = mine.num_rows();
    if (const std::string what = disagreement(rank, board, op, step, rows); !what.empty()) {
      fail_locked({ErrorCode::kInternal, what, std::string(kWhere)});
      return leave_failed(lock);
    }
    board.op = op;
    board.step = step;
    board.rows = rows;
    board.shown[static_cast<size_t>(rank)] = mine;
    if (++num_come == static_cast<int32_t>(num_exchanges.size())) {
      num_come = 0;
      ++num_done;
      is_reading.assign(is_reading.size(), !mine.empty());
      lock.unlock();  // who is woken does not run into it
      all_come.notify_all();
      lock.lock();
    }
    const auto over = [&] { return num_done > number || fault.has_value(); };
    wait_patiently(lock, over);
    if (num_done <= number && !fault) fail_locked(late(number, op));
    if (num_done <= number) return leave_failed(lock);
    return std::span<const tensor::View>(board.shown);
  }

  void wait_patiently(std::unique_lock<std::mutex>& lock, const std::function<bool()>& over) {
    Starvation starvation;
    int32_t impatience = 0;
    for (int32_t i = 0; i < kMostWaits && impatience < waits; ++i) {
      if (all_come.wait_for(lock, std::chrono::milliseconds(kWaitMs), over)) return;
      lock.unlock();  // the look reads files
      impatience += starvation.look() ? 0 : 1;
      lock.lock();
    }
  }

  Error late(uint64_t number, std::string_view op) const {
    std::string ranks;
    for (size_t i = 0; i < num_exchanges.size(); ++i) {
      if (num_exchanges[i] <= number) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", i);
    }
    return {ErrorCode::kInternal,
            fmt::format("rank {} of {} did not come to {} within {} ms", ranks,
                        num_exchanges.size(), op, waits * kWaitMs),
            std::string(kWhere)};
  }

  static constexpr std::string_view kWhere = "tensor-parallel-size";

  const int32_t waits;
  mutable std::mutex mutex;
  std::condition_variable all_come;
  Board boards[2];
  std::vector<uint64_t> num_exchanges;  // of each rank, begun
  uint64_t num_done = 0;                // exchanges that every rank came to
  int32_t num_come = 0;                 // ranks at the one that is not done
  std::vector<bool> is_reading;         // of each rank: others' memory, until its next exchange
  std::optional<Error> fault;
  DeviceMemory memory;
  tensor::View shared;  // of shared_memory(); empty: nobody has asked yet
};

std::vector<std::shared_ptr<HostComm>> HostComm::make_group(int32_t count, int32_t patience_ms) {
  RUDDER_CHECK(count > 0);
  const auto group = std::make_shared<Group>(count, patience_ms);
  std::vector<std::shared_ptr<HostComm>> ranks;
  ranks.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    ranks.push_back(std::shared_ptr<HostComm>(new HostComm(group, {i, count})));
  }
  return ranks;
}

Result<tensor::View> HostComm::shared_memory(tensor::DType dtype, tensor::Shape shape) {
  const std::lock_guard lock(group_->mutex);
  if (group_->shared.empty()) {
    RUDDER_TRY(group_->shared, group_->memory.allocate(dtype, shape));
  }
  RUDDER_CHECK(group_->shared.dtype == dtype && group_->shared.shape == shape,
               "rank {} shares other memory", rank_.index);
  return group_->shared;
}

void HostComm::meet(uint64_t step) {
  static_cast<void>(group_->come(rank_.index, "the end of a step", step, {}));
}

Result<void> HostComm::status() const {
  const std::lock_guard lock(group_->mutex);
  if (group_->fault) return tl::unexpected<Error>(*group_->fault);
  return {};
}

void HostComm::fail(const Error& error) {
  const std::lock_guard lock(group_->mutex);
  group_->fail_locked(error);
}

Result<std::span<const tensor::View>> HostComm::exchange(std::string_view op,
                                                         const tensor::View& mine) {
  return group_->come(rank_.index, op, 0, mine);
}

}  // namespace rudder::cpu
