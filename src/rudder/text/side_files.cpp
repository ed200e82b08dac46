#include "rudder/text/side_files.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <set>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/text/config_tokens.h"
#include "rudder/text/files.h"
#include "rudder/text/json_fields.h"
#include "rudder/text/token_table.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

constexpr std::string_view kConfigFile = "tokenizer_config.json";
constexpr std::string_view kList = "extra_special_tokens";
constexpr std::string_view kOldList = "additional_special_tokens";  // what the list was called

bool is_standard(std::string_view key) {
  return std::ranges::count(kTokenNames, key) > 0;
}

// An object in the map is a token as the config writes one, special whatever it says.
Result<json::value> special_token(const json::value& node, const std::string& path) {
  RUDDER_TRY(AddedToken token, read_token_flags(node, path));
  json::object out = node.get_object();
  out["__type"] = "AddedToken";
  out["special"] = true;
  if (!out.contains("normalized")) out["normalized"] = false;
  return json::value(std::move(out));
}

class SideFiles {
 public:
  explicit SideFiles(json::object& config) : config_(config) {
    if (const json::value* old = config_.if_contains(kOldList)) {
      const json::value list = *old;
      config_.erase(kOldList);
      if (!config_.contains(kList)) config_[kList] = list;
    }
  }

  Result<void> add_map(const json::object& map);
  Result<void> add_tokens(const json::object& tokens, const json::value& added);
  void add_old_list();

 private:
  Result<void> add_name(std::string_view key, const json::value& node, const std::string& path);
  Result<void> add_list(const json::value& node, const std::string& path);
  bool is_known_special(std::string_view content) const;

  json::object& config_;
  std::set<std::string, std::less<>> of_map_;  // standard names that the map says
  std::set<std::string, std::less<>> listed_;  // tokens that its list has
  json::value old_list_;                       // that of the map
};

Result<void> SideFiles::add_name(std::string_view key, const json::value& node,
                                 const std::string& path) {
  if (!node.is_string() && !node.is_object() && !node.is_null()) {
    if (!is_standard(key)) return {};
    return fail(ErrorCode::kCorruptFile, "must be a token", path);
  }
  if (is_standard(key)) {
    of_map_.emplace(key);
  } else if (const json::value* own = config_.if_contains(key); own && own->is_string()) {
    return {};  // of names that are not standard ones the config's text counts
  }
  json::value token = node;
  if (node.is_object()) {
    RUDDER_TRY(token, special_token(node, path));
  } else if (node.is_string() && !is_standard(key)) {
    RUDDER_TRY(token, special_token(json::object{{"content", node.get_string()}}, path));
  }
  config_[key] = std::move(token);
  return {};
}

// A list joins that of the config. Names with tokens join those of the config, or go before its
// list. A list beside names of the config is kept under the list's old name.
Result<void> SideFiles::add_list(const json::value& node, const std::string& path) {
  json::value& own = config_[kList];
  if (node.is_object()) {
    if (!own.is_object()) own = json::object();
    for (const auto& [key, token] : node.get_object()) own.get_object()[key] = token;
    return {};
  }
  if (node.is_null()) return {};
  if (!node.is_array()) return fail(ErrorCode::kCorruptFile, "must be a list of tokens", path);
  json::array list = own.is_array() ? own.get_array() : json::array();
  size_t index = 0;
  for (const json::value& item : node.get_array()) {
    const std::string at = fmt::format("{}[{}]", path, index++);
    json::value token = item;
    if (!item.is_string()) {
      RUDDER_TRY(token, special_token(item, at));
    }
    const json::value& text = item.is_string() ? item : item.get_object().at("content");
    listed_.emplace(text.get_string());
    list.push_back(std::move(token));
  }
  (own.is_object() ? config_[kOldList] : own) = std::move(list);
  return {};
}

Result<void> SideFiles::add_map(const json::object& map) {
  for (const auto& [key, node] : map) {
    const std::string path = fmt::format("{}: {}", kSpecialTokensFile, std::string_view(key));
    if (key == kOldList) {
      old_list_ = node;
    } else if (key == kList) {
      RUDDER_TRY_VOID(add_list(node, path));
    } else if (std::string_view(key).ends_with("_token")) {
      RUDDER_TRY_VOID(add_name(key, node, path));
    }
  }
  return {};
}

