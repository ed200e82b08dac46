// The simulator as a program: `sim --seed S --steps N`. Built with mutants it also takes
// `--mutant NAME`, and without one runs all of them and requires that each is caught.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "rudder/base/mutants.h"
#include "rudder/testing/sim.h"

namespace rudder::testing {
namespace {

struct Timed {
  SimReport report;
  double seconds = 0;
};

Timed timed_simulation(const SimOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Timed timed{.report = run_simulation(options)};
  timed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return timed;
}

void print_violation(const SimReport& report) {
  fmt::print("VIOLATION at step {}: {}\n", report.steps, report.violation);
  for (const std::string& line : report.last_notes) fmt::print("  {}\n", line);
  fmt::print("repeat with: --seed {} --steps {}\n", report.episode_seed, report.episode_step);
}

void print_coverage(const SimCoverage& c) {
  fmt::print(
      "episodes {}, requests {}, tokens {}, cached tokens {}, windowed hits {}, cancels {}, "
      "rejections {}, displaced {}, expired {}, "
      "preemptions {}, evictions {}, hits in host memory {} and files {}, bad records {}, failed "
      "loads {}, stop strings {}, stop rows {}, stop ids {}, numerical {}, "
      "late results {}, "
      "repeats {}, accepted {} of {} drafts, constrained sequences {}, failed constraints {}, "
      "executor "
      "deaths {}, differing ranks {}, cohorts beside others {}, steered {}, "
      "captured tokens {}, scored tokens {}, steps waited for taps {}, tap evictions {}, overtakes "
      "{}, steps waited for copies {}, rests {}, most "
      "overtaken {}, by others {}, longest "
      "silence {} steps\n",
      c.episodes, c.requests, c.tokens, c.cached_tokens, c.windowed_hits, c.cancels, c.rejections,
      c.displaced, c.expired, c.preemptions, c.evictions, c.host_hits, c.disk_hits, c.bad_records,
      c.failed_loads, c.stop_strings, c.stop_rows, c.stop_ids, c.numerical, c.late_results,
      c.repeats, c.accepted_drafts, c.drafts, c.constrained_sequences, c.constraint_failures,
      c.executor_deaths, c.differing_ranks, c.cohorts_beside, c.steered, c.captured, c.scored,
      c.waited_for_taps, c.tap_evictions, c.overtakes, c.waited_for_copies, c.rests,
      c.most_overtaken, c.most_overtaken_by_others, c.longest_silence);
}

// A long run in which something never happened has not tested it.
bool covers_everything(const SimCoverage& c) {
  return c.cached_tokens && c.windowed_hits && c.cancels && c.rejections && c.displaced &&
         c.expired && c.preemptions && c.evictions && c.stop_strings && c.stop_rows && c.stop_ids &&
         c.numerical && c.late_results && c.repeats && c.accepted_drafts &&
         c.drafts > c.accepted_drafts && c.constrained_sequences && c.constraint_failures &&
         c.executor_deaths && c.differing_ranks && c.cohorts_beside && c.steered && c.captured &&
         c.scored && c.waited_for_taps && c.tap_evictions && c.overtakes && c.waited_for_copies &&
         c.rests && c.host_hits && c.disk_hits && c.bad_records && c.failed_loads;
}

int run_plain(const SimOptions& options) {
  const auto [report, seconds] = timed_simulation(options);
  fmt::print("seed {}: {} steps in {:.1f} s ({:.0f} steps/s), trace {:016x}\n", options.seed,
             report.steps, seconds, static_cast<double>(report.steps) / seconds, report.trace_hash);
  print_coverage(report.coverage);
  if (!report.violation.empty()) {
    print_violation(report);
    return 1;
  }
  if (report.steps >= 1'000'000 && !covers_everything(report.coverage)) {
    fmt::print("FAILED: something never happened\n");
    return 1;
  }
  // The same seed gives the same trace.
  SimOptions shorter = options;
  shorter.steps = std::min<uint64_t>(options.steps, 50'000);
  if (run_simulation(shorter).trace_hash != run_simulation(shorter).trace_hash) {
    fmt::print("FAILED: two runs of one seed differ\n");
    return 1;
  }
  fmt::print("0 violations\n");
  return 0;
}

#if defined(RUDDER_MUTANTS) && RUDDER_MUTANTS

bool run_mutant(const NamedMutant& mutant, const SimOptions& options) {
  active_mutant = mutant.mutant;
  const auto [report, seconds] = timed_simulation(options);
  active_mutant = Mutant::kNone;
  const bool caught = !report.violation.empty();
  const bool as_it_should = caught == (mutant.mutant != Mutant::kNone);
  fmt::print("{} {:28} {:9} steps {:6.2f} s  {}\n", as_it_should ? "ok  " : "FAIL", mutant.name,
             report.steps, seconds, caught ? report.violation : "no violation");
  return as_it_should;
}

int run_mutants(const SimOptions& options) {
  int num_wrong = 0;
  for (const NamedMutant& mutant : kAllMutants) num_wrong += run_mutant(mutant, options) ? 0 : 1;
  fmt::print("{} mutants, {} wrong\n", std::size(kAllMutants) - 1, num_wrong);
  return num_wrong == 0 ? 0 : 1;
}

#endif

}  // namespace
}  // namespace rudder::testing

int main(int argc, char** argv) {
  rudder::testing::SimOptions options;
  std::string mutant;
  CLI::App app("The simulator of scheduler, KV bookkeeping and engine.");
  app.add_option("--seed", options.seed, "Of everything; the same seed gives the same run.");
  app.add_option("--steps", options.steps, "Engine steps to run at least.");
  app.add_option("--mutant", mutant, "The seeded bug to switch on (a build with mutants only).");
  CLI11_PARSE(app, argc, argv);
#if defined(RUDDER_MUTANTS) && RUDDER_MUTANTS
  if (mutant.empty()) return rudder::testing::run_mutants(options);
  for (const rudder::NamedMutant& named : rudder::kAllMutants) {
    if (mutant != named.name) continue;
    rudder::active_mutant = named.mutant;
    return rudder::testing::run_plain(options);
  }
  fmt::print("no mutant is called {}\n", mutant);
  return 2;
#else
  if (!mutant.empty()) {
    fmt::print("this build has no mutants\n");
    return 2;
  }
  return rudder::testing::run_plain(options);
#endif
}
