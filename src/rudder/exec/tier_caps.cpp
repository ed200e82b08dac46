#include "rudder/exec/tier_caps.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "rudder/exec/record_format.h"

namespace rudder::exec {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

}  // namespace

Result<void> tiers_unsupported(const std::string& device) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("{} copies no records of cached prefixes", device), "kv-host-gib");
}

Result<step::TierCaps> tier_caps(const ExecSettings::Tiers& settings, int32_t num_groups,
                                 int64_t block_bytes, int64_t checkpoint_bytes) {
  const auto host = static_cast<int64_t>(settings.host_gib * kGib);
  if (host == 0) {
    if (settings.disk_dir.empty()) return step::TierCaps{};
    return fail(ErrorCode::kInvalidArgument, "needs --kv-host-gib, which files lie behind",
                "kv-disk-dir");
  }
  if (settings.disk_dir.empty() != (settings.disk_gib == 0)) {
    return fail(ErrorCode::kInvalidArgument, "--kv-disk-dir and --kv-disk-gib go together",
                settings.disk_dir.empty() ? "kv-disk-gib" : "kv-disk-dir");
  }
  step::TierCaps caps = {.block_bytes = block_bytes,
                         .checkpoint_bytes = checkpoint_bytes,
                         .disk_bytes = static_cast<int64_t>(settings.disk_gib * kGib)};
  const step::RecordParts blocks = step::group_part(num_groups) - 1;
  const int64_t plain = record_bytes(caps, blocks);
  const int64_t stated = record_bytes(caps, blocks | step::kStatePart);
  constexpr int64_t kMost = int64_t{1} << 30;
  if (checkpoint_bytes > 0) {
    caps.stated_records = static_cast<int32_t>(std::min(host / 2 / stated, kMost));
    caps.plain_records = static_cast<int32_t>(std::min((host - host / 2) / plain, kMost));
  } else {
    caps.plain_records = static_cast<int32_t>(std::min(host / plain, kMost));
  }
  if (caps.plain_records < 2 || (checkpoint_bytes > 0 && caps.stated_records < 2)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a record takes {} bytes, one with a state {}: {} hold fewer than two",
                            plain, stated, host),
                "kv-host-gib");
  }
  return caps;
}

Result<step::TierCaps> budget_tiers(const ExecSettings::Tiers& asked, const MemoryBudget& budget,
                                    const std::vector<ops::Ops*>& devices) {
  RUDDER_TRY(step::TierCaps caps, tier_caps(asked, budget.kv.groups.size(), budget.kv.block_bytes,
                                            budget.states.empty() ? 0 : budget.states.bytes));
  if (caps.empty()) return caps;
  if (!devices.front()->is_host() && devices.front()->reader_ops() == nullptr) {
    return tl::unexpected<Error>(tiers_unsupported(devices.front()->name()).error());
  }
  const auto refuse = [](std::string_view what) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("there are no tiers of cached prefixes beside {}", what),
                "kv-host-gib");
  };
  if (devices.size() > 1) return refuse("several ranks, stages or replicas");
  // What guesses keeps rows beside KV that a record has not.
  if (budget.drafts.guesses && budget.drafts.look_up.max_n == 0) {
    return refuse("a model that guesses");
  }
  return caps;
}

}  // namespace rudder::exec
