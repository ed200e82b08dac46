#include "rudder/hub/model_name.h"

#include <fmt/format.h>

#include <algorithm>

namespace rudder::hub {
namespace {

constexpr size_t kMaxNameBytes = 96;  // of a whole name, as the hub has it
constexpr size_t kMaxRevisionBytes = 255;

bool is_alphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// One of the two parts of a repository's name.
bool is_name_part(std::string_view part) {
  const auto allowed = [](char c) {
    return is_alphanumeric(c) || c == '-' || c == '_' || c == '.';
  };
  const auto edge = [](char c) { return is_alphanumeric(c) || c == '_'; };
  return !part.empty() && std::all_of(part.begin(), part.end(), allowed) && edge(part.front()) &&
         edge(part.back());
}

bool is_repository(std::string_view text) {
  if (text.empty() || text.size() > kMaxNameBytes || text.ends_with(".git")) return false;
  // The cache writes "--" for the slash.
  if (text.find("--") != std::string_view::npos || text.find("..") != std::string_view::npos) {
    return false;
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return is_name_part(text);
  return is_name_part(text.substr(0, slash)) && is_name_part(text.substr(slash + 1));
}

bool is_quant(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return is_alphanumeric(c) || c == '_' || c == '-' || c == '.';
  });
}

}  // namespace

bool is_path_only(std::string_view text) {
  return text.starts_with('/') || text.starts_with('.') || text.starts_with('~') ||
         (text.find("://") == std::string_view::npos && !parse_model_name(text).has_value());
}

Result<ModelName> parse_model_name(std::string_view text) {
  const size_t colon = text.rfind(':');
  const bool has_quant = colon != std::string_view::npos;
  ModelName name{.repository = std::string(text.substr(0, colon)),
                 .quant = has_quant ? std::string(text.substr(colon + 1)) : std::string()};
  if (is_repository(name.repository) && (!has_quant || is_quant(name.quant))) return name;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is no folder and no name of a repository; such names look like "
                          "Qwen/Qwen3-8B, with letters, digits, '-', '_' and '.'",
                          text),
              "model");
}

Result<void> check_revision(std::string_view revision) {
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' {}", revision, why), "revision");
  };
  if (revision.empty()) return bad("is empty; a branch, a tag or a commit is wanted");
  if (revision.size() > kMaxRevisionBytes) return bad("is too long");
  for (size_t begin = 0; begin <= revision.size();) {
    const size_t end = std::min(revision.find('/', begin), revision.size());
    const std::string_view part = revision.substr(begin, end - begin);
    const bool plain = std::all_of(part.begin(), part.end(), [](char c) {
      return is_alphanumeric(c) || c == '-' || c == '_' || c == '.' || c == '+' || c == '@';
    });
    if (part.empty() || part == "." || part == ".." || !plain) {
      return bad("is not the name of a branch, a tag or a commit");
    }
    begin = end + 1;
  }
  return {};
}

bool is_commit(std::string_view revision) {
  return revision.size() == 40 && std::all_of(revision.begin(), revision.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace rudder::hub
