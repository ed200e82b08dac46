// rudder models: what the hub's cache holds, whichever tool put it there, and its removal.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "model_folder.h"
#include "report_error.h"
#include "rudder/base/json.h"
#include "rudder/hub/cache_scan.h"
#include "rudder/hub/model_name.h"

namespace rudder::apps {
namespace json = boost::json;

namespace {

std::string size_text(int64_t bytes) {
  constexpr double kUnit = 1024;
  auto value = static_cast<double>(bytes);
  for (const char* unit : {"B", "KiB", "MiB"}) {
    if (value < kUnit) return fmt::format("{:.{}f} {}", value, *unit == 'B' ? 0 : 1, unit);
    value /= kUnit;
  }
  return fmt::format("{:.1f} GiB", value);
}

std::string day_text(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts = {};
  localtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

void print_table(const std::vector<hub::CachedModel>& models, const std::string& cache) {
  size_t width = 5;
  int64_t total = 0;
  for (const hub::CachedModel& model : models) {
    width = std::max(width, model.repository.size());
    total += model.bytes;
  }
  if (!models.empty()) {
    fmt::print("{:<{}}  {:>10}  {:<10}  {}\n", "MODEL", width, "SIZE", "USED", "REVISIONS");
  }
  for (const hub::CachedModel& model : models) {
    std::vector<std::string> notes;
    for (const hub::CachedSnapshot& snapshot : model.snapshots) {
      std::string note = snapshot.refs.empty()
                             ? snapshot.commit.substr(0, 8)
                             : fmt::format("{} ({})", fmt::join(snapshot.refs, ", "),
                                           snapshot.commit.substr(0, 8));
      if (!snapshot.missing.empty()) note += fmt::format(" without {}", snapshot.missing);
      notes.push_back(std::move(note));
    }
    if (model.incomplete_bytes > 0) {
      notes.push_back(fmt::format("{} of a cut download", size_text(model.incomplete_bytes)));
    }
    fmt::print("{:<{}}  {:>10}  {:<10}  {}\n", model.repository, width, size_text(model.bytes),
               day_text(model.last_used_s), fmt::join(notes, "; "));
  }
  fmt::print("{} models, {} in {}\n", models.size(), size_text(total), cache);
}

void print_json(const std::vector<hub::CachedModel>& models) {
  json::array rows;
  for (const hub::CachedModel& model : models) {
    json::array snapshots;
    for (const hub::CachedSnapshot& snapshot : model.snapshots) {
      snapshots.push_back({{"commit", snapshot.commit},
                           {"refs", json::value_from(snapshot.refs)},
                           {"bytes", snapshot.bytes},
                           {"missing", snapshot.missing.empty() ? json::value(nullptr)
                                                                : json::value(snapshot.missing)}});
    }
    rows.push_back({{"model", model.repository},
                    {"bytes", model.bytes},
                    {"incomplete_bytes", model.incomplete_bytes},
                    {"last_used", model.last_used_s},
                    {"snapshots", std::move(snapshots)}});
  }
  fmt::print("{}\n", to_json_text(rows));
}

// Every name is read before anything is removed.
Result<void> remove_models(const std::string& cache, const std::vector<std::string>& names) {
  std::vector<std::string> repositories;
  for (const std::string& name : names) {
    RUDDER_TRY(hub::ModelName parsed, hub::parse_model_name(name));
    if (!parsed.quant.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("remove takes all that the cache has of a repository, every "
                              "quantisation of it; where that is meant: rudder models remove {}",
                              parsed.repository),
                  name);
    }
    repositories.push_back(std::move(parsed.repository));
  }
  for (const std::string& repository : repositories) {
    RUDDER_TRY(const int64_t freed, hub::remove_cached(cache, repository));
    fmt::print("{} removed, {} freed\n", repository, size_text(freed));
  }
  return {};
}

}  // namespace

int run_models(int argc, char** argv) {
  bool as_json = false;
  SettingsTable table;
  table.section("models");
  table.add("json", &as_json, "One JSON array in place of the table.");
  constexpr size_t kMaxNames = 1000;
  const Result<ParsedArguments> arguments =
      parse_arguments({"rudder models",
                       "What the hub's cache holds and how large it is; with remove, what is named "
                       "goes, all its revisions.",
                       "[remove ORG/NAME...]", kMaxNames},
                      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  std::vector<std::string> names = arguments->positionals;
  const bool removes = !names.empty();
  if (removes && (names[0] != "remove" || names.size() == 1)) {
    return report_bad_arguments(
        {ErrorCode::kInvalidArgument,
         names[0] == "remove" ? "name what to remove: rudder models remove ORG/NAME"
                              : fmt::format("'{}' is nothing that models does; usage: rudder "
                                            "models [remove ORG/NAME...]",
                                            names[0]),
         "models"});
  }
  const Result<hub::HubSettings> settings = hub_settings();
  if (!settings) return report_failure(settings.error());
  if (removes) {
    names.erase(names.begin());
    const Result<void> removed = remove_models(settings->cache, names);
    return removed ? 0 : report_failure(removed.error());
  }
  const Result<std::vector<hub::CachedModel>> models = hub::scan_cache(settings->cache);
  if (!models) return report_failure(models.error());
  if (as_json) {
    print_json(*models);
  } else {
    print_table(*models, settings->cache);
  }
  return 0;
}

}  // namespace rudder::apps
