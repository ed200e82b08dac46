#include "rudder/exec/device_tiers.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "rudder/base/thread_pool.h"
#include "rudder/exec/tier_caps.h"

namespace rudder::exec {

namespace {

// Making checksums shall not hold up a link of 60 GB/s; a thread sleeps while its records are
// copied. Some cores are the engine's.
int32_t lane_threads() {
  constexpr int32_t kMost = 12;
  return std::clamp(usable_cores() * 3 / 4, 1, kMost);
}

std::span<std::byte> memory_of(const ops::View& view) {
  return {static_cast<std::byte*>(view.data), view.bytes()};
}

}  // namespace

Result<std::unique_ptr<ops::CopyLane>> lane_of(ops::Ops& ops) {
  if (ops.is_host()) return std::make_unique<ops::HostLane>();
  if (ops.reader_ops() != nullptr) return ops.reader_ops()->make_lane();
  return tl::unexpected<Error>(tiers_unsupported(ops.name()).error());
}

Result<std::unique_ptr<RecordMemory>> start_tiers(ops::Ops& ops, const step::Capacity& capacity,
                                                  const KvLayout& layout, const ops::View& pool,
                                                  const ops::View& states,
                                                  const std::string& folder) {
  if (capacity.tiers.empty()) return nullptr;
  RUDDER_TRY(std::unique_ptr<ops::CopyLane> lane, lane_of(ops));
  const std::span<std::byte> all = memory_of(pool);
  const auto scales = static_cast<size_t>(capacity.num_blocks * layout.scale_bytes);
  RecordMemory::Parts parts = {
      .caps = capacity.tiers,
      .num_groups = capacity.kv_groups.size(),
      .num_threads = ops.is_host() ? 1 : lane_threads(),
      .device = {.lane = std::move(lane),
                 .scales = all.first(scales),
                 .blocks = all.subspan(scales),
                 .states = capacity.states.empty() ? std::span<std::byte>() : memory_of(states),
                 .num_blocks = capacity.num_blocks,
                 .num_states = capacity.states.count},
      .files = {}};
  if (capacity.tiers.has_disk()) {
    RUDDER_TRY(parts.files, RecordFiles::open(folder));
  }
  return RecordMemory::start(std::move(parts));
}

}  // namespace rudder::exec
