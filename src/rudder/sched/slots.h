// Slots: which slots of the executor are free, and the generation of each. Internal to the room;
// engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/mutants.h"
#include "rudder/step/ids.h"

namespace rudder::sched {

class Slots {
 public:
  explicit Slots(int32_t num_slots) : generations_(static_cast<size_t>(num_slots), 0) {
    free_.reserve(generations_.size());
    for (int32_t slot = num_slots - 1; slot >= 0; --slot) free_.push_back(slot);
  }

  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  const std::vector<int32_t>& free() const { return free_; }
  // By slot, of who has it or had it last.
  std::vector<uint32_t>& generations() { return generations_; }
  uint32_t generation(step::SlotId slot) const {
    return generations_[static_cast<size_t>(slot.value)];
  }

  // A free slot, under a new generation. There is one.
  step::SlotId take() {
    const step::SlotId slot(free_.back());
    free_.pop_back();
    uint32_t& generation = generations_[static_cast<size_t>(slot.value)];
    if (generation == 0 || !RUDDER_MUTANT(kSlotReuseWithoutGeneration)) ++generation;
    return slot;
  }
  void give_back(step::SlotId slot) { free_.push_back(slot.value); }

 private:
  std::vector<int32_t> free_;
  std::vector<uint32_t> generations_;
};

}  // namespace rudder::sched
