// ProgramTable: the programs that requests may name by content key. The engine owns it. Who makes
// a request hands its programs over (keep) and holds what it gets until the request is submitted;
// submitting looks the programs up (resolve). Both happen before the engine thread sees the
// request. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/leased_table.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/sequence_taps.h"
#include "rudder/tap/taps_spec.h"

namespace rudder::steer {

class ProgramTable {
 public:
  explicit ProgramTable(const tap::Limits& limits) : limits_(limits) {}

  // The same taps; while they live, their programs are known by the segments' content keys.
  // Programs of one key are kept once. kInvalidArgument (`where` = "steering") where the programs
  // could never be on the device together.
  Result<std::shared_ptr<const tap::SequenceTaps>> keep(tap::SequenceTaps taps);
  // The taps that the spec names, without a capture set. kUnavailable: a program is not known.
  // kInvalidArgument: as keep.
  Result<tap::SequenceTaps> resolve(const tap::TapsSpec& spec) const;

  size_t size() const { return programs_.size(); }  // programs that are known

 private:
  Result<std::vector<tap::TapSegment>> find_all(
      const std::vector<tap::SegmentSpec>& segments) const;

  struct KeyHash {
    size_t operator()(const tap::ContentKey& key) const { return key.low; }
  };

  const tap::Limits limits_;
  LeasedTable<tap::ContentKey, tap::Program, KeyHash> programs_;
};

}  // namespace rudder::steer
