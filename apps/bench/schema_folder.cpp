#include "bench/schema_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "report/statistics.h"
#include "rudder/base/cpu_time.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"
#include "rudder/constraint/fuel.h"

namespace rudder::apps {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr size_t kMaxReasons = 20;
constexpr double kMegabyte = 1 << 20;

std::vector<fs::path> schema_files(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The schema of a file as text; empty where there is none.
std::string schema_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto value = parse_json(text, "the file", {.max_depth = 512});
  if (!value || !value->is_object()) return "";
  const json::object& object = value->get_object();
  const bool has_tests = object.contains("schema") && object.contains("tests");
  return has_tests ? to_json_text(object.at("schema")) : text;
}

// Without the parts that differ from schema to schema, and with the keyword that it is about.
std::string reason_of(const Error& error) {
  std::string reason;
  bool quoted = false;
  for (const char c : error.message) {
    if (c == '\'') quoted = !quoted;
    if (quoted || (c >= '0' && c <= '9')) continue;
    reason.push_back(c);
  }
  const std::string where = error.where.substr(0, error.where.find_last_not_of("[]0123456789") + 1);
  const size_t dot = where.rfind('.');
  return fmt::format("{}: {}", dot == std::string::npos ? "" : where.substr(dot + 1), reason);
}

class Tally {
 public:
  void add(const constraint::FormEngine& engine, const std::string& text) {
    constraint::Fuel fuel;
    const double start = thread_cpu_seconds();
    const auto compiled =
        engine.compile({.kind = constraint::GrammarKind::kJsonSchema, .text = text}, fuel);
    const double took = (thread_cpu_seconds() - start) * 1000;
    all_ms_.push_back(took);
    if (!compiled) {
      ++reasons_[reason_of(compiled.error())];
      return;
    }
    taken_ms_.push_back(took);
    megabytes_.push_back(static_cast<double>(compiled->bytes) / kMegabyte);
  }

  void print() const {
    fmt::print("taken: {} of {} schemas, {:.1f} %\n", taken_ms_.size(), all_ms_.size(),
               100.0 * static_cast<double>(taken_ms_.size()) /
                   static_cast<double>(std::max<size_t>(1, all_ms_.size())));
    fmt::print("{:<34}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}\n", "", "mean", "p50", "p90", "p95", "p99",
               "max");
    print_row("compile of those taken, CPU ms", taken_ms_);
    print_row("compile of all, CPU ms", all_ms_);
    print_row("memory of those taken, MiB", megabytes_);
    std::vector<std::pair<size_t, std::string>> reasons;
    reasons.reserve(reasons_.size());
    for (const auto& [reason, count] : reasons_) reasons.emplace_back(count, reason);
    std::sort(reasons.rbegin(), reasons.rend());
    reasons.resize(std::min(reasons.size(), kMaxReasons));
    for (const auto& [count, reason] : reasons) fmt::print("{:>7} {}\n", count, reason);
  }

 private:
  static void print_row(std::string_view name, const std::vector<double>& samples) {
    const Summary summary = summarize(samples, {50, 90, 95, 99, 100});
    fmt::print("{:<34}{:>9.2f}", name, summary.mean);
    for (const double value : summary.percentiles) fmt::print("{:>9.2f}", value);
    fmt::print("\n");
  }

  std::vector<double> all_ms_;
  std::vector<double> taken_ms_;
  std::vector<double> megabytes_;
  std::map<std::string, size_t> reasons_;
};

}  // namespace

Result<void> compile_schema_folder(const std::string& folder,
                                   const constraint::FormEngine& engine) {
  Tally tally;
  bool any = false;
  const std::vector<fs::path> files = schema_files(folder);
  Progress progress("bench constraint", false);
  int64_t num_read = 0;
  for (const fs::path& path : files) {
    progress.update(num_read++, std::ssize(files));
    const std::string text = schema_of(path);
    if (text.empty()) continue;
    any = true;
    tally.add(engine, text);
  }
  progress.update(num_read, num_read);
  if (!any) return fail(ErrorCode::kNotFound, "has no JSON schemas", folder);
  tally.print();
  return {};
}

}  // namespace rudder::apps
