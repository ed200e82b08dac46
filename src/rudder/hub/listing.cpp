#include "rudder/hub/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>

#include "rudder/base/json.h"
#include "rudder/hub/model_name.h"

namespace rudder::hub {
namespace json = boost::json;

namespace {

constexpr size_t kMaxPathBytes = 1024;
constexpr size_t kMaxPartBytes = 255;
constexpr JsonLimits kAnswerLimits = {.max_depth = 32, .max_bytes = size_t{64} << 20};

tl::unexpected<Error> bad_listing(std::string message) {
  return fail(ErrorCode::kCorruptFile, std::move(message), "hub");
}

std::string_view text_of(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_string()) return {};
  return {value->get_string().data(), value->get_string().size()};
}

std::optional<int64_t> size_of(const json::object& object) {
  const json::value* value = object.if_contains("size");
  if (value == nullptr || !value->is_int64()) return std::nullopt;
  const int64_t size = value->get_int64();
  if (size < 0 || size > kMaxFileBytes) return std::nullopt;
  return size;
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// What git itself cannot hold: no honest listing has it.
bool leaves_its_folder(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes) return true;
  if (path.find('\0') != std::string_view::npos) return true;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPartBytes) return true;
    begin = end + 1;
  }
  return false;
}

Result<RemoteFile> parse_entry(const json::object& entry) {
  RemoteFile file;
  file.path = text_of(entry, "path");
  const auto bad = [&](std::string_view what) {
    return bad_listing(fmt::format("the hub's listing has {} for '{}'", what, file.path));
  };
  if (leaves_its_folder(file.path)) {
    return bad_listing("the hub's listing has a path that leaves the repository's folder");
  }
  const json::value* large = entry.if_contains("lfs");
  const bool is_large = large != nullptr && !large->is_null();
  if (is_large && !large->is_object()) return bad("no storage that is known");
  const json::object& stored = is_large ? large->get_object() : entry;
  const std::optional<int64_t> size = size_of(stored);
  if (!size) return bad("no size");
  file.size = *size;
  file.kind = is_large ? DigestKind::kSha256 : DigestKind::kGitBlob;
  file.digest = text_of(stored, "oid");
  // Some servers write the algorithm in front, as a pointer file does.
  if (is_large && file.digest.starts_with("sha256:")) file.digest.erase(0, 7);
  if (!is_hex(file.digest, is_large ? 64 : 40)) return bad("no hash");
  return file;
}

}  // namespace

bool is_safe_path(std::string_view path) {
  return !leaves_its_folder(path) && std::all_of(path.begin(), path.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '\\';
  });
}

Result<RepositoryState> parse_repository(std::string_view text) {
  auto parsed = parse_json(text, "the hub's answer", kAnswerLimits);
  if (!parsed) return bad_listing(parsed.error().message);
  if (!parsed->is_object()) return bad_listing("the hub's answer is no object");
  const json::object& top = parsed->get_object();
  RepositoryState state{.id = std::string(text_of(top, "id")),
                        .commit = std::string(text_of(top, "sha"))};
  if (state.id.empty()) state.id = text_of(top, "modelId");
  // It is for people: what is no name tells nothing.
  const auto name = parse_model_name(state.id);
  if (!name || !name->quant.empty()) state.id.clear();
  if (!is_commit(state.commit)) return bad_listing("the hub's answer names no commit ('sha')");
  return state;
}

Result<void> parse_tree_page(std::string_view text, std::vector<RemoteFile>& files) {
  auto parsed = parse_json(text, "the hub's listing", kAnswerLimits);
  if (!parsed) return bad_listing(parsed.error().message);
  if (!parsed->is_array()) return bad_listing("the hub's listing is no array");
  for (const json::value& value : parsed->get_array()) {
    if (!value.is_object()) return bad_listing("the hub's listing has an entry that is no object");
    if (text_of(value.get_object(), "type") != "file") continue;
    RUDDER_TRY(RemoteFile file, parse_entry(value.get_object()));
    if (!is_safe_path(file.path)) continue;
    if (files.size() == kMaxListedFiles) {
      return bad_listing(fmt::format("the hub lists over {} files", kMaxListedFiles));
    }
    files.push_back(std::move(file));
  }
  return {};
}

std::string next_page(std::string_view link_header) {
  for (size_t at = 0; at < link_header.size();) {
    const size_t begin = link_header.find('<', at);
    const size_t end = link_header.find('>', begin == std::string_view::npos ? at : begin);
    if (begin == std::string_view::npos || end == std::string_view::npos) return {};
    const size_t parameters_end = std::min(link_header.find('<', end), link_header.size());
    const std::string_view parameters = link_header.substr(end, parameters_end - end);
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos) {
      return std::string(link_header.substr(begin + 1, end - begin - 1));
    }
    at = parameters_end;
  }
  return {};
}

}  // namespace rudder::hub
