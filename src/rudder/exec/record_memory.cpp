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

Result<std::unique_ptr<RecordMemory>> RecordMemory::start(Parts parts) {
  RUDDER_CHECK(!parts.caps.empty() && parts.caps.has_disk() == parts.files.has_value());
  std::unique_ptr<RecordMemory> memory(new RecordMemory(std::move(parts)));
  const step::TierCaps& caps = memory->parts_.caps;
  const int64_t bytes =
      caps.plain_records * memory->plain_bytes_ + caps.stated_records * memory->stated_bytes_;
  memory->host_.reset(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
  if (memory->host_ == nullptr) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} bytes of host memory are not to be had", bytes), "kv-host-gib");
  }
  memory->thread_ = std::thread([raw = memory.get()] { raw->work(); });
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
  begun_.notify_one();
  if (thread_.joinable()) thread_.join();
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
  begun_.notify_one();
}

std::vector<step::RecordDone> RecordMemory::take_done(bool waits) {
  std::unique_lock lock(mutex_);
  if (waits) ended_.wait(lock, [&] { return !done_.empty() || num_running_ == 0; });
  return std::exchange(done_, {});
}

// Loads go before what nobody waits for; of equal ones the first. Erasing and writing files keep
// their order: a file that is written anew was erased before.
void RecordMemory::work() {
  pthread_setname_np(pthread_self(), "rudder-records");
  const auto is_awaited = [](const step::RecordCopy& copy) {
    return copy.move == step::RecordMove::kLoad || copy.move == step::RecordMove::kFetch;
  };
  std::unique_lock lock(mutex_);
  for (;;) {
    begun_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const auto awaited = std::ranges::find_if(queue_, is_awaited);
    const auto next = awaited == queue_.end() ? queue_.begin() : awaited;
    const step::RecordCopy copy = std::move(*next);
    queue_.erase(next);
    lock.unlock();
    const int64_t start_us = clock_.now_us();
    step::RecordDone done = run(copy);
    done.us = clock_.now_us() - start_us;
    lock.lock();
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
  return {host_.get() + begin, static_cast<size_t>(bytes)};
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

bool RecordMemory::take(const step::RecordCopy& copy, std::span<const std::byte> record) {
  if (!is_sealed(parts_.caps, copy.key, copy.parts, record)) return false;
  each_part(copy, [&](std::span<std::byte> to, size_t at) {
    if (!to.empty()) std::memcpy(to.data(), record.data() + at, to.size());
  });
  return true;
}

step::RecordDone RecordMemory::run(const step::RecordCopy& copy) {
  step::RecordDone done = {.id = copy.id, .ok = true};
  switch (copy.move) {
    case step::RecordMove::kStore: {
      const std::span<std::byte> record = place(copy.record, copy.parts);
      each_part(copy, [&](std::span<std::byte> from, size_t at) {
        if (!from.empty()) std::memcpy(record.data() + at, from.data(), from.size());
      });
      seal_record(parts_.caps, copy.key, copy.parts, record);
      break;
    }
    case step::RecordMove::kLoad:
      done.ok = take(copy, place(copy.record, copy.parts));
      done.is_bad = !done.ok;
      break;
    case step::RecordMove::kFetch: {
      bounce_.resize(static_cast<size_t>(record_bytes(parts_.caps, copy.parts)));
      const Result<void> read = parts_.files->read(copy.key, copy.parts, bounce_);
      done.ok = read && take(copy, bounce_);
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
