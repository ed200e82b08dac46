#include "rudder/constraint/rule_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/base/utf8.h"

namespace rudder::constraint {
namespace {

constexpr size_t kMaxEbnfBytes = size_t{4} << 20;

// What so much takes of the heap.
size_t heap_bytes(size_t bytes) {
  constexpr size_t kInside = 16;  // of a short string, which is in the node itself
  constexpr size_t kHeader = 16;
  return bytes <= kInside ? 0 : bytes + kHeader;
}

constexpr size_t kKnownBytes = 48;  // of a node, among those that are known

// Letters and digits as they are; everything else escaped, so that no context gives it a meaning.
void print_char(uint32_t c, std::string& out) {
  const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  if (plain) {
    out.push_back(static_cast<char>(c));
  } else if (c <= 0xFFFF) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
  } else {
    fmt::format_to(std::back_inserter(out), "\\U{:08x}", c);
  }
}

void print_set(const CharSet& set, std::string& out) {
  out.push_back('[');
  for (const CharRange& range : set.ranges()) {
    print_char(range.first, out);
    if (range.last > range.first) {
      out.push_back('-');
      print_char(range.last, out);
    }
  }
  out.push_back(']');
}

void print_literal(std::string_view text, std::string& out) {
  out.push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) {
      out.push_back(c);  // UTF-8 stays as it is
    } else {
      print_char(byte, out);
    }
  }
  out.push_back('"');
}

}  // namespace

RuleSet::RuleSet(Fuel& fuel) : fuel_(fuel) {
  nodes_.push_back({});
  nodes_.push_back({.kind = Kind::kNothing});
}

// The entry of the data's node, which may be nothing yet; null where other data have it.
RuleSet::Node* RuleSet::known(const Data& data) {
  size_t hash = static_cast<size_t>(data.kind);
  const auto add = [&](size_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15u ^ hash >> 29; };
  add(std::hash<std::string>()(data.text));
  for (const Node part : data.parts) add(static_cast<size_t>(part));
  for (const CharRange& range : data.set.ranges()) add(size_t{range.first} << 32 | range.last);
  const bool is_terminal = data.kind == Kind::kTerminal;  // which is its text
  if (!is_terminal) add(static_cast<size_t>(data.index));
  add(static_cast<size_t>(data.min));
  add(static_cast<size_t>(data.max));
  const auto [found, is_new] = known_.try_emplace(hash, kNothing);
  if (is_new || found->second == kNothing) return &found->second;
  const Data& other = nodes_[static_cast<size_t>(found->second)];
  const bool is_same = other.kind == data.kind && other.text == data.text &&
                       other.parts == data.parts && other.set == data.set &&
                       (is_terminal || other.index == data.index) && other.min == data.min &&
                       other.max == data.max;
  return is_same ? &found->second : nullptr;
}

RuleSet::Node RuleSet::push(Data data) {
  constexpr int64_t kWorkOfKnown = 32;  // looked up where nothing of it is in a cache
  Node* const entry = known(data);
  if (entry != nullptr && *entry != kNothing) {
    fuel_.burn(kWorkOfKnown + std::ssize(data.parts));
    return *entry;
  }
  const size_t bytes = sizeof(Data) + kKnownBytes + heap_bytes(data.text.capacity() + 1) +
                       heap_bytes(data.parts.capacity() * sizeof(Node)) +
                       heap_bytes(data.set.ranges().capacity() * sizeof(CharRange));
  if (fuel_.hold(static_cast<int64_t>(bytes)) && fuel_.burn(static_cast<int64_t>(bytes) / 8)) {
    if (entry != nullptr) *entry = static_cast<Node>(nodes_.size());
    nodes_.push_back(std::move(data));
  }
  return static_cast<Node>(nodes_.size()) - 1;
}

RuleSet::Node RuleSet::literal(std::string_view utf8) {
  if (utf8.empty()) return kEmpty;
  Data data = {.kind = Kind::kLiteral};
  data.text = utf8;
  return push(std::move(data));
}

RuleSet::Node RuleSet::chars(const CharSet& set) {
  if (set.empty()) return kNothing;
  const CharRange& range = set.ranges().front();
  if (set.ranges().size() == 1 && range.first == range.last) {
    std::string one;
    append_utf8(one, range.first);
    return literal(one);
  }
  Data data = {.kind = Kind::kChars};
  data.set = set;
  return push(std::move(data));
}

