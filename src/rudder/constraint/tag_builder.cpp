#include "rudder/constraint/tag_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/exact_json.h"
#include "rudder/constraint/ebnf_parser.h"
#include "rudder/constraint/json_schema.h"
#include "rudder/constraint/pattern.h"
#include "rudder/constraint/structural_tag.h"

namespace rudder::constraint {

namespace json = boost::json;

namespace {

using Node = RuleSet::Node;

// What the tag around a format ends with: free text in it stops there.
struct Ends {
  std::vector<std::string> texts;
  std::vector<int32_t> tokens;
};

class TagBuilder {
 public:
  TagBuilder(RuleSet& rules, JsonSpace space) : rules_(rules), space_(space) {}

  Result<Node> format(const json::value& value, const Ends& ends, const std::string& path);

 private:
  // begin, content and end.
  struct Tag {
    std::string begin_text;
    int32_t begin_token = -1;  // in place of a text
    Node content = 0;          // and the end
  };

  Result<Node> combined(std::string_view type, const json::object& object, const Ends& ends,
                        const std::string& path);
  Result<Node> text(const json::object& object, const Ends& ends, const std::string& path);
  Result<Node> tokens(std::string_view type, const json::object& object, const Ends& ends,
                      const std::string& path);
  Result<Node> dispatch(const json::object& object, const std::string& path);
  Result<Node> triggered(const json::object& object, const Ends& ends, const std::string& path);
  Result<Node> token_triggered(const json::object& object, const Ends& ends,
                               const std::string& path);
  Result<Node> token_dispatch(const json::object& object, const std::string& path);
  Result<Node> separated(const json::object& object, const Ends& ends, const std::string& path);
  Result<Tag> tag(const json::value& value, const std::string& path);
  Result<std::vector<Tag>> tags(const json::object& object, const std::string& path);
  Node begin_of(const Tag& tag) {
    return tag.begin_token >= 0 ? rules_.tokens({.ids = {tag.begin_token}, .others = false})
                                : rules_.literal(tag.begin_text);
  }
  Node whole(const Tag& tag) { return rules_.sequence({begin_of(tag), tag.content}); }
  // Any of the tags, once; then more of `after`, as the two flags say.
  Node tags_and(const std::vector<Tag>& tags, const json::object& object, Node after);
  Node free_tokens(std::vector<int32_t> excluded);

  Result<const json::value*> member(const json::object& object, const char* name,
                                    const std::string& path) const;
  Result<std::string> string(const json::value& value, const std::string& path) const;
  Result<std::vector<std::string>> strings(const json::object& object, const char* name,
                                           const std::string& path) const;
  Result<int32_t> token(const json::value& value, const std::string& path) const;
  Result<std::vector<int32_t>> token_list(const json::object& object, const char* name,
                                          const std::string& path) const;
  Result<int32_t> count(const json::object& object, const char* name,
                        const std::string& path) const;
  static bool flag(const json::object& object, const char* name, bool otherwise) {
    const json::value* value = object.if_contains(name);
    return value != nullptr && value->is_bool() ? value->get_bool() : otherwise;
  }
  tl::unexpected<Error> bad(std::string message, std::string where) const {
    return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(where));
  }

