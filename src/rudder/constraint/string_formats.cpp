#include "rudder/constraint/string_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace rudder::constraint {
namespace {

// RFC 3339. Years 0001 to 9999; the 29th of February in leap years only.
constexpr std::string_view kDate =
    "(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-"
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)";
constexpr std::string_view kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
// RFC 3339, appendix A.
constexpr std::string_view kDuration =
    "P(?:(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
    "(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|"
    "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)|"
    "[0-9]{1,9}W)";
// Labels of up to 35 characters, seven of them: never more than the 253 that a name may have.
constexpr std::string_view kHostname =
    "(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,33}[A-Za-z0-9])?\\.){0,6}"
    "[A-Za-z0-9](?:[A-Za-z0-9-]{0,33}[A-Za-z0-9])?";
constexpr std::string_view kEmail =
    "[A-Za-z0-9_%+-]{1,32}(?:\\.[A-Za-z0-9_%+-]{1,10}){0,2}@"
    "(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,33}[A-Za-z0-9])?\\.){1,5}[A-Za-z]{2,24}";
constexpr std::string_view kIpv4 =
    "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}"
    "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
// {0}: a group of hexadecimal digits.
constexpr std::string_view kIpv6 =
    "(?:(?:{0}:){{7}}{0}|(?:{0}:){{1,7}}:|(?:{0}:){{1,6}}:{0}|(?:{0}:){{1,5}}(?::{0}){{1,2}}|"
    "(?:{0}:){{1,4}}(?::{0}){{1,3}}|(?:{0}:){{1,3}}(?::{0}){{1,4}}|(?:{0}:){{1,2}}(?::{0}){{1,5}}|"
    "{0}:(?::{0}){{1,6}}|:(?:(?::{0}){{1,7}}|:))";
// RFC 3986, at most 2,083 characters, which is what makers of schemas write as the longest.
// {0}: a character of a path; {1}: a host.
constexpr std::string_view kUri =
    "[A-Za-z][A-Za-z0-9+.-]{{0,15}}:(?://{1}(?::[0-9]{{1,5}})?(?:/(?:{0}|/){{0,400}})?|"
    "{0}(?:{0}|/){{0,400}})(?:\\?(?:{0}|[/?]){{0,150}})?(?:#(?:{0}|[/?]){{0,50}})?";
constexpr std::string_view kPathChar = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
constexpr std::string_view kJsonPointer = "(?:/(?:[^~/]|~[01])*)*";
// {0}: the version's digit.
constexpr std::string_view kUuid =
    "[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{0}[0-9a-fA-F]{{3}}-{1}[0-9a-fA-F]{{3}}-[0-9a-fA-F]{{12}}";

struct Format {
  std::string_view name;
  std::string_view wide;
};

constexpr Format kFormats[] = {{"date", "[0-9]"},
                               {"time", "[0-9]"},
                               {"date-time", "[0-9]"},
                               {"duration", "^[Pp]"},
                               {"email", "@"},
                               {"hostname", "^[^ /@]+$"},
                               {"ipv4", "[0-9]"},
                               {"ipv6", ":"},
                               {"uri", ":"},
                               {"uuid", "[0-9a-fA-F]{4}"},
                               {"uuid1", "[0-9a-fA-F]{4}"},
                               {"uuid3", "[0-9a-fA-F]{4}"},
                               {"uuid4", "[0-9a-fA-F]{4}"},
                               {"uuid5", "[0-9a-fA-F]{4}"},
                               {"json-pointer", "^(?:/|$)"}};

const Format* find_format(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                         [&](const Format& one) { return one.name == name; });
  return found == std::end(kFormats) ? nullptr : found;
}

std::string body(std::string_view format) {
  if (format == "date") return std::string(kDate);
  if (format == "time") return std::string(kTime);
  if (format == "date-time") return fmt::format("{}T{}", kDate, kTime);
  if (format == "duration") return std::string(kDuration);
  if (format == "email") return std::string(kEmail);
  if (format == "hostname") return std::string(kHostname);
  if (format == "ipv4") return std::string(kIpv4);
  if (format == "ipv6") return fmt::format(fmt::runtime(kIpv6), "[0-9a-fA-F]{1,4}");
  if (format == "uri") return fmt::format(fmt::runtime(kUri), kPathChar, kHostname);
  if (format == "json-pointer") return std::string(kJsonPointer);
  if (format == "uuid") return fmt::format(fmt::runtime(kUuid), "[0-9a-fA-F]", "[0-9a-fA-F]");
  if (format.starts_with("uuid")) {
    return fmt::format(fmt::runtime(kUuid), format.substr(4), "[89abAB]");
  }
  return "";
}

}  // namespace

std::string format_pattern(std::string_view format) {
  if (find_format(format) == nullptr) return "";
  return fmt::format("^(?:{})$", body(format));
}

std::string wide_format_pattern(std::string_view format) {
  const Format* known = find_format(format);
  return known == nullptr ? "" : std::string(known->wide);
}

std::string known_formats() {
  std::vector<std::string_view> names;
  for (const Format& one : kFormats) names.push_back(one.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace rudder::constraint
