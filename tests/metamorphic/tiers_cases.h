// Cached prefixes behind a device (docs/contracts/cache.md, "Tiers"), on the device of a backend:
// records come back as they went, and what is served is what an executor without tiers serves. A
// test program of each backend instantiates the suites. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "metamorphic/harness.h"
#include "rudder/exec/record_memory.h"
#include "rudder/ops/ops.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::metamorphic {

struct TierBackend {
  std::string name;
  std::function<std::unique_ptr<ops::Ops>()> make;
  testing::TinyArch arch = testing::TinyArch::kPreNorm;
  bool serves_parts = false;  // it has kernels for the parts of served_parts.h alone
};
inline void PrintTo(const TierBackend& backend, std::ostream* out) {
  *out << backend.name;
}

// The device, on a lane that begins each copy late: nobody may use the device's end of a copy
// meanwhile. Its memory is reached by the lane alone.
std::unique_ptr<ops::Ops> on_late_lane(std::unique_ptr<ops::Ops> inner);

class TiersTest : public ::testing::TestWithParam<TierBackend> {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Of a small cache; `disk_bytes` 0: host memory alone, -1: no tiers.
  Outcome serve(const std::vector<Ask>& asks, int64_t disk_bytes, bool is_late = false);

  model::ModelSpec spec_;
  std::filesystem::path folder_;
};

// RecordMemory alone, over memory of the device.
class DeviceRecordsTest : public ::testing::TestWithParam<TierBackend> {
 protected:
  static constexpr int32_t kBlocks = 8;
  static constexpr int32_t kStates = 4;
  static constexpr int32_t kRecords = 12;

  void SetUp() override;
  void TearDown() override;
  void start();
  // All end well.
  void run(std::vector<step::RecordCopy> copies);
  step::RecordCopy copy_of(step::RecordMove move, uint64_t key, step::BlockId block,
                           step::StateId state) const;
  // What the device has of them.
  std::vector<uint8_t> bytes_of(step::BlockId block, step::StateId state);
  std::vector<uint8_t> read(const ops::View& device);
  void fill(uint32_t seed);  // the whole device

  std::unique_ptr<ops::Ops> ops_;
  ops::View device_;  // scales of all blocks, the blocks, the states
  std::unique_ptr<exec::RecordMemory> memory_;
  std::filesystem::path folder_;
  int64_t last_id_ = 0;
};

}  // namespace rudder::metamorphic
