#include "tier_keys.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "rudder/base/checksum.h"
#include "rudder/base/siphash.h"
#include "rudder/cpu/host_memory.h"
#include "rudder/exec/record_files.h"

namespace rudder::apps {

Result<std::string> fingerprint(const SessionSettings& settings,
                                const weights::Checkpoint& checkpoint, const ops::Device& device) {
  if (settings.exec.tiers.disk_dir.empty()) return std::string();
  RUDDER_TRY(const std::string config, checkpoint.read_text("config.json"));
  SipHash128 hash({0x7275646465722066, 0x696e6765727072});
  const auto add = [&](std::span<const std::byte> bytes) {
    hash.update(uint64_t{bytes.size()});
    hash.update(bytes);
  };
  add(std::as_bytes(std::span(config)));
  const std::string computes = device.name();
  add(std::as_bytes(std::span(computes)));
  hash.update(uint64_t{settings.exec.batch_invariant ? 1U : 0U});  // kernels that round otherwise
  for (const weights::TensorInfo& tensor : checkpoint.tensors()) {
    add(std::as_bytes(std::span(tensor.name)));
    const std::span<const std::byte> bytes =
        tensor.packed
            ? tensor.packed->bytes
            : std::span(static_cast<const std::byte*>(tensor.view.data), tensor.view.bytes());
    hash.update(uint64_t{bytes.size()});
    hash.update(checksum(bytes));
  }
  const std::array<uint64_t, 2> made = hash.finish();
  return fmt::format(":{:016x}{:016x}", made[1], made[0]);
}

Result<std::string> key_secret(const SessionSettings& settings) {
  const std::string& folder = settings.exec.tiers.disk_dir;
  if (!settings.engine.prefix_key_secret.empty() || folder.empty()) {
    return settings.engine.prefix_key_secret;
  }
  return exec::folder_secret(folder);
}

Result<void> check_tiers(const SessionSettings& settings) {
  const double asked = settings.exec.tiers.host_gib;
  if (asked == 0) return {};
  // A GPU's is had at the start, where a machine without as much ends processes.
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  const double available = static_cast<double>(cpu::available_host_memory()) / kGib;
  if (available > 0 && asked > available) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{:.1f} GiB are more than the {:.1f} GiB of host memory available",
                            asked, available),
                "kv-host-gib");
  }
  if (!settings.record.folder.empty()) {
    return fail(ErrorCode::kUnsupported, "recordings have no tiers (kv-host-gib)", "record");
  }
  if (!settings.engine.enable_prefix_caching) {
    return fail(ErrorCode::kInvalidArgument, "needs --enable-prefix-caching", "kv-host-gib");
  }
  return {};
}

}  // namespace rudder::apps
