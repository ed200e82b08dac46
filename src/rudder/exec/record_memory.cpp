#include "rudder/exec/record_memory.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/log.h"
#include "rudder/exec/record_format.h"

namespace rudder::exec {
namespace {

bool changes_file(const step::RecordCopy& copy) {
  return copy.move == step::RecordMove::kWrite || copy.move == step::RecordMove::kErase;
}

ops::View view_of(std::span<std::byte> bytes) {
  return {bytes.data(), tensor::DType::kU8, {std::ssize(bytes)}};
}

}  // namespace

Result<std::unique_ptr<RecordMemory>> RecordMemory::start(Parts parts) {
  RUDDER_CHECK(!parts.caps.empty() && parts.caps.has_disk() == parts.files.has_value());
  std::unique_ptr<RecordMemory> memory(new RecordMemory(std::move(parts)));
  RUDDER_TRY_VOID(memory->allocate());
  for (Worker& worker : memory->workers_) {
    memory->threads_.emplace_back([raw = memory.get(), &worker] { raw->work(worker); });
  }
  return memory;
}

RecordMemory::RecordMemory(Parts parts) : parts_(std::move(parts)) {
  const step::RecordParts blocks = step::group_part(parts_.num_groups) - 1;
  plain_bytes_ = record_bytes(parts_.caps, blocks);
  stated_bytes_ = record_bytes(parts_.caps, blocks | step::kStatePart);
}

RecordMemory::~RecordMemory() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Result<std::span<std::byte>> RecordMemory::host_memory(int64_t bytes) {
  if (ops::Ops* const lane = parts_.device.lane.get()) {
    RUDDER_TRY(const ops::View pinned, lane->allocate_staging(bytes));
    return std::span(static_cast<std::byte*>(pinned.data), static_cast<size_t>(bytes));
  }
  owned_.emplace_back(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
  if (owned_.back() == nullptr) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} bytes of host memory are not to be had", bytes), "kv-host-gib");
  }
  return std::span(owned_.back().get(), static_cast<size_t>(bytes));
}

Result<void> RecordMemory::allocate() {
  const step::TierCaps& caps = parts_.caps;
  RUDDER_TRY(host_,
             host_memory(caps.plain_records * plain_bytes_ + caps.stated_records * stated_bytes_));
  workers_.resize(static_cast<size_t>(parts_.num_threads));
  for (Worker& worker : workers_) {
    if (caps.has_disk()) {
      RUDDER_TRY(worker.bounce, host_memory(std::max(plain_bytes_, stated_bytes_)));
    }
    if (parts_.device.lane != nullptr) worker.copied = parts_.device.lane->make_event();
  }
  return {};
}

std::vector<step::StoredRecord> RecordMemory::stored() const {
  return parts_.files ? parts_.files->list() : std::vector<step::StoredRecord>();
}

void RecordMemory::begin(std::span<const step::RecordCopy> copies) {
  if (copies.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    queue_.insert(queue_.end(), copies.begin(), copies.end());
    num_running_ += copies.size();
  }
  begun_.notify_all();
}

std::vector<step::RecordDone> RecordMemory::take_done(bool waits) {
  std::unique_lock lock(mutex_);
  if (waits) ended_.wait(lock, [&] { return !done_.empty() || num_running_ == 0; });
  return std::exchange(done_, {});
}

// Loads go before what nobody waits for; of equal ones the first. Writing and erasing files keep
// their order, since a file that is written anew was erased before: one thread at a time does so.
std::deque<step::RecordCopy>::iterator RecordMemory::next_copy() {
  const auto is_awaited = [](const step::RecordCopy& copy) {
    return copy.move == step::RecordMove::kLoad || copy.move == step::RecordMove::kFetch;
  };
  const auto awaited = std::ranges::find_if(queue_, is_awaited);
  if (awaited != queue_.end()) return awaited;
  return std::ranges::find_if(queue_, [this](const step::RecordCopy& copy) {
    return !(changes_files_ && changes_file(copy));
  });
}

void RecordMemory::work(Worker& worker) {
  pthread_setname_np(pthread_self(), "rudder-records");
  std::unique_lock lock(mutex_);
  for (;;) {
    auto next = queue_.end();
    begun_.wait(lock, [&] { return stopping_ || (next = next_copy()) != queue_.end(); });
    if (stopping_) return;
    const step::RecordCopy copy = std::move(*next);
    queue_.erase(next);
    if (changes_file(copy)) changes_files_ = true;
    lock.unlock();
    const int64_t start_us = clock_.now_us();
    step::RecordDone done = run(copy, worker);
    done.us = clock_.now_us() - start_us;
    lock.lock();
    if (changes_file(copy)) {
      changes_files_ = false;
      begun_.notify_one();
    }
    done_.push_back(done);
    --num_running_;
    ended_.notify_one();
  }
}

std::span<std::byte> RecordMemory::place(step::RecordId record, step::RecordParts parts) {
  const step::TierCaps& caps = parts_.caps;
  RUDDER_CHECK(record >= 0 && record < caps.plain_records + caps.stated_records, "record {}",
               record);
  const int64_t begin =
      record < caps.plain_records
          ? record * plain_bytes_
          : caps.plain_records * plain_bytes_ + (record - caps.plain_records) * stated_bytes_;
  const int64_t room = record < caps.plain_records ? plain_bytes_ : stated_bytes_;
  const int64_t bytes = record_bytes(caps, parts);
  RUDDER_CHECK(bytes <= room, "a record of {} bytes in a place of {}", bytes, room);
  return host_.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
}