RuleSet::Node RuleSet::terminal(const Terminal& terminal) {
  if (terminal.set.empty() && terminal.pattern.empty()) {
    if (terminal.min > 0) return kNothing;
    return terminal.quoted ? literal("\"\"") : kEmpty;
  }
  Data data = {.kind = Kind::kTerminal};
  data.text = to_text(terminal);
  if (const Node* const entry = known(data); entry != nullptr && *entry != kNothing) return *entry;
  data.index = static_cast<int32_t>(terminals_.size());
  size_t bytes = 2 * (sizeof(Terminal) + terminal.pattern.size());
  for (const std::vector<std::string>* texts :
       {&terminal.excluded, &terminal.also, &terminal.never}) {
    for (const std::string& one : *texts) bytes += sizeof(std::string) + heap_bytes(one.size() + 1);
  }
  if (!fuel_.hold(static_cast<int64_t>(bytes))) return kNothing;
  terminals_.push_back(terminal);
  return push(std::move(data));
}

RuleSet::Node RuleSet::tokens(TokenSet tokens) {
  if (tokens.ids.empty() && !tokens.others) return kNothing;
  Data data = {.kind = Kind::kTokens};
  data.index = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(std::move(tokens));
  return push(std::move(data));
}

RuleSet::Node RuleSet::dispatch(Dispatch dispatch) {
  Data data = {.kind = Kind::kDispatch};
  data.index = static_cast<int32_t>(dispatches_.size());
  dispatches_.push_back(std::move(dispatch));
  return push(std::move(data));
}

RuleSet::Node RuleSet::sequence(const std::vector<Node>& parts) {
  Data data = {.kind = Kind::kSequence};
  for (const Node part : parts) {
    if (part == kNothing) return kNothing;
    if (part == kEmpty) continue;
    // Adjacent literals are one.
    if (!data.parts.empty()) {
      const Data& before = nodes_[static_cast<size_t>(data.parts.back())];
      const Data& now = nodes_[static_cast<size_t>(part)];
      if (before.kind == Kind::kLiteral && now.kind == Kind::kLiteral) {
        data.parts.back() = literal(before.text + now.text);
        continue;
      }
    }
    data.parts.push_back(part);
  }
  if (data.parts.empty()) return kEmpty;
  if (data.parts.size() == 1) return data.parts[0];
  return push(std::move(data));
}

RuleSet::Node RuleSet::choice(const std::vector<Node>& alternatives) {
  Data data = {.kind = Kind::kChoice};
  for (const Node part : alternatives) {
    if (part == kNothing) continue;
    data.parts.push_back(part);
  }
  std::sort(data.parts.begin(), data.parts.end());
  data.parts.erase(std::unique(data.parts.begin(), data.parts.end()), data.parts.end());
  if (data.parts.empty()) return kNothing;
  if (data.parts.size() == 1) return data.parts[0];
  return push(std::move(data));
}

RuleSet::Node RuleSet::repeat(Node part, int32_t min, int32_t max) {
  RUDDER_CHECK(min >= 0 && (max == kUnbounded || max >= min));
  if (max == 0 || part == kEmpty) return kEmpty;
  if (part == kNothing) return min == 0 ? kEmpty : kNothing;
  if (min == 1 && max == 1) return part;
  Data data = {.kind = Kind::kRepeat};
  data.parts = {part};
  data.min = min;
  data.max = max;
  return push(std::move(data));
}

int32_t RuleSet::add_rule() {
  rules_.push_back(kNothing);
  return static_cast<int32_t>(rules_.size()) - 1;
}

void RuleSet::define(int32_t rule, Node body) {
  rules_[static_cast<size_t>(rule)] = body;
}

RuleSet::Node RuleSet::rule(int32_t rule) {
  Data data = {.kind = Kind::kRule};
  data.index = rule;
  return push(std::move(data));
}

RuleSet::Node RuleSet::share(Node body) {
  if (body == kEmpty || body == kNothing) return body;
  const auto [known, is_new] = shared_.try_emplace(body, kNothing);
  if (!is_new) return known->second;
  const int32_t id = add_rule();
  define(id, body);
  known->second = rule(id);
  return known->second;
}

