#include "rudder/exec/handover.h"

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

using ops::View;
using tensor::DType;

// Every part of a message starts on a 64-byte line.
int64_t message_aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

constexpr int64_t kLatchBytes = int64_t{tap::kNumLatches} * 2 * int64_t{sizeof(int64_t)};

int64_t sampled_bytes(const step::Capacity& capacity) {
  const int64_t words = 3 * message_aligned(int64_t{sizeof(int32_t)});
  return capacity.num_slots * (words + message_aligned(kLatchBytes));
}

}  // namespace

Handover::Handover(const Parts& parts, const model::Stage& stage, const step::Capacity& capacity,
                   std::shared_ptr<StageLink> link)
    : parts_(parts),
      stage_(stage),
      capacity_(capacity),
      link_(std::move(link)),
      sent_(parts.ops.make_event()),
      last_of_slot_(static_cast<size_t>(capacity.num_slots)) {
  allocate();
  link_->watch(stage_.index, [&ops = parts_.ops] { return ops.progress(); });
}

void Handover::allocate() {
  if (stage_.is_last()) return link_->allocate_sampled(sampled_bytes(capacity_));
  int64_t bytes = message_aligned(
      static_cast<int64_t>(parts_.decoder.hidden(capacity_.max_tokens_per_step).bytes()));
  if (parts_.taps != nullptr) {
    const ops::TapTable& table = parts_.taps->table();
    bytes += message_aligned(static_cast<int64_t>(table.relays.bytes())) +
             message_aligned(static_cast<int64_t>(table.carried.bytes())) +
             capacity_.num_slots * message_aligned(kLatchBytes) +
             message_aligned(capacity_.taps.capture_elements *
                             static_cast<int64_t>(tensor::dtype_bytes(capacity_.geometry.dtype)));
  }
  link_->allocate_hidden(stage_.index, bytes);
}

// Between the device and the message, which has the part at `offset`.
void Handover::move(const View& device, const View& bytes, int64_t& offset, Way way) {
  const auto count = static_cast<int64_t>(device.bytes());
  const View part = bytes.rows(offset, count);
  offset += message_aligned(count);
  if (count == 0) return;
  if (way == Way::kTake) {
    parts_.ops.copy_in(device, part);
  } else {
    parts_.ops.copy_out(part, device);
  }
}

void Handover::move_hidden(const PackedStep& packed, size_t flight, const View& bytes, Way way) {
  const int64_t num_tokens = packed.num_tokens();
  if (num_tokens == 0) return;
  int64_t offset = 0;
  move(parts_.decoder.hidden(num_tokens), bytes, offset, way);
  if (!packed.taps.is_used) return;
  const ops::TapTable& table = parts_.taps->table();
  move(table.relays.rows(0, num_tokens), bytes, offset, way);
  if (!packed.taps.encodes.empty()) move(table.carried.rows(0, num_tokens), bytes, offset, way);
  for (const int32_t slot : packed.table_row) {
    move(table.latches.rows(slot, 1), bytes, offset, way);
  }
  move(parts_.taps->ring_part(flight, packed.taps.capture_elements), bytes, offset, way);
}

void Handover::move_sampled(const StageLink::Sampled& sampled, Way way) {
  const ops::SlotState& state = parts_.buffers.state();
  int64_t offset = 0;
  for (const int32_t slot : sampled.slots) {
    move(state.carry.rows(slot, 1), sampled.bytes, offset, way);
    move(state.ended.rows(slot, 1), sampled.bytes, offset, way);
    if (!state.carry_position.empty()) {
      move(state.carry_position.rows(slot, 1), sampled.bytes, offset, way);
    }
    if (sampled.has_latches) {
      move(parts_.taps->table().latches.rows(slot, 1), sampled.bytes, offset, way);
    }
  }
}

Result<void> Handover::apply(uint64_t num_reports) {
  if (num_applied_ == num_reports) return {};
  for (; num_applied_ < num_reports; ++num_applied_) {
    move_sampled(link_->sampled(unreported_.front()), Way::kTake);
    unreported_.pop_front();
  }
  // The message is written again once its step has been collected.
  parts_.ops.record(*sent_);
  return sent_->wait();
}

Result<void> Handover::catch_up() {
  if (stage_.is_last()) return {};
  RUDDER_TRY(const uint64_t num_reports, link_->await_reports(num_applied_));
  return apply(num_reports);
}

// Of the steps in front: so many must have been sampled before this one may begin.
uint64_t Handover::awaited_reports(const PackedStep& packed) const {
  uint64_t awaited = 0;
  for (size_t i = 0; i < packed.table_row.size(); ++i) {
    const int32_t first = packed.ids[static_cast<size_t>(packed.q_begin[i])];
    if (first >= 0 && !packed.taps.is_used) continue;
    awaited = std::max(awaited, last_of_slot_[static_cast<size_t>(packed.table_row[i])]);
  }
  return awaited;
}

Result<void> Handover::await_step(const PackedStep& packed, size_t flight) {
  if (!stage_.is_first()) RUDDER_TRY_VOID(link_->await(stage_.index - 1, num_begun_ + 1));
  if (stage_.is_last()) {
    ++num_begun_;
    link_->begin(stage_.index);
    return {};
  }
  RUDDER_TRY(const uint64_t num_reports, link_->await_reports(awaited_reports(packed)));
  RUDDER_TRY_VOID(apply(num_reports));
  ++num_begun_;
  unreported_.insert(unreported_.end(), static_cast<size_t>(packed.repeat), flight);
  for (const int32_t slot : packed.table_row) {
    last_of_slot_[static_cast<size_t>(slot)] =
        num_begun_ + static_cast<uint64_t>(packed.repeat) - 1;
  }
  link_->begin(stage_.index);
  return {};
}

Result<void> Handover::await_iteration() {
  if (!stage_.is_last()) {
    RUDDER_TRY(const uint64_t num_reports, link_->await_reports(num_begun_));
    RUDDER_TRY_VOID(apply(num_reports));
  }
  if (!stage_.is_first()) RUDDER_TRY_VOID(link_->await(stage_.index - 1, num_begun_ + 1));
  ++num_begun_;
  link_->begin(stage_.index);
  return {};
}

void Handover::take(const PackedStep& packed, size_t flight) {
  if (stage_.is_first()) return;
  move_hidden(packed, flight, link_->hidden(stage_.index - 1, flight), Way::kTake);
}

Result<void> Handover::pass_on(const PackedStep& packed, size_t flight) {
  if (stage_.is_last()) {
    StageLink::Sampled& sampled = link_->sampled(flight);
    sampled.slots = packed.table_row;
    sampled.has_latches = packed.taps.is_used;
    move_sampled(sampled, Way::kGive);
  } else {
    move_hidden(packed, flight, link_->hidden(stage_.index, flight), Way::kGive);
  }
  parts_.ops.record(*sent_);
  RUDDER_TRY_VOID(sent_->wait());
  if (stage_.is_last()) {
    link_->report();
  } else {
    link_->hand_over(stage_.index);
  }
  return {};
}

}  // namespace rudder::exec
