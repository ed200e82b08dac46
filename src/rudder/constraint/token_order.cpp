#include "rudder/constraint/token_order.h"

#include <set>

namespace rudder::constraint {
namespace {

void add(std::vector<OrderedToken>& list, std::string_view bytes, int32_t id) {
  const uint32_t common = list.empty() ? 0 : bytes_in_common(list.back().bytes, bytes);
  list.push_back({.bytes = bytes, .id = id, .common = common});
}

}  // namespace

TokenOrder::TokenOrder(const std::vector<std::pair<int32_t, std::string>>& sorted) {
  std::set<std::string_view> after = {""};
  for (const auto& [id, bytes] : sorted) {
    if (bytes.empty()) continue;
    List& list = bytes.size() <= kShort ? short_ : long_;
    add(list.tokens, bytes, id);
    ++list.first[static_cast<unsigned char>(bytes[0]) + size_t{1}];
    if (bytes.find('"', 1) != std::string::npos) add(quoting_, bytes, id);
    for (size_t at = 0; (at = bytes.find('"', at)) != std::string::npos;) {
      after.insert(std::string_view(bytes).substr(++at));
    }
  }
  for (List* list : {&short_, &long_}) {
    for (size_t byte = 0; byte < 256; ++byte) list->first[byte + 1] += list->first[byte];
  }
  for (const std::string_view bytes : after) {
    const auto id = static_cast<int32_t>(after_quotes_.size());
    after_index_.emplace(bytes, id);
    add(after_quotes_, bytes, id);
  }
}

}  // namespace rudder::constraint
