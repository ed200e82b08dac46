#include "rudder/steer/capture/kept_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rudder::steer::capture {

std::optional<Row> KeptRun::row(tap::Point point, int32_t position) const {
  const auto at = std::ranges::lower_bound(positions, position);
  if (at == positions.end() || *at != position) return std::nullopt;
  const auto& record = records[static_cast<size_t>(at - positions.begin())];
  int64_t begin = 0;
  for (size_t i = 0; i < points.size(); ++i) {  // before its ops comes first
    if (points[i].point == point) return Row{record, begin, widths[i]};
    begin += widths[i];
  }
  return std::nullopt;
}

bool KeptRun::has(tap::Point point) const {
  return std::ranges::any_of(points, [&](const auto& kept) { return kept.point == point; });
}

int64_t KeptRun::bytes() const {
  const int64_t floats = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  return floats * std::ssize(positions) * int64_t{sizeof(float)};
}

bool KeptRows::reserve(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  while (bytes_ + bytes > max_bytes_ && !order_.empty()) drop_locked(Key(order_.front()));
  if (bytes_ + bytes > max_bytes_) return false;
  bytes_ += bytes;
  return true;
}

void KeptRows::give_back(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ -= bytes;
}

void KeptRows::keep(int32_t tenant, std::string request, int32_t choice, KeptRun run) {
  const std::lock_guard lock(mutex_);
  Key key(tenant, std::move(request), choice);
  drop_locked(key);
  order_.push_back(key);
  runs_.emplace(std::move(key), std::make_shared<const KeptRun>(std::move(run)));
}

void KeptRows::drop_locked(const Key& key) {
  const auto found = runs_.find(key);
  if (found == runs_.end()) return;
  bytes_ -= found->second->bytes();
  order_.erase(std::ranges::find(order_, key));
  runs_.erase(found);
}

std::shared_ptr<const KeptRun> KeptRows::find(int32_t tenant, std::string_view request,
                                              int32_t choice) const {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(Key(tenant, std::string(request), choice));
  return found == runs_.end() ? nullptr : found->second;
}

}  // namespace rudder::steer::capture