// Of each part that the record has, in its order: where the device has it (two pieces of a block
// where tokens have scales), or nothing, and its offset in the payload.
template <typename CopyPart>
void RecordMemory::each_part(const step::RecordCopy& copy, const CopyPart& copy_part) const {
  const Device& device = parts_.device;
  const auto piece = [](std::span<std::byte> all, int64_t index, int64_t count) {
    const size_t bytes = all.size() / static_cast<size_t>(std::max<int64_t>(count, 1));
    if (index < 0) return std::pair(std::span<std::byte>(), bytes);
    RUDDER_CHECK(index < count, "object {} of {}", index, count);
    return std::pair(all.subspan(static_cast<size_t>(index) * bytes, bytes), bytes);
  };
  size_t at = sizeof(RecordHeader);
  const auto next = [&](const auto& found) {
    copy_part(found.first, at);
    at += found.second;
  };
  for (int32_t g = 0; g < parts_.num_groups; ++g) {
    if ((copy.parts & step::group_part(g)) == 0) continue;
    const step::BlockId block = copy.blocks[static_cast<size_t>(g)];
    next(piece(device.scales, block, device.num_blocks));
    next(piece(device.blocks, block, device.num_blocks));
  }
  if ((copy.parts & step::kStatePart) != 0)
    next(piece(device.states, copy.state, device.num_states));
}

// Each part that the device has, and its place in the record; false: a fault of the device.
template <typename Copy, typename CopyOnLane>
bool RecordMemory::copy_parts(const step::RecordCopy& copy, std::span<std::byte> record,
                              Worker& worker, const Copy& on_host, const CopyOnLane& on_lane) {
  const auto each = [&](const auto& copy_part) {
    each_part(copy, [&](std::span<std::byte> device, size_t at) {
      if (!device.empty()) copy_part(device, record.subspan(at, device.size()));
    });
  };
  ops::Ops* const lane = parts_.device.lane.get();
  if (lane == nullptr) {
    each(on_host);
    return true;
  }
  {
    const std::lock_guard lock(lane_);
    each([&](std::span<std::byte> device, std::span<std::byte> host) {
      on_lane(*lane, view_of(device), view_of(host));
    });
    lane->record(*worker.copied);
  }
  return worker.copied->wait().has_value();
}

bool RecordMemory::take(const step::RecordCopy& copy, std::span<std::byte> record, Worker& worker) {
  using Bytes = std::span<std::byte>;
  return is_sealed(parts_.caps, copy.key, copy.parts, record) &&
         copy_parts(
             copy, record, worker,
             [](Bytes to, Bytes from) { std::memcpy(to.data(), from.data(), to.size()); },
             [](ops::Ops& lane, const ops::View& to, const ops::View& from) {
               lane.copy_in(to, from);
             });
}

bool RecordMemory::store(const step::RecordCopy& copy, std::span<std::byte> record,
                         Worker& worker) {
  using Bytes = std::span<std::byte>;
  const bool ok = copy_parts(
      copy, record, worker,
      [](Bytes from, Bytes to) { std::memcpy(to.data(), from.data(), from.size()); },
      [](ops::Ops& lane, const ops::View& from, const ops::View& to) { lane.copy_out(to, from); });
  if (ok) seal_record(parts_.caps, copy.key, copy.parts, record);
  return ok;
}

step::RecordDone RecordMemory::run(const step::RecordCopy& copy, Worker& worker) {
  step::RecordDone done = {.id = copy.id, .ok = true};
  switch (copy.move) {
    case step::RecordMove::kStore:
      done.ok = store(copy, place(copy.record, copy.parts), worker);
      break;
    case step::RecordMove::kLoad:
      done.ok = take(copy, place(copy.record, copy.parts), worker);
      done.is_bad = !done.ok;
      break;
    case step::RecordMove::kFetch: {
      const auto bytes = static_cast<size_t>(record_bytes(parts_.caps, copy.parts));
      const std::span<std::byte> bounce = worker.bounce.first(bytes);
      const Result<void> read = parts_.files->read(copy.key, copy.parts, bounce);
      done.ok = read && take(copy, bounce, worker);
      done.is_bad = !done.ok && (read || read.error().code != ErrorCode::kNotFound);
      break;
    }
    case step::RecordMove::kWrite: {
      const std::span<const std::byte> record = place(copy.record, copy.parts);
      done.is_bad = !is_sealed(parts_.caps, copy.key, copy.parts, record);
      const Result<void> written = done.is_bad
                                       ? fail(ErrorCode::kIo, "the record is bad", "kv-host-gib")
                                       : parts_.files->write(copy.key, copy.parts, record);
      done.ok = written.has_value();
      if (!written) log_debug("a record is not written: {}", written.error().to_string());
      break;
    }
    case step::RecordMove::kErase:
      parts_.files->erase(copy.key, copy.parts);
      break;
  }
  return done;
}

}  // namespace rudder::exec
