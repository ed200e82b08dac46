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

// The slots, and by slot: token, end, position, guess, latches.
int64_t report_bytes(const step::Capacity& capacity, int64_t num_slots, bool has_latches) {
  const int64_t num_guess = capacity.drafts.keeps_guesses ? capacity.drafts.max_draft : 0;
  return 4 * message_aligned(num_slots * int64_t{sizeof(int32_t)}) +
         message_aligned(num_slots * num_guess * int64_t{sizeof(int32_t)}) +
         (has_latches ? message_aligned(num_slots * kLatchBytes) : 0);
}

int64_t hidden_bytes(const model::Stage& stage, const step::Capacity& capacity,
                     const Handover::RowBytes& rows) {
  const int64_t tokens = capacity.max_tokens_per_step;
  int64_t bytes = message_aligned(tokens * rows.residual) +
                  std::ssize(stage.aux_layers) * message_aligned(tokens * rows.kept);
  if (!capacity.taps.steering() && !capacity.taps.capture()) return bytes;
  constexpr auto kFloatBytes = int64_t{sizeof(float)};
  bytes += message_aligned(tokens * tap::kNumRelays * kFloatBytes);
  if (capacity.taps.max_features > 0) {
    bytes += message_aligned(tokens * capacity.geometry.residual_width() * kFloatBytes);
  }
  return bytes + message_aligned(capacity.num_slots * kLatchBytes) +
         message_aligned(capacity.taps.capture_elements *
                         static_cast<int64_t>(tensor::dtype_bytes(capacity.geometry.dtype)));
}

int64_t message_bytes(const model::Stage& stage, const step::Capacity& capacity,
                      const Handover::RowBytes& rows) {
  return stage.is_last() ? report_bytes(capacity, capacity.num_slots, true)
                         : hidden_bytes(stage, capacity, rows);
}

}  // namespace

// Cuts a message into its parts, one behind another.
class Handover::Cutter {
 public:
  explicit Cutter(const View& bytes) : bytes_(bytes) {}

  View cut(DType dtype, const tensor::Shape& shape) {
    View part{nullptr, dtype, shape};
    const auto count = static_cast<int64_t>(part.bytes());
    part.data = bytes_.rows(offset_, count).data;
    offset_ += message_aligned(count);
    return part;
  }

 private:
  const View bytes_;
  int64_t offset_ = 0;
};

Result<std::unique_ptr<Handover>> Handover::make(const Parts& parts, const model::Stage& stage,
                                                 const step::Capacity& capacity,
                                                 std::shared_ptr<StageLink> link) {
  std::unique_ptr<Handover> handover(new Handover(parts, stage, capacity, std::move(link)));
  RUDDER_TRY_VOID(handover->allocate());
  return handover;
}

Handover::Handover(const Parts& parts, const model::Stage& stage, const step::Capacity& capacity,
                   std::shared_ptr<StageLink> link)
    : parts_(parts),
      stage_(stage),
      capacity_(capacity),
      link_(std::move(link)),
      last_of_slot_(static_cast<size_t>(capacity.num_slots)) {
  link_->watch(stage_.index, [&ops = parts_.ops] { return ops.progress(); });
}

int64_t Handover::device_bytes(const model::Stage& stage, const step::Capacity& capacity,
                               const RowBytes& rows) {
  return capacity.max_in_flight * message_bytes(stage, capacity, rows) +
         report_bytes(capacity, capacity.num_slots, true) +
         std::ssize(stage.aux_layers) * capacity.max_tokens_per_step * rows.kept;
}

Result<void> Handover::allocate() {
  RowBytes rows{.residual = static_cast<int64_t>(parts_.decoder.hidden(1).bytes())};
  if (!parts_.kept.passed.empty()) {
    rows.kept = static_cast<int64_t>(parts_.kept.passed.rows(0, 1).bytes());
  }
  StageLink::Messages messages;
  for (int32_t i = 0; i < capacity_.max_in_flight; ++i) {
    RUDDER_TRY(messages.emplace_back(),
               parts_.ops.make_message(message_bytes(stage_, capacity_, rows)));
  }
  link_->add_messages(stage_.index, std::move(messages));
  RUDDER_TRY(inbox_,
             parts_.ops.allocate(DType::kU8, {report_bytes(capacity_, capacity_.num_slots, true)}));
  return {};
}

