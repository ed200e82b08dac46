#include "rudder/server/testing/exposition_validator.h"

#include <fmt/format.h>

#include <cstdlib>
#include <iterator>
#include <set>
#include <vector>

namespace rudder::server {
namespace {

bool is_name(std::string_view text, bool colons) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  for (const char ch : text) {
    const bool fits = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_' ||
                      (ch >= '0' && ch <= '9') || (colons && ch == ':');
    if (!fits) return false;
  }
  return true;
}

using Labels = std::vector<std::pair<std::string, std::string>>;

// The inside of the braces; false when it is malformed.
bool parse_labels(std::string_view text, Labels* labels) {
  while (!text.empty()) {
    const size_t equals = text.find("=\"");
    if (equals == std::string_view::npos || !is_name(text.substr(0, equals), false)) return false;
    std::string name(text.substr(0, equals));
    std::string value;
    size_t i = equals + 2;
    for (; i < text.size() && text[i] != '"'; ++i) {
      if (text[i] == '\\') {
        if (++i >= text.size() || (text[i] != '\\' && text[i] != '"' && text[i] != 'n'))
          return false;
      }
      value.push_back(text[i]);
    }
    if (i >= text.size()) return false;
    labels->emplace_back(std::move(name), std::move(value));
    text.remove_prefix(i + 1);
    if (text.empty()) return true;
    if (text[0] != ',') return false;
    text.remove_prefix(1);
    if (text.empty()) return false;
  }
  return true;
}

struct Family {
  std::string name, type;
  double last_bucket = -1, last_bound = -1e300;
  bool saw_infinity = false;
  Labels series = {};  // of the histogram's buckets, all but the bound
};

std::string check_sample(const std::string& line, Family& family, ExpositionCheck& check) {
  const size_t name_end = line.find_first_of("{ ");
  if (name_end == std::string::npos) return "no value";
  const std::string name = line.substr(0, name_end);
  if (!is_name(name, true)) return "bad name";
  size_t at = name_end;
  Labels labels;
  if (line[at] == '{') {
    const size_t close = line.rfind('}');
    if (close == std::string::npos) return "no closing brace";
    if (!parse_labels(std::string_view(line).substr(at + 1, close - at - 1), &labels)) {
      return "bad labels";
    }
    at = close + 1;
  }
  std::set<std::string> names;
  for (const auto& [key, value] : labels) {
    if (!names.insert(key).second) return "label twice";
  }
  if (at >= line.size() || line[at] != ' ') return "no space before the value";
  char* end = nullptr;
  const double value = std::strtod(line.c_str() + at + 1, &end);
  if (end == line.c_str() + at + 1 || *end != '\0') return "bad value";
  if (!check.samples.emplace(line.substr(0, at), value).second) return "sample twice";

  if (!name.starts_with(family.name)) return "sample outside its family";
  const std::string suffix = name.substr(family.name.size());
  if (family.type != "histogram") {
    if (!suffix.empty()) return "suffix on a plain family";
    if (family.type == "counter" && (!name.ends_with("_total") || value < 0)) return "bad counter";
    return "";
  }
  if (suffix == "_bucket") {
    if (labels.empty() || labels.back().first != "le") return "bucket without le";
    const Labels series(labels.begin(), std::prev(labels.end()));
    if (family.saw_infinity && series != family.series) {
      family = Family{.name = family.name, .type = family.type};
    }
    family.series = series;
    const double bound = std::strtod(labels.back().second.c_str(), nullptr);
    if (bound <= family.last_bound) return "bounds do not rise";
    if (value < family.last_bucket) return "buckets do not rise";
    family.last_bound = bound;
    family.last_bucket = value;
    family.saw_infinity = labels.back().second == "+Inf";
  } else if (suffix == "_count") {
    if (!family.saw_infinity || value != family.last_bucket) return "_count is not the last bucket";
  } else if (suffix != "_sum") {
    return "unknown suffix";
  }
  return "";
}

}  // namespace

ExpositionCheck check_exposition(std::string_view text) {
  ExpositionCheck check;
  std::set<std::string> seen;
  Family family;
  std::string helped;
  if (text.empty() || text.back() != '\n') check.problem = "no line end at the end";
  while (!text.empty() && check.problem.empty()) {
    const size_t eol = text.find('\n');
    const std::string line(text.substr(0, eol));
    text.remove_prefix(eol == std::string_view::npos ? text.size() : eol + 1);
    std::string problem;
    if (line.starts_with("# HELP ")) {
      const size_t space = line.find(' ', 7);
      helped = line.substr(7, space - 7);
      if (space == std::string::npos || !is_name(helped, true)) problem = "bad HELP";
    } else if (line.starts_with("# TYPE ")) {
      const size_t space = line.find(' ', 7);
      family = {line.substr(7, space - 7), line.substr(space + 1)};
      if (family.name != helped) problem = "TYPE without HELP before it";
      if (family.type != "counter" && family.type != "gauge" && family.type != "histogram") {
        problem = "unknown type";
      }
      if (!seen.insert(family.name).second) problem = "family twice";
    } else if (line.empty() || line[0] == '#') {
      problem = "stray line";
    } else {
      problem = check_sample(line, family, check);
    }
    if (!problem.empty()) check.problem = fmt::format("{}: {}", problem, line);
  }
  return check;
}

}  // namespace rudder::server
