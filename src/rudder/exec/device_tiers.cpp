// DeviceExecutor: the tiers of cached prefixes behind its memory (record_memory.h).
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rudder/exec/device_executor.h"
#include "rudder/exec/tier_caps.h"

namespace rudder::exec {

// Its thread copies what the host can reach.
Result<void> DeviceExecutor::prepare_tiers(const ops::View& pool, const std::string& folder) {
  if (capacity_.tiers.empty()) return {};
  if (!model_.ops->is_host()) return tiers_unsupported(model_.ops->name());
  const auto bytes_of = [](const ops::View& view) {
    return std::span(static_cast<std::byte*>(view.data), view.bytes());
  };
  const std::span<std::byte> all = bytes_of(pool);
  const auto scales = static_cast<size_t>(capacity_.num_blocks * model_.kv.scale_bytes);
  RecordMemory::Parts parts = {
      .caps = capacity_.tiers,
      .num_groups = capacity_.kv_groups.size(),
      .device = {.scales = all.first(scales),
                 .blocks = all.subspan(scales),
                 .states = capacity_.states.empty() ? std::span<std::byte>()
                                                    : bytes_of(kept_.states.pool()),
                 .num_blocks = capacity_.num_blocks,
                 .num_states = capacity_.states.count},
      .files = {}};
  if (capacity_.tiers.has_disk()) {
    RUDDER_TRY(parts.files, RecordFiles::open(folder));
  }
  RUDDER_TRY(records_, RecordMemory::start(std::move(parts)));
  return {};
}

std::vector<step::StoredRecord> DeviceExecutor::take_stored() {
  return records_ == nullptr ? std::vector<step::StoredRecord>() : records_->stored();
}

}  // namespace rudder::exec