std::vector<bool> RuleSet::productive() const {
  // Each node waits for some of its parts; the last of them that becomes productive makes it so.
  const size_t size = nodes_.size();
  std::vector<bool> productive(size, false);
  std::vector<uint32_t> missing(size, 0);
  struct User {
    Node node = 0;
    int32_t next = -1;  // that waits for the same part
  };
  std::vector<User> users;
  std::vector<int32_t> first_user(size, -1);
  std::vector<Node> open;
  const auto settle = [&](size_t node) {
    if (productive[node]) return;
    productive[node] = true;
    open.push_back(static_cast<Node>(node));
  };
  for (size_t i = 0; i < size; ++i) {
    const Data& data = nodes_[i];
    const auto wait_for = [&](Node part) {
      int32_t& first = first_user[static_cast<size_t>(part)];
      users.push_back({.node = static_cast<Node>(i), .next = first});
      first = static_cast<int32_t>(users.size()) - 1;
    };
    missing[i] = 1;
    switch (data.kind) {
      case Kind::kNothing:
        break;
      case Kind::kSequence:
        missing[i] = static_cast<uint32_t>(data.parts.size());
        [[fallthrough]];
      case Kind::kChoice:
        for (const Node part : data.parts) wait_for(part);
        break;
      case Kind::kRepeat:
        if (data.min == 0) {
          settle(i);
        } else {
          wait_for(data.parts[0]);
        }
        break;
      case Kind::kRule:
        wait_for(rules_[static_cast<size_t>(data.index)]);
        break;
      default:  // kDispatch: the text without any of its cases
        settle(i);
    }
  }
  constexpr int64_t kWorkOfUser = 8;
  const auto num_users = static_cast<int64_t>(users.size());
  const Held held(fuel_, num_users * 16 + static_cast<int64_t>(size) * 16);
  if (!fuel_.burn(num_users * kWorkOfUser + static_cast<int64_t>(size))) return productive;
  while (!open.empty()) {
    const Node node = open.back();
    open.pop_back();
    for (int32_t at = first_user[static_cast<size_t>(node)]; at >= 0;) {
      const User& user = users[static_cast<size_t>(at)];
      at = user.next;
      const auto waiting = static_cast<size_t>(user.node);
      if (missing[waiting] > 0 && --missing[waiting] == 0) settle(waiting);
    }
  }
  return productive;
}

void RuleSet::print(Node node, const std::vector<bool>& productive, std::string& out) const {
  if (out.size() > kMaxEbnfBytes) return;
  const Data& data = nodes_[static_cast<size_t>(node)];
  switch (data.kind) {
    case Kind::kEmpty:
    case Kind::kNothing:
      out += "\"\"";
      break;
    case Kind::kLiteral:
      print_literal(data.text, out);
      break;
    case Kind::kChars:
      print_set(data.set, out);
      break;
    case Kind::kTerminal:
      out += data.text;
      break;
    case Kind::kSequence:
      for (size_t i = 0; i < data.parts.size(); ++i) {
        if (i > 0) out.push_back(' ');
        print(data.parts[i], productive, out);
      }
      break;
    case Kind::kChoice: {
      out.push_back('(');
      const char* separator = "";
      for (const Node part : data.parts) {
        if (!productive[static_cast<size_t>(part)]) continue;
        out += separator;
        print(part, productive, out);
        separator = " | ";
      }
      out.push_back(')');
      break;
    }
    case Kind::kTokens: {
      const TokenSet& set = tokens_[static_cast<size_t>(data.index)];
      fmt::format_to(std::back_inserter(out), "{}({})", set.others ? "ExcludeToken" : "Token",
                     fmt::join(set.ids, ", "));
      break;
    }
    case Kind::kDispatch:
      out += "\"\"";  // structural tags are not printed
      break;
    case Kind::kRepeat:
      if (!productive[static_cast<size_t>(data.parts[0])]) {
        out += "\"\"";
        break;
      }
      out.push_back('(');
      print(data.parts[0], productive, out);
      if (data.max == kUnbounded) {
        fmt::format_to(std::back_inserter(out), "){{{},}}", data.min);
      } else {
        fmt::format_to(std::back_inserter(out), "){{{},{}}}", data.min, data.max);
      }
      break;
    case Kind::kRule:
      fmt::format_to(std::back_inserter(out), "r{}", data.index);
      break;
  }
}

tl::unexpected<Error> RuleSet::nothing_valid() const {
  if (!narrowed_) {
    return fail(ErrorCode::kInvalidArgument, "can never be satisfied: no output is valid");
  }
  return tl::unexpected(*narrowed_);
}

Result<std::string> RuleSet::to_ebnf(Node start) const {
  if (fuel_.out()) return tl::unexpected(fuel_.error());
  const std::vector<bool> productive = this->productive();
  if (!productive[static_cast<size_t>(start)]) return nothing_valid();
  std::string out = "root ::= ";
  print(start, productive, out);
  out.push_back('\n');
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (!productive[static_cast<size_t>(rules_[i])]) continue;
    fmt::format_to(std::back_inserter(out), "r{} ::= ", i);
    print(rules_[i], productive, out);
    out.push_back('\n');
    if (out.size() > kMaxEbnfBytes) {
      return fail(ErrorCode::kInvalidArgument, "is too complex");
    }
  }
  return out;
}

}  // namespace rudder::constraint
