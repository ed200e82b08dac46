#include "rudder/constraint/token_order.h"

#include <set>

namespace rudder::constraint {

TokenOrder::TokenOrder(const Texts& sorted)
    : trie_(sorted), after_quotes_(texts_after_quotes(sorted)) {
  for (const auto& [bytes, id] : sorted) {
    if (bytes.empty()) continue;
    List& list = bytes.size() <= kShort ? short_ : long_;
    uint32_t common = 0;
    if (!list.tokens.empty()) {
      const std::string_view before = list.tokens.back().bytes;
      const auto [end, other] =
          std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end());
      common = static_cast<uint32_t>(end - before.begin());
    }
    list.tokens.push_back({.bytes = bytes, .id = id, .common = common});
    ++list.first[static_cast<unsigned char>(bytes[0]) + size_t{1}];
  }
  for (List* list : {&short_, &long_}) {
    for (size_t byte = 0; byte < 256; ++byte) list->first[byte + 1] += list->first[byte];
  }
}

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
