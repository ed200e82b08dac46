#include "rudder/text/config_tokens.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "rudder/text/json_fields.h"
#include "rudder/text/side_files.h"
#include "rudder/text/token_table.h"

namespace rudder::text {
namespace {

namespace json = boost::json;

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

struct Named {
  AddedToken token;
  bool is_text = false;

  bool operator==(const Named& other) const {
    const auto marks = [](const Named& one) {
      const AddedToken& token = one.token;
      return std::tie(one.is_text, token.content, token.single_word, token.lstrip, token.rstrip,
                      token.normalized, token.special);
    };
    return marks(*this) == marks(other);
  }
};

class ConfigTokens {
 public:
  ConfigTokens(const json::object& config, const std::string& decoder_path, AddedTokens& tokens)
      : config_(config), decoder_path_(decoder_path), tokens_(tokens) {}

  Result<void> add() {
    read_names();
    RUDDER_TRY_VOID(add_by_id());
    std::vector<Named> missing;
    for (const std::vector<Named>* const list : {&named_, &listed_}) {
      for (const Named& one : *list) {
        if (one.token.content.empty() || tokens_.find(one.token.content) != nullptr) continue;
        if (std::ranges::find(missing, one) == missing.end()) missing.push_back(one);
      }
    }
    // Of one content that is there in several forms the last counts.
    for (Named& one : missing) {
      one.token.special = one.token.special || names_.contains(one.token.content);
      tokens_.put(std::move(one.token));
    }
    return {};
  }

 private:
  void read_names();
  Result<void> add_by_id();
  void name(const json::value& node) {
    std::optional<AddedToken> token = token_of(node);
    if (!token) return;
    names_.insert(token->content);
    named_.push_back({std::move(*token), node.is_string()});
  }

  const json::object& config_;
  const std::string& decoder_path_;
  AddedTokens& tokens_;
  std::vector<Named> named_;
  std::vector<Named> listed_;
  std::set<std::string, std::less<>> names_;  // of the former
};

void ConfigTokens::read_names() {
  for (const std::string_view key : kTokenNames) {
    if (const json::value* node = config_.if_contains(key)) name(*node);
  }
  const json::value* const more = config_.if_contains("extra_special_tokens");
  const json::value* const beside = config_.if_contains("additional_special_tokens");
  const auto name_own = [&](bool is_text) {
    for (const auto& [key, node] : config_) {
      const bool is_own = std::ranges::count(kTokenNames, std::string_view(key)) == 0 &&
                          std::string_view(key).ends_with("_token");
      if (is_own && node.is_string() == is_text) name(node);
    }
  };
  name_own(false);
  name_own(true);
  if (more != nullptr && more->is_object()) {
    for (const auto& [key, node] : more->get_object()) name(node);
  }
  for (const json::value* list : {more, beside}) {
    if (list == nullptr || !list->is_array()) continue;
    for (const json::value& node : list->get_array()) {
      if (std::optional<AddedToken> token = token_of(node))
        listed_.push_back({std::move(*token), node.is_string()});
    }
  }
}

// Without the object, those of tokenizer.json stand for it: what has a name is special.
Result<void> ConfigTokens::add_by_id() {
  const json::value* node = config_.if_contains(kTokensById);
  if (node == nullptr) {
    for (AddedToken& token : tokens_.list()) {
      token.special = token.special || names_.contains(token.content);
    }
    return {};
  }
  const std::string& path = decoder_path_;
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

Result<void> add_config_tokens(const json::object& config, const std::string& decoder_path,
                               AddedTokens& tokens) {
  return ConfigTokens(config, decoder_path, tokens).add();
}

}  // namespace rudder::text
