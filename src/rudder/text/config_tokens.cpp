#include "rudder/text/config_tokens.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "rudder/text/json_fields.h"
#include "rudder/text/token_table.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

constexpr std::string_view kDecoder = "added_tokens_decoder";
constexpr std::array<std::string_view, 7> kNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// A text alone is a special token. Nothing where `node` is neither that nor an object of one.
std::optional<AddedToken> token_of(const json::value& node) {
  if (node.is_string()) {
    AddedToken token;
    token.content = node.get_string();
    token.special = true;
    return token;
  }
  if (!node.is_object() || !node.get_object().contains("__type")) return std::nullopt;
  Result<AddedToken> token = read_token_flags(node, "");
  return token ? std::optional(std::move(*token)) : std::nullopt;
}

class ConfigTokens {
 public:
  ConfigTokens(const json::object& config, AddedTokens& tokens)
      : config_(config), tokens_(tokens) {}

  Result<void> add() {
    read_names();
    RUDDER_TRY_VOID(add_by_id());
    for (AddedToken& token : named_) add_missing(std::move(token), true);
    for (AddedToken& token : listed_) add_missing(std::move(token), false);
    return {};
  }

 private:
  void read_names();
  Result<void> add_by_id();
  void add_missing(AddedToken token, bool is_named) {
    if (token.content.empty() || tokens_.find(token.content) != nullptr) return;
    token.special = token.special || is_named;
    tokens_.put(std::move(token));
  }
  void name(const json::value& node) {
    std::optional<AddedToken> token = token_of(node);
    if (!token) return;
    names_.insert(token->content);
    named_.push_back(std::move(*token));
  }

  const json::object& config_;
  AddedTokens& tokens_;
  std::vector<AddedToken> named_;
  std::vector<AddedToken> listed_;
  std::set<std::string, std::less<>> names_;  // of the former
};

void ConfigTokens::read_names() {
  for (const std::string_view key : kNames) {
    if (const json::value* node = config_.if_contains(key)) name(*node);
  }
  const json::value* more = config_.if_contains("extra_special_tokens");
  if (more == nullptr) more = config_.if_contains("additional_special_tokens");
  const auto name_own = [&](bool is_text) {
    for (const auto& [key, node] : config_) {
      const bool is_own = std::ranges::count(kNames, std::string_view(key)) == 0 &&
                          std::string_view(key).ends_with("_token");
      if (is_own && node.is_string() == is_text) name(node);
    }
  };
  name_own(false);
  name_own(true);
  if (more != nullptr && more->is_object()) {
    for (const auto& [key, node] : more->get_object()) name(node);
  }
  if (more != nullptr && more->is_array()) {
    for (const json::value& node : more->get_array()) {
      if (std::optional<AddedToken> token = token_of(node)) listed_.push_back(std::move(*token));
    }
  }
}

// Without the object, those of tokenizer.json stand for it: what has a name is special.
Result<void> ConfigTokens::add_by_id() {
  const json::value* node = config_.if_contains(kDecoder);
  if (node == nullptr) {
    for (AddedToken& token : tokens_.list()) {
      token.special = token.special || names_.contains(token.content);
    }
    return {};
  }
  const std::string path = fmt::format("tokenizer_config.json: {}", kDecoder);
  RUDDER_TRY(const auto* object, as_object(*node, path));
  std::map<int32_t, AddedToken> by_id;
  for (const auto& [key, value] : *object) {
    const std::string at = join_path(path, key);
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxTokenId) {
      return fail(ErrorCode::kCorruptFile, "must be the id of a token", at);
    }
    RUDDER_TRY(AddedToken token, read_token_flags(value, at));
    token.special = token.special || names_.contains(token.content);
    by_id[id] = std::move(token);
  }
  for (auto& [id, token] : by_id) {
    if (token.content.empty()) continue;
    if (const int32_t expected = tokens_.id_of(token.content); id != expected) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("\"{}\" is here, but the vocabulary gives it the id {}",
                              token.content, expected),
                  fmt::format("{}.{}", path, id));
    }
    tokens_.put(std::move(token));
  }
  return {};
}

}  // namespace

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = index_.find(std::string(content));
  return found == index_.end() ? nullptr : &list_[found->second];
}

int32_t AddedTokens::id_of(std::string_view content) const {
  if (const AddedToken* token = find(content)) return token->id;
  const int32_t known = model_.find(content);
  return known >= 0 ? known : next_id_;
}

void AddedTokens::put(AddedToken token) {
  token.id = id_of(token.content);
  const auto [entry, is_new] = index_.emplace(token.content, list_.size());
  if (is_new) {
    if (token.id == next_id_) ++next_id_;
    list_.push_back(std::move(token));
    return;
  }
  token.special = token.special || list_[entry->second].special;
  list_[entry->second] = std::move(token);
}

Result<AddedToken> read_token_flags(const json::value& node, const std::string& path) {
  AddedToken token;
  RUDDER_TRY(const auto* object, as_object(node, path));
  RUDDER_TRY(token.content, string_field(*object, "content", path));
  RUDDER_TRY(token.single_word, bool_field(*object, "single_word", false, path));
  RUDDER_TRY(token.lstrip, bool_field(*object, "lstrip", false, path));
  RUDDER_TRY(token.rstrip, bool_field(*object, "rstrip", false, path));
  RUDDER_TRY(token.special, bool_field(*object, "special", false, path));
  RUDDER_TRY(token.normalized, bool_field(*object, "normalized", !token.special, path));
  return token;
}

Result<void> add_config_tokens(const json::object& config, AddedTokens& tokens) {
  return ConfigTokens(config, tokens).add();
}

}  // namespace rudder::text
