// FakeExecutor, what stands in for records of cached prefixes: their copies, which end some steps
// later and in any order, and what may go wrong with them.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rudder/base/mutants.h"
#include "rudder/base/philox.h"
#include "rudder/testing/fake_executor.h"

namespace rudder::testing {

namespace {

std::pair<uint64_t, uint64_t> file_of(const step::RecordKey& key) {
  return {key.low, key.high};
}

bool is_to_device(const step::RecordCopy& copy) {
  return copy.move == step::RecordMove::kLoad || copy.move == step::RecordMove::kFetch;
}

}  // namespace

std::vector<step::StoredRecord> FakeExecutor::take_stored() {
  std::vector<step::StoredRecord> stored;
  for (const auto& [key, record] : files_->records) stored.push_back({record.key, record.parts});
  return stored;
}

// From what is written and stays, to what nobody uses (cache.C9, cache.C10).
void FakeExecutor::check_records(const step::StepPlan& plan) {
  const auto fills = [](const step::RecordCopy& copy) {
    return copy.move == step::RecordMove::kStore;
  };
  for (const step::RecordCopy& copy : plan.record_copies) {
    for (const auto& [id, other] : untold_) {
      const bool is_shared = copy.record != step::kNoRecord && copy.record == other.record;
      if (!is_shared || (!fills(copy) && !fills(other))) continue;
      violation(fmt::format("step {}: place {} is filled and used by copies {} and {} at once",
                            plan.id, copy.record, id, copy.id));
    }
    const bool is_to = is_to_device(copy);
    for (const step::BlockId block : copy.blocks) {
      if (block == step::kNoBlock) continue;
      const BlockUse& use = block_uses_.at(static_cast<size_t>(block));
      const bool is_busy = is_to ? use.last_use > last_collected_ || use.records > 0
                                 : is_writing(use) || use.records_to > 0;
      if (!is_busy) continue;
      violation(fmt::format("step {}: a record is copied {} block {}, which is used", plan.id,
                            is_to ? "to" : "from", block));
    }
    if (copy.state != step::kNoState) {
      const StateUse& use = state_uses_.at(static_cast<size_t>(copy.state));
      // Opened by this very plan, it is nobody else's.
      if (!is_to && (use.last_write > last_collected_ || use.last_copy_to > copies_told_)) {
        violation(fmt::format("step {}: a record is copied from state {}, which is written",
                              plan.id, copy.state));
      }
    }
    count_record(copy, 1);
  }
}

void FakeExecutor::count_record(const step::RecordCopy& copy, int32_t by) {
  for (const step::BlockId block : copy.blocks) {
    if (block == step::kNoBlock) continue;
    BlockUse& use = block_uses_[static_cast<size_t>(block)];
    use.records += by;
    if (is_to_device(copy)) use.records_to += by;
  }
  if (copy.state != step::kNoState) state_uses_[static_cast<size_t>(copy.state)].records += by;
}

// A file that is erased is gone at once.
void FakeExecutor::begin_records(const step::StepPlan& plan) {
  for (const step::RecordCopy& copy : plan.record_copies) {
    if (copy.move == step::RecordMove::kErase) files_->records.erase(file_of(copy.key));
    const uint32_t drawn = philox4x32(options_.seed, static_cast<uint64_t>(copy.id))[2];
    const auto later =
        static_cast<step::StepId>(drawn % static_cast<uint32_t>(options_.record_steps + 1));
    record_work_.push_back({.copy = copy, .due = plan.id + later});
    untold_.emplace(copy.id, copy);
  }
}

// A step of nothing waits for one.
void FakeExecutor::end_records(const step::StepPlan& plan, step::StepResult* result) {
  const bool waits = plan.seqs.empty() && plan.copies_before.empty() && plan.record_copies.empty();
  std::ranges::stable_sort(record_work_, {}, &RecordWork::due);
  while (!record_work_.empty()) {
    const bool is_due = record_work_.front().due <= plan.id;
    if (!is_due && !(waits && result->records_done.empty())) return;
    result->records_done.push_back(run_record(record_work_.front().copy));
    record_work_.erase(record_work_.begin());
  }
}

step::RecordDone FakeExecutor::run_record(const step::RecordCopy& copy) {
  const std::array<uint32_t, 4> drawn =
      philox4x32(options_.seed ^ 1, static_cast<uint64_t>(copy.id));
  const bool goes_wrong =
      options_.bad_record_in > 0 && drawn[0] % static_cast<uint32_t>(options_.bad_record_in) == 0;
  step::RecordDone done = {.id = copy.id, .ok = true, .us = 1 + drawn[1] % 200};
  FakeRecord* const placement =
      copy.record == step::kNoRecord ? nullptr : &placements_.at(static_cast<size_t>(copy.record));
  switch (copy.move) {
    case step::RecordMove::kStore: {
      FakeRecord record = {.key = copy.key, .parts = copy.parts, .cells = {}, .state = {}};
      const auto size = static_cast<size_t>(options_.capacity.block_size);
      for (const step::BlockId block : copy.blocks) {
        const auto first = memory_.begin() + std::max(block, 0) * static_cast<ptrdiff_t>(size);
        record.cells.emplace_back(first, first + static_cast<ptrdiff_t>(size));
      }
      if (copy.state != step::kNoState) record.state = states_[static_cast<size_t>(copy.state)];
      record.is_bad = goes_wrong;
      *placement = std::move(record);
      break;
    }
    case step::RecordMove::kLoad:
      done.ok = take_record(copy, *placement);
      done.is_bad = !done.ok;
      break;
    case step::RecordMove::kFetch: {
      const auto file = files_->records.find(file_of(copy.key));
      done.ok = file != files_->records.end() && take_record(copy, file->second);
      done.is_bad = !done.ok && file != files_->records.end();
      break;
    }
    case step::RecordMove::kWrite:  // a full disk; a record whose checksum is wrong is not written
      done.ok = !goes_wrong && !placement->is_bad;
      done.is_bad = placement->is_bad;
      if (done.ok) files_->records[file_of(copy.key)] = *placement;
      if (done.ok && drawn[2] % 7 == 0) files_->records[file_of(copy.key)].is_bad = goes_wrong;
      break;
    case step::RecordMove::kErase:
      break;
  }
  return done;
}

// What is bad has other bytes than those that were stored; some of them have come when that is
// found out.
bool FakeExecutor::take_record(const step::RecordCopy& copy, const FakeRecord& record) {
  const bool is_good = !record.is_bad && record.key == copy.key && record.parts == copy.parts;
  const auto size = static_cast<ptrdiff_t>(options_.capacity.block_size);
  for (size_t g = 0; g < copy.blocks.size() && g < record.cells.size(); ++g) {
    if (copy.blocks[g] == step::kNoBlock) continue;
    const auto to = memory_.begin() + copy.blocks[g] * size;
    std::ranges::copy(record.cells[g], to);
    if (!is_good) (to + size - 1)->prefix_hash ^= 1;
  }
  if (copy.state != step::kNoState) {
    states_[static_cast<size_t>(copy.state)] = record.state;
    if (!is_good) states_[static_cast<size_t>(copy.state)].hash ^= 1;
  }
  return is_good || RUDDER_MUTANT(kChecksumUnread);
}

}  // namespace rudder::testing
