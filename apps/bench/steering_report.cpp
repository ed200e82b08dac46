#include "bench/steering_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "report/statistics.h"

namespace rudder::apps {
namespace {

constexpr std::string_view kBaseline = "disabled";

// Two-sided 95 % point of Student's t.
double student_t(size_t degrees) {
  constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                               2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131};
  if (degrees == 0) return 0;
  if (degrees <= std::size(kTable)) return kTable[degrees - 1];
  return 1.96 + 2.5 / static_cast<double>(degrees);  // within 0.5 % of the table from there on
}

SteeringCase baseline_of(SteeringCase which) {
  which.mode = kBaseline;
  return which;
}

std::string percent(const MeanOfTrials& difference, double base) {
  if (base == 0) return "";
  return fmt::format("{:+.2f} ± {:.2f}", 100 * difference.mean / base,
                     100 * difference.half_width / base);
}

}  // namespace

MeanOfTrials estimate(const std::vector<double>& samples) {
  if (samples.empty()) return {};
  const Summary summary = summarize(samples, {});
  const auto count = static_cast<double>(samples.size());
  if (samples.size() < 2) return {summary.mean, 0};
  const double error = summary.deviation / std::sqrt(count - 1);  // of the mean
  return {summary.mean, student_t(samples.size() - 1) * error};
}

void SteeringReport::add(const SteeringCase& which, const SteeringTrial& trial) {
  std::vector<SteeringTrial>& trials = trials_[which];
  if (trials.empty()) order_.push_back(which);
  trials.push_back(trial);
}

MeanOfTrials SteeringReport::value(const SteeringCase& which, double SteeringTrial::*member) const {
  std::vector<double> samples;
  for (const SteeringTrial& trial : trials_.at(which)) samples.push_back(trial.*member);
  return estimate(samples);
}

MeanOfTrials SteeringReport::difference(const SteeringCase& which,
                                        double SteeringTrial::*member) const {
  const auto baseline = trials_.find(baseline_of(which));
  if (baseline == trials_.end()) return {};
  const std::vector<SteeringTrial>& of_mode = trials_.at(which);
  std::vector<double> samples;
  for (size_t i = 0; i < std::min(of_mode.size(), baseline->second.size()); ++i) {
    samples.push_back(of_mode[i].*member - baseline->second[i].*member);
  }
  return estimate(samples);
}

int64_t SteeringReport::floor_bytes(const std::string& mode) const {
  const auto found = floors_.find(mode);
  return found == floors_.end() ? 0 : found->second;
}

// "75.8 MB, 22.6 us, 4.10 x": what has to be read, how long that takes, and how many times as long
// the mode takes over disabled.
std::string SteeringReport::floor_text(const SteeringCase& which) const {
  const auto bytes = static_cast<double>(floor_bytes(which.mode));
  if (bytes == 0) return "";
  std::string text = fmt::format("{:.3g} MB", bytes * 1e-6);
  if (bandwidth_ == 0) return text;
  const double us = bytes * 1e-3 / bandwidth_;
  const double over = difference(which, &SteeringTrial::tpot).mean * 1e3;
  return text + fmt::format(", {:.3g} us, {:.3g} x", us, over / us);
}

std::string SteeringReport::head(const SteeringCase& first, int32_t rounds) {
  return fmt::format(
      "\nconcurrency {}, {} output tokens; differences from disabled with 95 % intervals over {} "
      "rounds\n{:<20}{:>9}{:>9}{:>10}{:>10}{:>7} {:>16} {:>16} {:>16} {:>16}  {}\n",
      first.concurrency, first.output_len, rounds, "mode", "TTFT ms", "TPOT ms", "E2EL ms", "tok/s",
      "eager", "ΔTTFT ms", "ΔTPOT %", "ΔE2EL %", "Δtok/s %", "floor");
}

std::string SteeringReport::new_lines(int32_t rounds) {
  std::string out;
  for (const SteeringCase& which : order_) {
    if (told_.contains(which) || !has_rounds(which, rounds)) continue;
    const auto is_of_load = [&](const SteeringCase& other) {
      return baseline_of(other) == baseline_of(which);
    };
    if (std::ranges::none_of(told_, is_of_load)) out += head(which, rounds);
    told_.insert(which);
    out += line(which);
  }
  return out;
}

