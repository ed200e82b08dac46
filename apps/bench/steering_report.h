// The report of `rudder bench steering`: trials by mode and load, their differences from the mode
// "disabled" of the same rounds with confidence intervals, as a table and as rows of the ledger.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/settings.h"

namespace rudder::apps {

// One turn of a mode: medians over its requests, in milliseconds, output tokens a second, and steps
// of one token a sequence that ran op by op.
struct SteeringTrial {
  double ttft = 0;
  double tpot = 0;
  double e2el = 0;
  double rate = 0;
  double eager = 0;
};

struct SteeringCase {
  std::string mode;
  int32_t concurrency = 0;
  int32_t output_len = 0;
  auto operator<=>(const SteeringCase&) const = default;
};

// A mean with the half width of its 95 % interval (Student's t over the trials).
struct MeanOfTrials {
  double mean = 0;
  double half_width = 0;
};
MeanOfTrials estimate(const std::vector<double>& samples);

class SteeringReport {
 public:
  // Trials of a case in the order of the rounds.
  void add(const SteeringCase& which, const SteeringTrial& trial);

  // Of a member of the trials: the mean, and the differences from "disabled" round by round.
  MeanOfTrials value(const SteeringCase& which, double SteeringTrial::*member) const;
  MeanOfTrials difference(const SteeringCase& which, double SteeringTrial::*member) const;

  // What a step of a mode has to read at least, beside the model; told with its differences. With
  // a bandwidth (GB/s; 0: not known) as time too.
  void set_floor(const std::string& mode, int64_t bytes) { floors_[mode] = bytes; }
  void set_bandwidth(double gigabytes) { bandwidth_ = gigabytes; }
  double bandwidth() const { return bandwidth_; }
  int64_t floor_bytes(const std::string& mode) const;

  // In the order in which they were added.
  const std::vector<SteeringCase>& cases() const { return order_; }
  // A line for each case that had its last of `rounds` since the last call, as "disabled" of the
  // same load has, behind a heading where it is the first of its load.
  std::string new_lines(int32_t rounds);

 private:
  static std::string head(const SteeringCase& first, int32_t rounds);
  std::string line(const SteeringCase& which) const;
  bool has_rounds(const SteeringCase& which, int32_t rounds) const;
  std::string floor_text(const SteeringCase& which) const;

  std::map<SteeringCase, std::vector<SteeringTrial>> trials_;
  std::map<std::string, int64_t> floors_;
  double bandwidth_ = 0;
  std::vector<SteeringCase> order_;
  std::set<SteeringCase> told_;
};

// Where the figures are kept: rows for bench/ledger/steering.csv.
struct SteeringLedger {
  std::string path;
  std::string date, device, commit, command;
  std::string weights, kv;

  void declare(SettingsTable& table);
  // `inside`: what the timed region had. Nothing without a path.
  Result<void> append(const SteeringReport& report, const std::string& inside) const;
};

}  // namespace rudder::apps
