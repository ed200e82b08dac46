#include "rudder/engine/adapter_rows.h"

#include <iterator>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::engine {

// Reuses the unused row that was used longest ago.
int32_t AdapterRows::lease(const std::shared_ptr<const lora::Adapter>& adapter) {
  Row* row = nullptr;
  for (Row& candidate : rows_) {
    if (candidate.adapter != nullptr && candidate.adapter->key == adapter->key) {
      row = &candidate;
      break;
    }
    const bool is_older = row == nullptr || candidate.last_use < row->last_use;
    if (candidate.users == 0 && is_older) row = &candidate;
  }
  if (row == nullptr) return lora::kNoRow;
  const auto number = static_cast<int32_t>(row - rows_.data());
  if (row->adapter == nullptr || row->adapter->key != adapter->key) {
    row->adapter = adapter;
    edits_.push_back({.adapter_row = number, .adapter = adapter});
  }
  ++row->users;
  ++num_leases_;
  return number;
}

void AdapterRows::release(int32_t number) {
  Row& row = rows_[static_cast<size_t>(number)];
  RUDDER_CHECK(row.users > 0, "adapter row {} is released twice", number);
  --row.users;
  row.last_use = ++clock_;
  --num_leases_;
}

void AdapterRows::take_edits(std::vector<step::AdapterEdit>& edits) {
  edits.insert(edits.end(), std::make_move_iterator(edits_.begin()),
               std::make_move_iterator(edits_.end()));
  edits_.clear();
}

}  // namespace rudder::engine
