#include "rudder/exec/device_tiers.h"

#include <span>
#include <utility>

#include "rudder/exec/tier_caps.h"

namespace rudder::exec {

namespace {

// A thread makes 10 GB/s of checksums or so; they shall not hold up a link of 60.
constexpr int32_t kLaneThreads = 8;

std::span<std::byte> memory_of(const ops::View& view) {
  return {static_cast<std::byte*>(view.data), view.bytes()};
}

}  // namespace

Result<std::unique_ptr<RecordMemory>> start_tiers(ops::Ops& ops, const step::Capacity& capacity,
                                                  const KvLayout& layout, const ops::View& pool,
                                                  const ops::View& states,
                                                  const std::string& folder) {
  if (capacity.tiers.empty()) return nullptr;
  std::unique_ptr<ops::Ops> lane;
  if (!ops.is_host())
    lane = ops.reader_ops() == nullptr ? nullptr : ops.reader_ops()->make_reader();
  if (!ops.is_host() && lane == nullptr) {
    return tl::unexpected<Error>(tiers_unsupported(ops.name()).error());
  }
  const std::span<std::byte> all = memory_of(pool);
  const auto scales = static_cast<size_t>(capacity.num_blocks * layout.scale_bytes);
  RecordMemory::Parts parts = {
      .caps = capacity.tiers,
      .num_groups = capacity.kv_groups.size(),
      .num_threads = lane == nullptr ? 1 : kLaneThreads,
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
