#include "rudder/steer/capture/settings.h"

namespace rudder::steer::capture {

void CaptureSettings::declare(SettingsTable& table) {
  table.section("capture");
  table.add("capture-consumer", &consumers,
            "A consumer that requests may name in `capture`, with its options: "
            "filesystem:root=DIR[,key=value...], kept[:bytes=256M], logging. Repeatable; "
            "`response` is always there.");
  table.add(
      "capture-plugin", &plugins,
      "A shared object with a consumer of its own: NAME:file=PATH[,key=value...]. Its code runs in "
      "this process. Repeatable.");
  table.add(
      "capture-global", &global,
      "What is captured of every request, as JSON in the form of the request field `capture`.");
  table.add_choice("capture-overload-policy", &overload_policy, {"spill", "drop", "block"},
                   "When a consumer falls behind its queue: its rows go over the disk, are dropped "
                   "and reported, or the engine waits for it.");
  table.add_bytes("capture-queue-bytes", &queue_bytes,
                  "Rows that are held in memory for each consumer.");
  table.add("capture-spill-dir", &spill_dir, "The folder that rows spill to.");
  table.add_bytes("capture-spill-bytes", &spill_bytes,
                  "Rows that are held on the disk for each consumer; what is beyond is dropped.");
  table.add("capture-block-timeout", &block_timeout_seconds, 0.001, 3600,
            "Seconds that the engine waits for a consumer that makes no progress, under `block`.");
  table.add("capture-result-timeout", &result_timeout_seconds, 0.01, 3600,
            "Seconds after its last token that a request waits for a consumer's result.");
  table.add_bytes(
      "capture-max-response-bytes", &max_response_bytes,
      "What the consumer `response` holds for all open answers together, their text included.");
}

}  // namespace rudder::steer::capture
