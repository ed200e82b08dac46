// rudder-bench: parses the name of a measurement and hands over. `rudder bench` starts it.
#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "bench/bench_commands.h"
#include "rudder/base/heap.h"
#include "run_command.h"

namespace rudder::apps {
namespace {

struct Bench {
  std::string_view name;
  std::string_view summary;
  RunCommand run;
};

constexpr Bench kBenches[] = {
    {"adapters", "what LoRA adapters cost while batches decode", bench_adapters},
    {"latency", "one batch from prompt to last token, repeated", bench_latency},
    {"throughput", "many requests at once, in this process", bench_throughput},
    {"serve", "load on a running server: open or closed loop", bench_serve},
    {"constraint", "output forms: compile time, and microseconds a token", bench_constraint},
    {"ops", "each macro-op: time, bytes, share of the machine's ceiling", bench_ops},
    {"scenarios", "seven fixed batches on several models in turn", bench_scenarios},
    {"speculation", "drafts of known quality: acceptance, length, batch", bench_speculation},
    {"tiers", "cached prefixes behind the device: link, first token, turns", bench_tiers},
    {"trace", "where the time of a step goes on a GPU, kernel by kernel", bench_trace},
    {"steering", "what steering and capture cost, mode by mode", bench_steering},
};

}  // namespace
}  // namespace rudder::apps

int main(int argc, char** argv) {
  using namespace rudder::apps;  // NOLINT(google-build-using-namespace)
  rudder::limit_kept_memory();
  const std::string_view name = argc > 1 ? argv[1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // who reads a pipe sees each row when it is known
  for (const Bench& bench : kBenches) {
    if (bench.name == name) return run_command(bench.run, argc - 1, argv + 1);
  }
  const bool help = name == "--help" || name == "-h";
  fmt::print(help ? stdout : stderr, "usage: rudder bench NAME [flags]\n\n");
  for (const Bench& bench : kBenches) {
    fmt::print(help ? stdout : stderr, "  {:<12} {}\n", bench.name, bench.summary);
  }
  return help ? 0 : 2;
}
