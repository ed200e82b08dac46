#include "rudder/constraint/token_order.h"

#include <set>

namespace rudder::constraint {
namespace {

TokenOrder::Texts texts_of_length(const TokenOrder::Texts& sorted, size_t min, size_t max) {
  TokenOrder::Texts texts;
  for (const auto& one : sorted) {
    if (one.first.size() >= min && one.first.size() <= max) texts.push_back(one);
  }
  return texts;
}

}  // namespace

TokenOrder::TokenOrder(const Texts& sorted)
    : trie_(sorted),
      short_(texts_of_length(sorted, 0, kShort)),
      long_(texts_of_length(sorted, kShort + 1, SIZE_MAX)),
      after_quotes_(texts_after_quotes(sorted)) {}

TokenOrder::Texts TokenOrder::texts_after_quotes(const Texts& sorted) {
  std::set<std::string_view> after = {""};
  for (const auto& [bytes, id] : sorted) {
    for (size_t at = 0; (at = bytes.find('"', at)) != std::string_view::npos;) {
      after.insert(bytes.substr(++at));
    }
  }
  Texts texts;
  for (const std::string_view bytes : after) {
    const auto id = static_cast<int32_t>(texts.size());
    after_index_.emplace(bytes, id);
    texts.emplace_back(bytes, id);
  }
  return texts;
}

}  // namespace rudder::constraint