// Between the device and the next part of the message.
void Handover::move(const View& device, Cutter& message, Way way) {
  if (device.bytes() == 0) return;
  const View part = message.cut(device.dtype, device.shape);
  parts_.ops.copy(way == Way::kTake ? device : part, way == Way::kTake ? part : device);
}

// Likewise of the rows of `slots` [n] i32, which are on the device. `of_all` has a row a slot.
void Handover::move_slots(const View& of_all, const View& slots, Cutter& message, Way way) {
  View rows = of_all;
  rows.shape = {of_all.num_rows(), of_all.shape.numel() / of_all.num_rows()};
  const View part = message.cut(rows.dtype, {slots.num_rows(), rows.shape[1]});
  if (way == Way::kTake) {
    parts_.ops.draft_ops()->place_rows({.x = part, .rows = slots, .out = rows});
  } else {
    parts_.ops.gather_rows({.x = rows, .rows = slots, .out = part});
  }
}

void Handover::move_state(const View& slots, bool has_latches, Cutter& message, Way way) {
  const ops::SlotState& state = parts_.buffers.state();
  move_slots(state.carry, slots, message, way);
  move_slots(state.ended, slots, message, way);
  if (!state.carry_position.empty()) move_slots(state.carry_position, slots, message, way);
  if (!state.guess.empty()) move_slots(state.guess, slots, message, way);
  if (has_latches) move_slots(parts_.taps->table().latches, slots, message, way);
}

// Without those of padding, which stand behind all others.
int64_t Handover::num_slots_of(const PackedStep& packed) const {
  return std::ranges::find(packed.table_row, capacity_.num_slots) - packed.table_row.begin();
}

void Handover::move_hidden(const PackedStep& packed, const DeviceStep& step, size_t flight,
                           const View& bytes, Way way) {
  const int64_t num_tokens = packed.num_tokens();
  if (num_tokens == 0) return;
  Cutter message(bytes);
  move(parts_.decoder.hidden(num_tokens), message, way);
  const int32_t end_layer = way == Way::kTake ? stage_.first_layer : stage_.end_layer();
  for (size_t i = 0; i < stage_.aux_layers.size(); ++i) {
    if (stage_.aux_layers[i] < end_layer) move(parts_.kept.passed_of(i, num_tokens), message, way);
  }
  if (!packed.taps.is_used) return;
  const ops::TapTable& table = parts_.taps->table();
  move(table.relays.rows(0, num_tokens), message, way);
  if (!packed.taps.encodes.empty()) move(table.carried.rows(0, num_tokens), message, way);
  const int64_t num_slots = num_slots_of(packed);
  const View slots = step.forward.attention.table_row.rows(0, num_slots);
  if (way == Way::kGive) {
    move_slots(table.latches, slots, message, way);
  } else {
    const View inbox = inbox_.rows(0, num_slots * kLatchBytes);
    parts_.ops.copy(inbox, message.cut(DType::kU8, inbox.shape));
    Cutter latches(inbox);
    move_slots(table.latches, slots, latches, way);
  }
  move(parts_.taps->ring_part(flight, packed.taps.capture_elements), message, way);
}

void Handover::give_report(const PackedStep& packed, const DeviceStep& step,
                           StageLink::Report& report) {
  report.num_slots = num_slots_of(packed);
  report.has_latches = packed.taps.is_used;
  if (report.num_slots == 0) return;
  Cutter message(report.message->memory());
  const View slots = step.forward.attention.table_row.rows(0, report.num_slots);
  parts_.ops.copy(message.cut(slots.dtype, slots.shape), slots);
  move_state(slots, report.has_latches, message, Way::kGive);
}

