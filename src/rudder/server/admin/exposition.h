// Exposition: writes Prometheus' text format 0.0.4, one metric family after the other. It does not
// escape labels: their values come from closed sets and from the operator. One object for each
// scrape.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rudder/engine/stats.h"

namespace rudder::server {

// name="value", escaped; several are joined with commas.
std::string label(std::string_view name, std::string_view value);

class Exposition {
 public:
  // Names get `prefix` and a colon in front, samples the `common` labels.
  Exposition(std::string_view prefix, std::string common);

  // One family with one sample. Counters' names end in _total.
  void counter(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, double value);
  void histogram(std::string_view name, std::string_view help, const engine::Histogram& histogram);

  // Of a histogram: begin, then each with its own labels.
  void buckets(const std::string& labels, const engine::Histogram& histogram);

  // A family of several samples: begin, then each sample with its own labels.
  void begin(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::string_view labels, double value);

  // Without prefix and common labels: the names that all exporters share (process_..., http_...).
  // begin_shared is to begin what plain is to gauge.
  void begin_shared(std::string_view name, std::string_view type, std::string_view help);
  void plain(std::string_view name, std::string_view type, std::string_view help, double value);

  std::string take() { return std::move(out_); }

 private:
  void begin_family(std::string_view type, std::string_view help);
  void write(std::string_view suffix, std::string_view labels, double value);

  const std::string prefix_;  // with its colon
  const std::string common_;
  std::string family_;  // that was begun last
  bool is_shared_ = false;
  std::string out_;
};

}  // namespace rudder::server
