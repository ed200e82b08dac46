#include "rudder/server/admin/exposition.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace rudder::server {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  constexpr double kExact = 0x1p53;
  if (value == std::nearbyint(value) && std::fabs(value) < kExact) {
    return fmt::format("{}", static_cast<int64_t>(value));
  }
  return fmt::format("{}", value);
}

}  // namespace

std::string label(std::string_view name, std::string_view value) {
  std::string out(name);
  out += "=\"";
  for (const char ch : value) {
    if (ch == '\\' || ch == '"') out.push_back('\\');
    if (ch == '\n') {
      out += "\\n";
    } else {
      out.push_back(ch);
    }
  }
  out.push_back('"');
  return out;
}

void Exposition::begin(std::string_view name, std::string_view type, std::string_view help) {
  family_ = fmt::format("{}:{}", prefix_, name);
  fmt::format_to(std::back_inserter(out_), "# HELP {} {}\n# TYPE {} {}\n", family_, help, family_,
                 type);
}

void Exposition::write(std::string_view suffix, std::string_view labels, double value) {
  fmt::format_to(std::back_inserter(out_), "{}{}{{{}{}{}}} {}\n", family_, suffix, common_,
                 common_.empty() || labels.empty() ? "" : ",", labels, number(value));
}

void Exposition::sample(std::string_view labels, double value) {
  write("", labels, value);
}

void Exposition::counter(std::string_view name, std::string_view help, double value) {
  begin(name, "counter", help);
  write("", "", value);
}

void Exposition::gauge(std::string_view name, std::string_view help, double value) {
  begin(name, "gauge", help);
  write("", "", value);
}

void Exposition::histogram(std::string_view name, std::string_view help,
                           const engine::Histogram& histogram) {
  begin(name, "histogram", help);
  buckets("", histogram);
}

void Exposition::buckets(const std::string& labels, const engine::Histogram& histogram) {
  const std::string first = labels.empty() ? "" : labels + ",";
  uint64_t below = 0;
  for (size_t i = 0; i < histogram.bounds.size(); ++i) {
    if (i < histogram.counts.size()) below += histogram.counts[i];
    write("_bucket", first + label("le", number(histogram.bounds[i])), static_cast<double>(below));
  }
  // The last bucket and _count are one number by the format's rules.
  if (histogram.counts.size() > histogram.bounds.size()) below += histogram.counts.back();
  write("_bucket", first + label("le", "+Inf"), static_cast<double>(below));
  write("_sum", labels, histogram.sum);
  write("_count", labels, static_cast<double>(below));
}

void Exposition::plain(std::string_view name, std::string_view type, std::string_view help,
                       double value) {
  fmt::format_to(std::back_inserter(out_), "# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help,
                 type, number(value));
}

}  // namespace rudder::server