  RuleSet& rules_;
  const JsonSpace space_;
};

Result<const json::value*> TagBuilder::member(const json::object& object, const char* name,
                                              const std::string& path) const {
  const json::value* value = object.if_contains(name);
  if (value == nullptr) return bad(fmt::format("needs '{}'", name), path);
  return value;
}

Result<std::string> TagBuilder::string(const json::value& value, const std::string& path) const {
  if (!is_string(value)) return bad("must be a string", path);
  return std::string(value.get_string());
}

Result<std::vector<std::string>> TagBuilder::strings(const json::object& object, const char* name,
                                                     const std::string& path) const {
  std::vector<std::string> out;
  const json::value* value = object.if_contains(name);
  if (value == nullptr || value->is_null()) return out;
  const std::string where = path + "." + name;
  if (!value->is_array()) return bad("must be a list of strings", where);
  for (const json::value& one : value->get_array()) {
    RUDDER_TRY(std::string text, string(one, where));
    if (text.empty()) return bad("has a string that is empty", where);
    out.push_back(std::move(text));
  }
  return out;
}

Result<int32_t> TagBuilder::token(const json::value& value, const std::string& path) const {
  if (is_string(value)) {
    return fail(ErrorCode::kUnsupported, "tokens are named by their ids here", path);
  }
  const int64_t* id = value.if_int64();
  if (id == nullptr || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
    return bad("must be a token's id", path);
  }
  return static_cast<int32_t>(*id);
}

Result<std::vector<int32_t>> TagBuilder::token_list(const json::object& object, const char* name,
                                                    const std::string& path) const {
  std::vector<int32_t> out;
  const json::value* value = object.if_contains(name);
  if (value == nullptr || value->is_null()) return out;
  const std::string where = path + "." + name;
  if (!value->is_array()) return bad("must be a list of tokens' ids", where);
  for (const json::value& one : value->get_array()) {
    RUDDER_TRY(const int32_t id, token(one, where));
    out.push_back(id);
  }
  return out;
}

Result<int32_t> TagBuilder::count(const json::object& object, const char* name,
                                  const std::string& path) const {
  RUDDER_TRY(const json::value* value, member(object, name, path));
  constexpr int64_t kMax = 1'000'000;
  const int64_t* number = value->if_int64();
  if (number == nullptr || *number < -1 || *number > kMax) {
    return bad("must be a whole number from -1 to 1000000", path + "." + name);
  }
  return static_cast<int32_t>(*number);
}

Result<Node> TagBuilder::format(const json::value& value, const Ends& ends,
                                const std::string& path) {
  if (rules_.fuel().out()) return tl::unexpected(rules_.fuel().error());
  const json::object* object = value.if_object();
  if (object == nullptr) return bad("must be an object", path);
  const json::value* named = object->if_contains("type");
  if (named == nullptr || !is_string(*named)) return bad("needs a 'type'", path);
  const std::string_view type = named->get_string();
  if (object->contains("style") || type == "qwen_xml_parameter") {
    return fail(ErrorCode::kUnsupported, "schemas of other notations than JSON are not supported",
                path);
  }
  if (const json::value* budget = object->if_contains("max_tokens");
      budget != nullptr && !budget->is_null()) {
    return fail(ErrorCode::kUnsupported, "budgets of tokens are not supported",
                path + ".max_tokens");
  }
  const auto inside = [&](Result<Node> node, const char* name) -> Result<Node> {
    if (!node) node.error().where = path + "." + name + node.error().where;
    return node;
  };
  if (type == "const_string") {
    RUDDER_TRY(const json::value* text, member(*object, "value", path));
    RUDDER_TRY(const std::string constant, string(*text, path + ".value"));
    return rules_.literal(constant);
  }
  if (type == "json_schema") {
    RUDDER_TRY(const json::value* schema, member(*object, "json_schema", path));
    if (flag(*object, "any_order", false)) {
      return fail(ErrorCode::kUnsupported, "is not supported", path + ".any_order");
    }
    return inside(build_json_schema(rules_, to_json_text(*schema), space_), "json_schema");
  }
  if (type == "grammar") {
    RUDDER_TRY(const json::value* text, member(*object, "grammar", path));
    RUDDER_TRY(const std::string grammar, string(*text, path + ".grammar"));
    return inside(build_ebnf(rules_, grammar), "grammar");
  }
  if (type == "regex") {
    RUDDER_TRY(const json::value* text, member(*object, "pattern", path));
    RUDDER_TRY(const std::string pattern, string(*text, path + ".pattern"));
    return inside(build_pattern(rules_, pattern, PatternUse::kWholeText), "pattern");
  }
  if (type == "any_text") return text(*object, ends, path);
  if (type == "token" || type == "exclude_token" || type == "any_tokens") {
    return tokens(type, *object, ends, path);
  }
  if (type == "tag") {
    RUDDER_TRY(const Tag one, tag(value, path));
    return whole(one);
  }
  if (type == "triggered_tags") return triggered(*object, ends, path);
  if (type == "token_triggered_tags") return token_triggered(*object, ends, path);
  if (type == "tags_with_separator") return separated(*object, ends, path);
  if (type == "dispatch") return dispatch(*object, path);
  if (type == "token_dispatch") return token_dispatch(*object, path);
  return combined(type, *object, ends, path);
}

Result<Node> TagBuilder::combined(std::string_view type, const json::object& object,
                                  const Ends& ends, const std::string& path) {
  if (type == "sequence" || type == "or") {
    RUDDER_TRY(const json::value* elements, member(object, "elements", path));
    const json::array* list = elements->if_array();
    if (list == nullptr || list->empty()) {
      return bad("must be a list that is not empty", path + ".elements");
    }
    std::vector<Node> nodes;
    for (size_t i = 0; i < list->size(); ++i) {
      RUDDER_TRY(const Node node,
                 format((*list)[i], ends, fmt::format("{}.elements[{}]", path, i)));
      nodes.push_back(node);
    }
    return type == "or" ? rules_.choice(nodes) : rules_.sequence(nodes);
  }
  if (type != "optional" && type != "star" && type != "plus" && type != "repeat") {
    return bad(fmt::format("'{}' is no format that is known", type.substr(0, 64)), path + ".type");
  }
  RUDDER_TRY(const json::value* content, member(object, "content", path));
  RUDDER_TRY(const Node node, format(*content, ends, path + ".content"));
  if (type == "optional") return rules_.optional(node);
  if (type == "star") return rules_.repeat(node, 0, RuleSet::kUnbounded);
  if (type == "plus") return rules_.repeat(node, 1, RuleSet::kUnbounded);
  RUDDER_TRY(const int32_t min, count(object, "min", path));
  RUDDER_TRY(const int32_t max, count(object, "max", path));
  if (min < 0 || (max >= 0 && max < min)) return bad("are the wrong way round", path + ".min");
  return rules_.repeat(node, min, max);
}

Result<Node> TagBuilder::text(const json::object& object, const Ends& ends,
                              const std::string& path) {
  RUDDER_TRY(std::vector<std::string> excluded, strings(object, "excludes", path));
  excluded.insert(excluded.end(), ends.texts.begin(), ends.texts.end());
  const json::value* most = object.if_contains("max_chars");
  if (most != nullptr && !most->is_null()) {
    RUDDER_TRY(const int32_t max, count(object, "max_chars", path));
    if (max < 0 || !excluded.empty()) {
      return fail(ErrorCode::kUnsupported, "is not supported beside an end or excludes",
                  path + ".max_chars");
    }
    return rules_.repeat(rules_.chars(CharSet::all()), 0, max);
  }
  if (!excluded.empty()) return rules_.dispatch({.cases = {}, .excluded = std::move(excluded)});
  // As a terminal, so that all forms share its masks.
  Terminal any;
  any.set = CharSet::all();
  any.quoted = false;
  any.min = 1;
  return rules_.optional(rules_.terminal(any));
}

Node TagBuilder::free_tokens(std::vector<int32_t> excluded) {
  std::sort(excluded.begin(), excluded.end());
  return rules_.repeat(rules_.tokens({.ids = std::move(excluded), .others = true}), 0,
                       RuleSet::kUnbounded);
}

Result<Node> TagBuilder::tokens(std::string_view type, const json::object& object, const Ends& ends,
                                const std::string& path) {
  if (type == "token") {
    RUDDER_TRY(const json::value* value, member(object, "token", path));
    RUDDER_TRY(const int32_t id, token(*value, path + ".token"));
    return rules_.tokens({.ids = {id}, .others = false});
  }
  RUDDER_TRY(std::vector<int32_t> excluded, token_list(object, "exclude_tokens", path));
  excluded.insert(excluded.end(), ends.tokens.begin(), ends.tokens.end());
  if (type == "any_tokens") return free_tokens(std::move(excluded));
  std::sort(excluded.begin(), excluded.end());
  return rules_.tokens({.ids = std::move(excluded), .others = true});
}

Result<TagBuilder::Tag> TagBuilder::tag(const json::value& value, const std::string& path) {
  const json::object* object = value.if_object();
  if (object == nullptr) return bad("must be an object", path);
  Tag out;
  RUDDER_TRY(const json::value* begin, member(*object, "begin", path));
  if (const json::object* named = begin->if_object()) {
    RUDDER_TRY(const json::value* id, member(*named, "token", path + ".begin"));
    RUDDER_TRY(out.begin_token, token(*id, path + ".begin.token"));
  } else {
    RUDDER_TRY(out.begin_text, string(*begin, path + ".begin"));
  }
  Ends ends;
  std::vector<Node> closing;
  RUDDER_TRY(const json::value* end, member(*object, "end", path));
  if (const json::object* named = end->if_object()) {
    RUDDER_TRY(const json::value* id, member(*named, "token", path + ".end"));
    RUDDER_TRY(const int32_t at, token(*id, path + ".end.token"));
    ends.tokens.push_back(at);
    closing.push_back(rules_.tokens({.ids = {at}, .others = false}));
  } else {
    const json::array list = end->is_array() ? end->get_array() : json::array({*end});
    if (list.empty()) return bad("must not be empty", path + ".end");
    for (const json::value& one : list) {
      RUDDER_TRY(std::string text, string(one, path + ".end"));
      closing.push_back(rules_.literal(text));
      if (!text.empty()) ends.texts.push_back(std::move(text));
    }
  }
  RUDDER_TRY(const json::value* content, member(*object, "content", path));
  RUDDER_TRY(const Node node, format(*content, ends, path + ".content"));
  out.content = rules_.share(rules_.sequence({node, rules_.choice(closing)}));
  return out;
}

Result<std::vector<TagBuilder::Tag>> TagBuilder::tags(const json::object& object,
                                                      const std::string& path) {
  RUDDER_TRY(const json::value* value, member(object, "tags", path));
  const json::array* list = value->if_array();
  if (list == nullptr || list->empty()) {
    return bad("must be a list that is not empty", path + ".tags");
  }
  std::vector<Tag> out;
  for (size_t i = 0; i < list->size(); ++i) {
    RUDDER_TRY(Tag one, tag((*list)[i], fmt::format("{}.tags[{}]", path, i)));
    out.push_back(std::move(one));
  }
  return out;
}

Node TagBuilder::tags_and(const std::vector<Tag>& tags, const json::object& object, Node after) {
  if (!flag(object, "at_least_one", false)) return after;
  std::vector<Node> ways;
  ways.reserve(tags.size());
  for (const Tag& one : tags) ways.push_back(whole(one));
  const Node first = rules_.choice(ways);
  return flag(object, "stop_after_first", false) ? first : rules_.sequence({first, after});
}

Result<Node> TagBuilder::triggered(const json::object& object, const Ends& ends,
                                   const std::string& path) {
  RUDDER_TRY(const std::vector<std::string> triggers, strings(object, "triggers", path));
  RUDDER_TRY(const std::vector<Tag> all, tags(object, path));
  Dispatch dispatch = {.cases = {}, .excluded = ends.texts};
  RUDDER_TRY(const std::vector<std::string> excluded, strings(object, "excludes", path));
  dispatch.excluded.insert(dispatch.excluded.end(), excluded.begin(), excluded.end());
  dispatch.loop = !flag(object, "stop_after_first", false);
  std::vector<int> uses(all.size());
  for (const std::string& trigger : triggers) {
    std::vector<Node> ways;
    if (!rules_.fuel().burn(std::ssize(all))) return tl::unexpected(rules_.fuel().error());
    for (size_t i = 0; i < all.size(); ++i) {
      const bool has_text = all[i].begin_token < 0;
      if (!has_text || !all[i].begin_text.starts_with(trigger)) continue;
      ++uses[i];
      ways.push_back(rules_.sequence(
          {rules_.literal(all[i].begin_text.substr(trigger.size())), all[i].content}));
    }
    dispatch.cases.push_back({.text = trigger, .node = rules_.choice(ways)});
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (uses[i] == 1) continue;
    return bad("must begin with exactly one of the triggers",
               fmt::format("{}.tags[{}].begin", path, i));
  }
  return tags_and(all, object, rules_.dispatch(std::move(dispatch)));
}

// Free tokens, with `cases` among them: a token, and what follows it.
Result<Node> TagBuilder::token_triggered(const json::object& object, const Ends& ends,
                                         const std::string& path) {
  RUDDER_TRY(std::vector<int32_t> triggers, token_list(object, "trigger_tokens", path));
  RUDDER_TRY(const std::vector<Tag> all, tags(object, path));
  RUDDER_TRY(std::vector<int32_t> excluded, token_list(object, "exclude_tokens", path));
  std::vector<Node> ways;
  if (!rules_.fuel().burn(std::ssize(all) * std::ssize(triggers))) {
    return tl::unexpected(rules_.fuel().error());
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::count(triggers.begin(), triggers.end(), all[i].begin_token) != 1) {
      return bad("must begin with exactly one of the trigger tokens",
                 fmt::format("{}.tags[{}].begin", path, i));
    }
    ways.push_back(whole(all[i]));
  }
  excluded.insert(excluded.end(), triggers.begin(), triggers.end());
  excluded.insert(excluded.end(), ends.tokens.begin(), ends.tokens.end());
  const Node words = free_tokens(std::move(excluded));
  const Node one = rules_.sequence({rules_.choice(ways), words});
  const bool loop = !flag(object, "stop_after_first", false);
  const Node more =
      loop ? rules_.repeat(one, 0, RuleSet::kUnbounded) : rules_.optional(rules_.choice(ways));
  return tags_and(all, object, rules_.sequence({words, more}));
}

