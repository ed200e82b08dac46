#include "rudder/exec/record_memory.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/log.h"
#include "rudder/exec/record_format.h"

namespace rudder::exec {
namespace {

bool changes_file(const step::RecordCopy& copy) {
  return copy.move == step::RecordMove::kWrite || copy.move == step::RecordMove::kErase;
}

// A sequence waits for it.
bool is_awaited(const step::RecordCopy& copy) {
  return copy.move == step::RecordMove::kLoad || copy.move == step::RecordMove::kFetch;
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
  Result<std::span<std::byte>> memory = parts_.device.lane->allocate(bytes);
  if (!memory) memory.error().where = "kv-host-gib";
  return memory;
}

Result<void> RecordMemory::allocate() {
  const step::TierCaps& caps = parts_.caps;
  const int64_t bytes = caps.plain_records * plain_bytes_ + caps.stated_records * stated_bytes_;
  const int64_t bounce = caps.has_disk() ? std::max(plain_bytes_, stated_bytes_) : 0;
  RUDDER_TRY(const std::span<std::byte> all, host_memory(bytes + parts_.num_threads * bounce));
  host_ = all.first(static_cast<size_t>(bytes));
  workers_.resize(static_cast<size_t>(parts_.num_threads));
  for (size_t i = 0; i < workers_.size(); ++i) {
    workers_[i].bounce = all.subspan(static_cast<size_t>(bytes) + i * static_cast<size_t>(bounce),
                                     static_cast<size_t>(bounce));
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
  const auto awaited = std::ranges::find_if(queue_, is_awaited);
  if (awaited != queue_.end()) return awaited;
  return std::ranges::find_if(queue_, [this](const step::RecordCopy& copy) {
    return !(changes_files_ && changes_file(copy));
  });
}

// Of loads and stores several where many wait: to be waited for once.
void RecordMemory::take_next(std::deque<step::RecordCopy>::iterator next, Worker& worker) {
  constexpr size_t kMost = 4;
  const step::RecordMove move = next->move;
  const bool may_be_several = move == step::RecordMove::kLoad || move == step::RecordMove::kStore;
  const size_t count =
      may_be_several ? std::clamp<size_t>(queue_.size() / (2 * workers_.size()), 1, kMost) : 1;
  worker.copies.clear();
  while (next != queue_.end() && worker.copies.size() < count && next->move == move) {
    worker.copies.push_back(std::move(*next));
    next = queue_.erase(next);
  }
}

void RecordMemory::work(Worker& worker) {
  pthread_setname_np(pthread_self(), "rudder-records");
  std::unique_lock lock(mutex_);
  for (;;) {
    auto next = queue_.end();
    begun_.wait(lock, [&] { return stopping_ || (next = next_copy()) != queue_.end(); });
    if (stopping_) return;
    take_next(next, worker);
    const step::RecordCopy& first = worker.copies.front();
    if (changes_file(first)) changes_files_ = true;
    lock.unlock();
    const int64_t start_us = clock_.now_us();
    run(worker);
    lock.lock();
    // Side by side several take as long as they take together.
    const int64_t end_us = clock_.now_us();
    const int64_t took_us = end_us - std::max(start_us, awaited_us_);
    if (is_awaited(first)) awaited_us_ = end_us;
    if (changes_file(first)) {
      changes_files_ = false;
      begun_.notify_one();
    }
    for (step::RecordDone& done : worker.done) {
      done.us = took_us / std::ssize(worker.done);
      done_.push_back(done);
    }
    num_running_ -= worker.done.size();
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

// Each part that the device has, and its place in the record.
void RecordMemory::list_pieces(const step::RecordCopy& copy, std::span<std::byte> record,
                               Worker& worker) const {
  each_part(copy, [&](std::span<std::byte> device, size_t at) {
    if (device.empty()) return;
    worker.pieces.push_back({.device = device, .host = record.subspan(at, device.size())});
  });
}

void RecordMemory::store(Worker& worker) {
  for (const step::RecordCopy& copy : worker.copies) {
    worker.records.push_back(place(copy.record, copy.parts));
    list_pieces(copy, worker.records.back(), worker);
  }
  const bool ok = parts_.device.lane->copy_out(worker.pieces).has_value();
  for (size_t i = 0; i < worker.copies.size(); ++i) {
    const step::RecordCopy& copy = worker.copies[i];
    worker.done[i].ok = ok;
    if (ok) seal_record(parts_.caps, copy.key, copy.parts, worker.records[i]);
  }
}

// Of `records`. What a header does not say is right is not copied; a payload that turns out to be
// another has been, to where nobody looks.
void RecordMemory::load(Worker& worker) {
  for (size_t i = 0; i < worker.copies.size(); ++i) {
    const step::RecordCopy& copy = worker.copies[i];
    worker.done[i].ok = has_header(parts_.caps, copy.key, copy.parts, worker.records[i]);
    if (worker.done[i].ok) list_pieces(copy, worker.records[i], worker);
  }
  const Result<void> copied = parts_.device.lane->copy_in(worker.pieces, [&] {
    for (size_t i = 0; i < worker.copies.size(); ++i) {
      worker.done[i].ok = worker.done[i].ok && has_payload(worker.records[i]);
    }
  });
  for (step::RecordDone& done : worker.done) {
    done.ok = done.ok && copied;
    done.is_bad = !done.ok;
  }
}

void RecordMemory::fetch(Worker& worker) {
  const step::RecordCopy& copy = worker.copies.front();
  const auto bytes = static_cast<size_t>(record_bytes(parts_.caps, copy.parts));
  worker.records.push_back(worker.bounce.first(bytes));
  const Result<void> read = parts_.files->read(copy.key, copy.parts, worker.records.front());
  if (read) return load(worker);
  step::RecordDone& done = worker.done.front();
  done.ok = false;
  done.is_bad = read.error().code != ErrorCode::kNotFound;
}

void RecordMemory::write(const step::RecordCopy& copy, step::RecordDone& done) {
  const std::span<const std::byte> record = place(copy.record, copy.parts);
  done.is_bad = !has_header(parts_.caps, copy.key, copy.parts, record) || !has_payload(record);
  const Result<void> written = done.is_bad
                                   ? fail(ErrorCode::kIo, "the record is bad", "kv-host-gib")
                                   : parts_.files->write(copy.key, copy.parts, record);
  done.ok = written.has_value();
  if (!written) log_debug("a record is not written: {}", written.error().to_string());
}

void RecordMemory::run(Worker& worker) {
  worker.records.clear();
  worker.pieces.clear();
  worker.done.clear();
  for (const step::RecordCopy& copy : worker.copies) {
    worker.done.push_back({.id = copy.id, .ok = true});
  }
  const step::RecordCopy& first = worker.copies.front();
  switch (first.move) {
    case step::RecordMove::kStore:
      return store(worker);
    case step::RecordMove::kLoad:
      for (const step::RecordCopy& copy : worker.copies) {
        worker.records.push_back(place(copy.record, copy.parts));
      }
      return load(worker);
    case step::RecordMove::kFetch:
      return fetch(worker);
    case step::RecordMove::kWrite:
      return write(first, worker.done.front());
    case step::RecordMove::kErase:
      return parts_.files->erase(first.key, first.parts);
  }
}

}  // namespace rudder::exec
