#include "rudder/steer/row_parts.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace rudder::steer {

int32_t PartRows::width(const PartList& parts, const tap::RowParts& whole) {
  return parts.empty() ? whole.width() : static_cast<int32_t>(parts.size()) * whole.dim;
}

Row PartRows::spread(const Row& row, bool is_whole, const PartList& parts,
                     const tap::RowParts& whole) {
  if (parts.empty()) return row;
  const auto [found, is_new] =
      made_.try_emplace({row.values().data(), parts, whole.count, whole.dim});
  if (!is_new) return found->second;
  auto buffer = std::make_shared<float[]>(static_cast<size_t>(whole.width()));
  for (size_t i = 0; i < parts.size(); ++i) {
    const int32_t to = parts[i] * whole.dim;
    const int32_t from = is_whole ? to : static_cast<int32_t>(i) * whole.dim;
    std::copy_n(row.values().data() + from, whole.dim, buffer.get() + to);
  }
  found->second = {std::move(buffer), 0, whole.width()};
  return found->second;
}

Row PartRows::mask(const PartList& parts, const tap::RowParts& whole) {
  if (parts.empty()) return {};
  const auto [found, is_new] = made_.try_emplace({nullptr, parts, whole.count, whole.dim});
  if (!is_new) return found->second;
  auto buffer = std::make_shared<float[]>(static_cast<size_t>(whole.width()));
  for (const int32_t part : parts) std::fill_n(buffer.get() + part * whole.dim, whole.dim, 1.0f);
  found->second = {std::move(buffer), 0, whole.width()};
  return found->second;
}

}  // namespace rudder::steer