void Handover::take_report(const StageLink::Report& report) {
  if (report.num_slots == 0) return;
  parts_.ops.await(*report.message);
  const int64_t bytes = report_bytes(capacity_, report.num_slots, report.has_latches);
  parts_.ops.copy(inbox_.rows(0, bytes), report.message->memory().rows(0, bytes));
  Cutter message(inbox_);
  const View slots = message.cut(DType::kI32, {report.num_slots});
  move_state(slots, report.has_latches, message, Way::kTake);
}

// Of the iterations up to `num_reports`, which the last stage has enqueued by then.
Result<void> Handover::apply(uint64_t num_reports) {
  if (num_applied_ >= num_reports) return {};
  RUDDER_TRY_VOID(link_->await_reports(num_reports));
  for (; num_applied_ < num_reports; ++num_applied_) {
    take_report(link_->report(unreported_.front().flight));
    unreported_.pop_front();
  }
  return {};
}

// A report is written again when the step at hand comes to the last stage: behind this.
Result<void> Handover::catch_up(const step::StepPlan& plan, size_t flight) {
  if (stage_.is_last()) return {};
  uint64_t awaited = 0;
  for (const Unreported& one : unreported_) {
    if (one.flight == flight) awaited = one.number;
  }
  for (const step::SlotEdit& opened : plan.slots) {
    awaited = std::max(awaited, last_of_slot_[static_cast<size_t>(opened.slot.value)]);
  }
  return apply(awaited);
}

// Of the steps in front: so many must have been sampled before this one may begin.
uint64_t Handover::awaited_reports(const PackedStep& packed) const {
  uint64_t awaited = 0;
  const auto num_slots = static_cast<size_t>(num_slots_of(packed));
  for (size_t i = 0; i < num_slots; ++i) {
    const int32_t first = packed.ids[static_cast<size_t>(packed.q_begin[i])];
    if (first >= 0 && !packed.taps.is_used) continue;
    awaited = std::max(awaited, last_of_slot_[static_cast<size_t>(packed.table_row[i])]);
  }
  return awaited;
}

Result<void> Handover::await_step(const PackedStep& packed, size_t flight) {
  if (!stage_.is_first()) RUDDER_TRY_VOID(link_->await(stage_.index - 1, num_begun_ + 1));
  if (!stage_.is_last()) {
    RUDDER_TRY_VOID(apply(awaited_reports(packed)));
    for (int32_t i = 0; i < packed.repeat; ++i) {
      unreported_.push_back({num_begun_ + 1 + static_cast<uint64_t>(i), flight});
    }
    const auto num_slots = static_cast<size_t>(num_slots_of(packed));
    for (size_t i = 0; i < num_slots; ++i) {
      last_of_slot_[static_cast<size_t>(packed.table_row[i])] = unreported_.back().number;
    }
  }
  ++num_begun_;
  link_->begin(stage_.index);
  return {};
}

Result<void> Handover::await_iteration() {
  if (!stage_.is_last()) RUDDER_TRY_VOID(apply(num_begun_));
  if (!stage_.is_first()) RUDDER_TRY_VOID(link_->await(stage_.index - 1, num_begun_ + 1));
  ++num_begun_;
  link_->begin(stage_.index);
  return {};
}

void Handover::take(const PackedStep& packed, const DeviceStep& step, size_t flight) {
  if (stage_.is_first()) return;
  ops::Message& message = link_->hidden(stage_.index - 1, flight);
  parts_.ops.await(message);
  move_hidden(packed, step, flight, message.memory(), Way::kTake);
}

Result<void> Handover::pass_on(const PackedStep& packed, const DeviceStep& step, size_t flight) {
  if (stage_.is_last()) {
    StageLink::Report& report = link_->report(flight);
    give_report(packed, step, report);
    parts_.ops.post(*report.message);
    RUDDER_TRY_VOID(parts_.ops.status());
    link_->hand_back();
    return {};
  }
  ops::Message& message = link_->hidden(stage_.index, flight);
  move_hidden(packed, step, flight, message.memory(), Way::kGive);
  parts_.ops.post(message);
  RUDDER_TRY_VOID(parts_.ops.status());
  link_->hand_over(stage_.index);
  return {};
}

}  // namespace rudder::exec
