// AdapterRows: counts who holds which rows of the executor's adapter table. Sequences of equal
// adapters share a row; a row that nobody holds keeps its adapter until another one needs the row.
// Engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/lora/adapter.h"
#include "rudder/step/plan.h"

namespace rudder::engine {

class AdapterRows {
 public:
  explicit AdapterRows(const lora::TableSize& size) : rows_(static_cast<size_t>(size.num_rows)) {}

  // A row with the adapter; kNoRow: every row is held for another one. Ask again after a release.
  int32_t lease(const std::shared_ptr<const lora::Adapter>& adapter);
  // No plan that is built from now on uses the row for this lease.
  void release(int32_t row);
  bool any_held() const { return num_leases_ > 0; }

  // Appends the edits that the next plan has to bring.
  void take_edits(std::vector<step::AdapterEdit>& edits);

 private:
  struct Row {
    std::shared_ptr<const lora::Adapter> adapter;  // null: empty
    int32_t users = 0;
    uint64_t last_use = 0;
  };

  std::vector<Row> rows_;
  std::vector<step::AdapterEdit> edits_;
  uint64_t clock_ = 0;
  int32_t num_leases_ = 0;
};

}  // namespace rudder::engine
