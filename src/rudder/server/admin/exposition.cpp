#include "rudder/server/admin/exposition.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <iterator>

namespace rudder::server {
namespace {

constexpr size_t kUsualBytes = 64 << 10;  // of one answer

void append(std::string& out, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) out.append(part);
}

void append_number(std::string& out, double value) {
  if (std::isnan(value)) return append(out, {"NaN"});
  if (std::isinf(value)) return append(out, {value > 0 ? "+Inf" : "-Inf"});
  constexpr double kExact = 0x1p53;
  if (value != std::nearbyint(value) || std::fabs(value) >= kExact) {
    fmt::format_to(std::back_inserter(out), "{}", value);
    return;
  }
  constexpr size_t kMostDigits = 24;
  char digits[kMostDigits];
  const auto end = std::to_chars(digits, digits + kMostDigits, static_cast<int64_t>(value)).ptr;
  out.append(digits, end);
}

// A bound is a label, so its spelling counts: 1.0, as OpenMetrics and the clients of Python, Go and
// Java write it and as dashboards ask for it.
void append_bound(std::string& out, double bound) {
  const size_t begin = out.size();
  append_number(out, bound);
  if (out.find_first_not_of("-0123456789", begin) == std::string::npos) out += ".0";
}

}  // namespace

Exposition::Exposition(std::string_view prefix, std::string common)
    : prefix_(fmt::format("{}:", prefix)), common_(std::move(common)) {
  out_.reserve(kUsualBytes);
}

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
  is_shared_ = false;
  family_ = prefix_;
  family_ += name;
  begin_family(type, help);
}

void Exposition::begin_shared(std::string_view name, std::string_view type, std::string_view help) {
  is_shared_ = true;
  family_ = name;
  begin_family(type, help);
}

void Exposition::begin_family(std::string_view type, std::string_view help) {
  append(out_, {"# HELP ", family_, " ", help, "\n# TYPE ", family_, " ", type, "\n"});
}

void Exposition::write(std::string_view suffix, std::string_view labels, double value) {
  const std::string_view common = is_shared_ ? std::string_view() : common_;
  append(out_, {family_, suffix});
  if (!common.empty() || !labels.empty()) {
    append(out_, {"{", common, !common.empty() && !labels.empty() ? "," : "", labels, "}"});
  }
  out_.push_back(' ');
  append_number(out_, value);
  out_.push_back('\n');
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
  std::string bucket = labels.empty() ? "le=\"" : labels + ",le=\"";
  const size_t bound_at = bucket.size();
  uint64_t below = 0;
  for (size_t i = 0; i < histogram.bounds.size(); ++i) {
    if (i < histogram.counts.size()) below += histogram.counts[i];
    append_bound(bucket, histogram.bounds[i]);
    bucket.push_back('"');
    write("_bucket", bucket, static_cast<double>(below));
    bucket.resize(bound_at);
  }
  // The last bucket and _count are one number by the format's rules.
  if (histogram.counts.size() > histogram.bounds.size()) below += histogram.counts.back();
  write("_bucket", bucket + "+Inf\"", static_cast<double>(below));
  write("_sum", labels, histogram.sum);
  write("_count", labels, static_cast<double>(below));
}

void Exposition::plain(std::string_view name, std::string_view type, std::string_view help,
                       double value) {
  begin_shared(name, type, help);
  write("", "", value);
}

}  // namespace rudder::server