Result<Node> TagBuilder::separated(const json::object& object, const Ends&,
                                   const std::string& path) {
  RUDDER_TRY(const std::vector<Tag> all, tags(object, path));
  RUDDER_TRY(const json::value* value, member(object, "separator", path));
  RUDDER_TRY(const std::string separator, string(*value, path + ".separator"));
  std::vector<Node> ways;
  ways.reserve(all.size());
  for (const Tag& one : all) ways.push_back(whole(one));
  Node list = rules_.share(rules_.choice(ways));
  if (!flag(object, "stop_after_first", false)) {
    const Node more = rules_.sequence({rules_.literal(separator), list});
    list = rules_.sequence({list, rules_.repeat(more, 0, RuleSet::kUnbounded)});
  }
  return flag(object, "at_least_one", false) ? list : rules_.optional(list);
}

// [[text or token, format], ...]
Result<Node> TagBuilder::dispatch(const json::object& object, const std::string& path) {
  RUDDER_TRY(const json::value* rules, member(object, "rules", path));
  Dispatch out;
  RUDDER_TRY(out.excluded, strings(object, "excludes", path));
  out.loop = flag(object, "loop", true);
  const json::array* list = rules->if_array();
  if (list == nullptr) return bad("must be a list", path + ".rules");
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}.rules[{}]", path, i);
    const json::array* pair = (*list)[i].if_array();
    if (pair == nullptr || pair->size() != 2) return bad("must be a string and a format", where);
    RUDDER_TRY(std::string text, string((*pair)[0], where));
    if (text.empty()) return bad("must not be an empty string", where);
    RUDDER_TRY(const Node node, format((*pair)[1], {}, where + "[1]"));
    out.cases.push_back({.text = std::move(text), .node = node});
  }
  return rules_.dispatch(std::move(out));
}