// A text of the config, or a token of the map. An object of the config does not count yet where
// the tokens of added_tokens.json are judged.
bool SideFiles::is_known_special(std::string_view content) const {
  const auto is_text = [&](const json::value& node) {
    return node.is_string() && std::string_view(node.get_string()) == content;
  };
  for (const std::string_view name : kTokenNames) {
    const json::value* node = config_.if_contains(name);
    if (node == nullptr) continue;
    if (node->is_object() && of_map_.contains(name)) node = &node->get_object().at("content");
    if (is_text(*node)) return true;
  }
  const json::value* const list = config_.if_contains(kList);
  return listed_.contains(content) ||
         (list != nullptr && list->is_array() && std::ranges::any_of(list->get_array(), is_text));
}

Result<void> SideFiles::add_tokens(const json::object& tokens, const json::value& added) {
  json::object decoder;
  for (const auto& [content, node] : tokens) {
    RUDDER_TRY(const int64_t id, int_field(tokens, content, 0, kMaxTokenId, kAddedTokensFile));
    const bool is_special = is_known_special(content);
    if (decoder.contains(std::to_string(id))) {
      return fail(ErrorCode::kCorruptFile, "another token has the same id",
                  fmt::format("{}.{}", kAddedTokensFile, std::string_view(content)));
    }
    decoder[std::to_string(id)] = {
        {"content", content}, {"normalized", !is_special}, {"special", is_special}};
  }
  if (added.is_array()) {  // which are read before
    for (const json::value& token : added.get_array()) {
      const std::string id = std::to_string(token.at("id").to_number<int64_t>());
      const json::value* const said = decoder.if_contains(id);
      const json::value& content = token.at("content");
      if (said != nullptr && said->at("content") != content) {
        return fail(
            ErrorCode::kCorruptFile,
            fmt::format("tokenizer.json has \"{}\" there", std::string_view(content.get_string())),
            fmt::format("{}.{}", kAddedTokensFile, id));
      }
      decoder[id] = token;
    }
  }
  config_[kTokensById] = std::move(decoder);
  return {};
}

void SideFiles::add_old_list() {
  if (old_list_.is_null()) return;
  const json::value* const own = config_.if_contains(kList);
  if (own == nullptr) {
    config_[kList] = std::move(old_list_);
  } else if (own->is_object() && !config_.contains(kOldList)) {
    config_[kOldList] = std::move(old_list_);
  }
}

}  // namespace

Result<json::object> parse_object_file(std::string_view text, std::string_view name) {
  if (text.empty()) return json::object();
  auto value = parse_json(text, name);
  if (!value) return fail(ErrorCode::kCorruptFile, value.error().message, std::string(name));
  RUDDER_TRY_VOID(as_object(*value, name));
  return std::move(value->get_object());
}

Result<TokenFiles> read_token_files(const std::filesystem::path& directory) {
  TokenFiles files;
  RUDDER_TRY(files.config, read_optional_text_file(directory / kConfigFile));
  RUDDER_TRY(files.special_tokens, read_optional_text_file(directory / kSpecialTokensFile));
  RUDDER_TRY(files.added_tokens, read_optional_text_file(directory / kAddedTokensFile));
  return files;
}

Result<json::object> merge_token_files(const TokenFiles& files, const json::value& added,
                                       std::string* decoder_path) {
  RUDDER_TRY(json::object config, parse_object_file(files.config, kConfigFile));
  SideFiles side(config);
  const bool says_all = config.contains(kTokensById);
  if (decoder_path != nullptr) *decoder_path = fmt::format("{}: {}", kConfigFile, kTokensById);
  if (says_all) return config;
  RUDDER_TRY(const json::object map, parse_object_file(files.special_tokens, kSpecialTokensFile));
  RUDDER_TRY_VOID(side.add_map(map));
  if (!files.added_tokens.empty()) {
    RUDDER_TRY(const json::object tokens, parse_object_file(files.added_tokens, kAddedTokensFile));
    RUDDER_TRY_VOID(side.add_tokens(tokens, added));
    if (decoder_path != nullptr) *decoder_path = kAddedTokensFile;
  }
  side.add_old_list();
  return config;
}

}  // namespace rudder::text
