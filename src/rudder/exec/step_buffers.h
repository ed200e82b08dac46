// StepBuffers: brings a step to the device and its tokens back. A packed step is written to one
// staging buffer and copied to one device buffer, whose parts are the views that the ops read.
// Sampled tokens return to staging memory of their own, one part for each iteration. Staging memory
// is a ring with one entry for each step in flight; an entry is reused only when its step has been
// collected. Device memory needs no ring, because the device works in order. The class also owns
// the state of slots (ops::SlotState). Masks, which come while the forward pass runs, have staging
// memory and a copy of their own.
//
// The executor's worker thread uses it; put_masks(), sampled() and top() belong to the thread that
// launches and collects steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/adapter_table.h"
#include "rudder/exec/pack.h"
#include "rudder/model/decoder.h"
#include "rudder/ops/ops.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

// A step on the device. Where its parts lie depends on the numbers of tokens, sequences and sampled
// rows and on whether it has taps; what is of tokens and sequences, not on sampled rows.
struct DeviceStep {
  model::ForwardBatch forward;
  ops::SampleArgs sample;   // all but the logits
  ops::LookUpArgs look_up;  // behind it; empty: nothing is looked up
};

class StepBuffers {
 public:
  // Of each slot's tokens, 5 bytes a token of the vocabulary; kNone: no row has penalties or masks.
  enum class Counts { kKept, kNone };

  // `ops` and the table, where there is one, outlive the buffers.
  static Result<std::unique_ptr<StepBuffers>> make(ops::Ops& ops, const step::Capacity& capacity,
                                                   const ops::TapTable* table = nullptr,
                                                   Counts counts = Counts::kKept);
  // Where steps may have adapters; before the first such step.
  void set_adapter_scratch(const AdapterTable::Scratch& scratch) { adapter_scratch_ = scratch; }
  // Device bytes that make() allocates.
  static int64_t device_bytes(const step::Capacity& capacity, Counts counts = Counts::kKept);

  // Enqueues the copy of the step to the device and its begin_step. Waits for the device only when
  // the step's lists are longer than a part of them that the buffer holds (kept_history,
  // kept_blocks and kept_tokens in step_buffers.cpp): they then go in several parts. An Error is
  // the device's.
  Result<DeviceStep> begin(const PackedStep& packed, size_t flight);
  // Enqueues what makes the step its next iteration, where each sequence is a single token that was
  // sampled. The host sends nothing.
  void advance(DeviceStep& step);
  // Keeps the masks of the step at `flight`, one sequence behind another.
  void put_masks(std::span<const uint32_t> masks, size_t flight);
  // Enqueues their copy to the device, where the step's sample finds them.
  void send_masks(int64_t num_masks, size_t flight);
  // Enqueues the copy of the first `num_rows` sampled tokens to the host.
  void fetch(int64_t num_rows, bool with_top, size_t flight, int32_t iteration);
  // Likewise of what all slots guess, in a step of one iteration.
  void fetch_guesses(size_t flight);

  const ops::SlotState& state() const { return state_; }

  // Of an iteration that fetch() was called for and that is done. [num_rows]; [num_rows,
  // kMaxLogprobs]
  const ops::SampledToken* sampled(size_t flight, int32_t iteration) const;
  const ops::TopLogprob* top(size_t flight, int32_t iteration) const;
  // Of a slot, once fetch_guesses() is done.
  std::span<const int32_t> guess(size_t flight, step::SlotId slot) const;

 private:
  StepBuffers(ops::Ops& ops, const step::Capacity& capacity, const ops::TapTable* table)
      : ops_(ops), capacity_(capacity), table_(table) {}

  Result<void> allocate(Counts counts);
  Result<void> allocate_guesses();
  DeviceStep views(const PackedStep& packed) const;
  void put_adapters(const PackedStep& packed, const ops::View& staging) const;
  void put_taps(const PackedStep& packed, const ops::View& staging) const;
  Result<void> send(const PackedStep& packed, const DeviceStep& step, size_t flight);
  ops::View part(int64_t offset, tensor::DType dtype, tensor::Shape shape) const;

  ops::Ops& ops_;
  const step::Capacity capacity_;
  const ops::TapTable* const table_;
  ops::SlotState state_;
  AdapterTable::Scratch adapter_scratch_;
  ops::View device_;       // [bytes] u8
  ops::View masks_;        // [max_sampled_rows, mask_words(vocab_size)] i32
  ops::View sampled_;      // [max_sampled_rows, 4] i32
  ops::View top_;          // [max_sampled_rows, kMaxLogprobs, 2] i32
  ops::View tap_entries_;  // [max_tokens_per_step + max_sampled_rows, ...] i32: of ops::TapBatch
  struct Staging {
    ops::View step;
    ops::View masks;    // [bytes of masks_] u8
    ops::View sampled;  // [max_repeat * bytes of sampled_] u8
    ops::View top;      // [max_repeat * bytes of top_] u8
    ops::View guesses;  // [bytes of SlotState.guess] u8
  };
  std::vector<Staging> staging_;  // one for each flight
  std::unique_ptr<ops::Event> part_sent_;
};

}  // namespace rudder::exec
