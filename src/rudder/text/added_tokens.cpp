#include "rudder/text/added_tokens.h"

#include <algorithm>

#include "rudder/base/utf8.h"
#include "rudder/text/unicode.h"

namespace rudder::text {
namespace {

size_t skip_spaces_left(std::string_view text, size_t pos) {
  while (pos > 0) {
    size_t previous = pos;
    if ((char_flags()[previous_char(text, previous)] & kSpace) == 0) break;
    pos = previous;
  }
  return pos;
}

size_t skip_spaces_right(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t next = pos;
    if ((char_flags()[next_char(text, next)] & kSpace) == 0) break;
    pos = next;
  }
  return pos;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word_char(previous_char(text, begin))) return false;
  return end == text.size() || !is_word_char(next_char(text, end));
}

}  // namespace

void TokenSearch::add(const AddedToken& token) {
  int32_t node = 0;
  for (const char c : token.pattern) {
    const auto byte = static_cast<uint8_t>(c);
    const auto& edges = nodes_[node].edges;
    const auto edge =
        std::find_if(edges.begin(), edges.end(), [byte](const auto& e) { return e.first == byte; });
    if (edge != edges.end()) {
      node = edge->second;
    } else {
      const auto next = static_cast<int32_t>(nodes_.size());
      nodes_[node].edges.emplace_back(byte, next);
      nodes_.emplace_back();
      node = next;
    }
  }
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  starts_[static_cast<uint8_t>(token.pattern[0])] = true;
  tokens_.push_back(token);
}

int32_t TokenSearch::longest_at(std::string_view text, size_t pos) const {
  int32_t found = -1;
  const Node* node = &nodes_[0];
  for (; pos < text.size(); ++pos) {
    const auto byte = static_cast<uint8_t>(text[pos]);
    const auto edge = std::find_if(node->edges.begin(), node->edges.end(),
                                   [byte](const auto& e) { return e.first == byte; });
    if (edge == node->edges.end()) break;
    node = &nodes_[edge->second];
    if (node->token >= 0) found = node->token;
  }
  return found;
}

void TokenSearch::split(std::string_view text, bool parse_special,
                        std::vector<Segment>& out) const {
  size_t done = 0;
  if (!empty()) {
    for (size_t pos = 0; pos < text.size();) {
      const int32_t found = starts_[static_cast<uint8_t>(text[pos])] ? longest_at(text, pos) : -1;
      if (found < 0) {
        ++pos;
        continue;
      }
      const AddedToken& token = tokens_[found];
      size_t begin = pos, end = pos + token.pattern.size();
      pos = end;  // a match that is refused below is passed over whole
      if (token.special && !parse_special) continue;
      if (token.single_word && !stands_alone(text, begin, end)) continue;
      if (token.lstrip) begin = std::max(skip_spaces_left(text, begin), done);
      if (token.rstrip) end = skip_spaces_right(text, end);
      if (done < begin) out.push_back({done, begin, -1});
      out.push_back({begin, end, token.id});
      done = end;
    }
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
}

}  // namespace rudder::text
