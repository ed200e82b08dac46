#include "rudder/engine/settings.h"

namespace rudder::engine {
namespace {

// Further the host has nothing left to save, and a new request waits long.
constexpr int32_t kMaxMultiStep = 64;
constexpr int32_t kMaxMaskThreads = 64;

}  // namespace

void EngineSettings::declare(SettingsTable& table) {
  table.section("engine");
  table.add("max-num-seqs", &max_num_seqs, 1, 1 << 16, "Sequences that run at once.");
  table.add("max-num-batched-tokens", &max_num_batched_tokens, 1, 1 << 20,
            "Tokens of one step; a longer prompt is run in chunks of what is left of it.");
  table.add("enable-prefix-caching", &enable_prefix_caching,
            "Reuse the KV blocks of a prompt's beginning that an earlier request computed.");
  table.add("prefix-key-secret", &prefix_key_secret,
            "Keys of prefix blocks are hashed under this text: servers of one model that share it "
            "have equal keys, also after a restart. Empty: every process draws its own.");
  table.add("kv-store-uses", &kv_store_uses, 1, 1 << 20,
            "A block of a prefix goes to --kv-host-gib once so many sequences have had it: 2 keeps "
            "out what is never seen again.");
  table.add_choice("kv-fetch", &kv_fetch, {"auto", "always"},
                   "Of a prefix that lies in --kv-host-gib or --kv-disk-dir: auto fetches it where "
                   "that was seen to take less time than computing it.");
  table.add("async-scheduling", &async_scheduling,
            "Launch the next step before the results of the last one are read.");
  table.add("multi-step", &multi_step, 1, kMaxMultiStep,
            "Tokens that a step may give each sequence while nothing else waits to run: fewer "
            "launches, and up to so many tokens before a new request starts.");
  table.add("max-itl-ms", &max_itl_ms, 0.0, 60'000.0,
            "Prompts take no more of a step in which sequences stream than keeps it within so many "
            "milliseconds, by what steps were seen to take. auto keeps the 99th percentile between "
            "tokens of a server at 2.5 times the median where prompts get through by that, and "
            "bounds nothing elsewhere; 0 sets no bound but --max-num-batched-tokens.");
  table.add(
      "speculative-adaptive", &speculative_adaptive,
      "Verify as many guessed tokens as pay by what steps were seen to take and guesses to be "
      "right; without it, as many as there are.");
  table.add("max-num-queued-reqs", &max_num_queued_reqs, 1, 1 << 24,
            "Requests that may wait; past it a request is answered 503.");
  table.add("max-num-queued-tokens", &max_num_queued_tokens, 1, int64_t{1} << 40,
            "Prompt tokens that may wait; past it a request is answered 503.");
  table.add(
      "max-queue-seconds", &max_queue_seconds, 0.0, 86'400.0,
      "Seconds that a request may wait before it runs. One that is expected to wait for longer "
      "is answered 503 at once, one that has waited for so long is ended; 0 sets no bound.");
  table.add("max-wait-steps", &max_wait_steps, 1, 1 << 30,
            "Steps after which a waiting sequence goes first, whatever its priority.");
  table.add("mask-threads", &mask_threads, 0, kMaxMaskThreads,
            "Threads that work out which tokens constrained sequences may take next, while the "
            "model runs; 0 takes a quarter of the cores, at most 8.");
  table.add(
      "stuck-step-us", &stuck_step_us, 1000, int64_t{3'600'000'000},
      "Microseconds after which a step that does not end makes /health fail, until it ends; the "
      "log then has what the step was and where each thread is.");
}

}  // namespace rudder::engine
