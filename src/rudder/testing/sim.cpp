#include "rudder/testing/sim.h"

#include <memory>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/log.h"
#include "rudder/testing/overtaking_stress.h"
#include "rudder/testing/prompt_stress.h"
#include "rudder/testing/sim_episode.h"
#include "rudder/testing/sim_random.h"

namespace rudder::testing {
namespace {

// A failed check is a violation, and the engine's word of its executor's death is expected.
class QuietChecks {
 public:
  QuietChecks() {
    set_check_hook([](const std::string& message) { throw SimViolation{message}; });
    set_log_level(LogLevel::kOff);
  }
  ~QuietChecks() {
    set_check_hook(nullptr);
    set_log_level(LogLevel::kInfo);
  }
};

// An episode that was left in the middle of a turn cannot be taken apart safely.
void abandon(std::unique_ptr<SimEpisode> episode) {
  static std::vector<std::unique_ptr<SimEpisode>>* const abandoned =
      new std::vector<std::unique_ptr<SimEpisode>>;
  abandoned->push_back(std::move(episode));
}

}  // namespace

SimReport run_simulation(const SimOptions& options) {
  const QuietChecks quiet;
  SimReport report;
  SimRandom seeds(options.seed);
  uint64_t seed = options.seed;  // the first episode's, so that one can be repeated
  while (report.steps < options.steps) {
    auto episode = std::make_unique<SimEpisode>(seed, &report.coverage);
    try {
      episode->run();
    } catch (const SimViolation& violation) {
      report.violation = violation.text;
      report.episode_seed = seed;
      report.episode_step = episode->steps();
      report.last_notes = episode->last_notes();
    }
    // Its requests are few and short: which prompts run is seen where there are more.
    if (report.violation.empty()) report.violation = run_prompt_stress(seed);
    if (report.violation.empty()) report.violation = run_overtaking_stress(seed);
    report.steps += episode->steps();
    report.coverage.episodes += 1;
    report.trace_hash = mix64(report.trace_hash ^ episode->trace_hash());
    if (!report.violation.empty()) {
      abandon(std::move(episode));
      break;
    }
    seed = seeds.next();
  }
  return report;
}

}  // namespace rudder::testing