bool SteeringReport::has_rounds(const SteeringCase& which, int32_t rounds) const {
  const auto has = [&](const SteeringCase& of) {
    const auto found = trials_.find(of);
    return found != trials_.end() && std::ssize(found->second) >= rounds;
  };
  return has(which) && has(baseline_of(which));
}

std::string SteeringReport::line(const SteeringCase& which) const {
  std::string out =
      fmt::format("{:<20}{:>9.2f}{:>9.3f}{:>10.1f}{:>10.1f}{:>7.0f}", which.mode,
                  value(which, &SteeringTrial::ttft).mean, value(which, &SteeringTrial::tpot).mean,
                  value(which, &SteeringTrial::e2el).mean, value(which, &SteeringTrial::rate).mean,
                  value(which, &SteeringTrial::eager).mean);
  if (which.mode != kBaseline && trials_.contains(baseline_of(which))) {
    const SteeringCase base = baseline_of(which);
    const auto relative = [&](double SteeringTrial::*member) {
      return percent(difference(which, member), value(base, member).mean);
    };
    const MeanOfTrials ttft = difference(which, &SteeringTrial::ttft);
    out += fmt::format(" {:>16} {:>16} {:>16} {:>16}  {}",
                       fmt::format("{:+.2f} ± {:.2f}", ttft.mean, ttft.half_width),
                       relative(&SteeringTrial::tpot), relative(&SteeringTrial::e2el),
                       relative(&SteeringTrial::rate), floor_text(which));
  }
  return out + "\n";
}

void SteeringLedger::declare(SettingsTable& table) {
  table.add("ledger", &path,
            "Append the figures to this file, as rows of bench/ledger/steering.csv.");
  table.add("ledger-date", &date, "The rows' date.");
  table.add("ledger-device", &device, "The rows' device.");
  table.add("ledger-commit", &commit, "The rows' commit.");
  table.add("ledger-command", &command, "The rows' command.");
  table.add("ledger-weights", &weights, "The rows' dtype of weights.");
  table.add("ledger-kv", &kv, "The rows' dtype of the KV cache.");
}

Result<void> SteeringLedger::append(const SteeringReport& report, const std::string& inside) const {
  if (path.empty()) return {};
  std::ofstream file(path, std::ios::app);
  const auto row = [&](const SteeringCase& which, const char* what, const MeanOfTrials& figure,
                       const char* unit) {
    file << fmt::format("{},{},{},\"{}: {}, 95 % ± {:.3g}\",\"{}\",{},,{},{},{},\"{}\",{:.4g},{}\n",
                        date, device, commit, which.mode, what, figure.half_width, command,
                        which.concurrency, which.output_len, weights, kv, inside, figure.mean,
                        unit);
  };
  for (const SteeringCase& which : report.cases()) {
    if (which.mode == kBaseline) {
      row(which, "TTFT", report.value(which, &SteeringTrial::ttft), "ms");
      row(which, "TPOT", report.value(which, &SteeringTrial::tpot), "ms");
      row(which, "E2EL", report.value(which, &SteeringTrial::e2el), "ms");
      row(which, "output", report.value(which, &SteeringTrial::rate), "tok/s");
      continue;
    }
    row(which, "TTFT over disabled", report.difference(which, &SteeringTrial::ttft), "ms");
    row(which, "TPOT over disabled", report.difference(which, &SteeringTrial::tpot), "ms");
    row(which, "E2EL over disabled", report.difference(which, &SteeringTrial::e2el), "ms");
    row(which, "output over disabled", report.difference(which, &SteeringTrial::rate), "tok/s");
    row(which, "eager decode steps", report.value(which, &SteeringTrial::eager), "steps");
    if (const int64_t floor = report.floor_bytes(which.mode); floor > 0) {
      row(which, "floor, bytes of dictionaries", {static_cast<double>(floor) * 1e-6, 0}, "MB");
    }
  }
  if (!file.good()) return fail(ErrorCode::kInternal, "cannot be written", path);
  return {};
}

}  // namespace rudder::apps