Result<Node> TagBuilder::token_dispatch(const json::object& object, const std::string& path) {
  RUDDER_TRY(const json::value* rules, member(object, "rules", path));
  RUDDER_TRY(std::vector<int32_t> excluded, token_list(object, "exclude_tokens", path));
  const json::array* list = rules->if_array();
  if (list == nullptr) return bad("must be a list", path + ".rules");
  std::vector<Node> ways;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}.rules[{}]", path, i);
    const json::array* pair = (*list)[i].if_array();
    if (pair == nullptr || pair->size() != 2) return bad("must be a token and a format", where);
    RUDDER_TRY(const int32_t id, token((*pair)[0], where));
    RUDDER_TRY(const Node node, format((*pair)[1], {}, where + "[1]"));
    ways.push_back(rules_.sequence({rules_.tokens({.ids = {id}, .others = false}), node}));
    excluded.push_back(id);
  }
  const Node words = free_tokens(std::move(excluded));
  const Node one = rules_.choice(ways);
  const Node more = flag(object, "loop", true)
                        ? rules_.repeat(rules_.sequence({one, words}), 0, RuleSet::kUnbounded)
                        : rules_.optional(one);
  return rules_.sequence({words, more});
}

}  // namespace

Result<Node> build_structural_tag(RuleSet& rules, std::string_view text, JsonSpace space) {
  RUDDER_TRY(const json::value value,
             parse_json_exactly(text, "the structural tag", {.max_depth = kMaxTagDepth}));
  const bool is_older = is_of_structures(value);
  RUDDER_TRY(const json::value tag, with_format(value));
  Result<Node> node = TagBuilder(rules, space).format(tag.at("format"), {}, ".format");
  if (!node && is_older) node.error().where = path_in_structures(node.error().where);
  return node;
}

}  // namespace rudder::constraint
