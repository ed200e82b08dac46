// HostComm: the ranks of one process that share its memory. A rank shows the others a piece of its
// memory and waits until all have shown theirs. Waiting is bounded: a rank that does not come fails
// the group. Each rank's backend has one; its worker thread alone calls exchange() and meet().
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "rudder/ops/comm.h"
#include "rudder/tensor/view.h"

namespace rudder::cpu {

class HostComm final : public ops::Comm {
 public:
  static constexpr int32_t kPatienceMs = 2000;

  // While threads of this process get no core, a rank waits so long for another.
  static constexpr int32_t kStarvedPatienceMs = 60'000;

  // One for each of `count` ranks. `patience_ms` is how long a rank waits for another; time in
  // which the whole process stood still (suspended, stopped) does not count, nor does time in which
  // a thread of it wanted a core and got none (base/starvation.h), as far as kStarvedPatienceMs.
  static std::vector<std::shared_ptr<HostComm>> make_group(int32_t count,
                                                           int32_t patience_ms = kPatienceMs);

  ops::Rank rank() const override { return rank_; }
  Result<tensor::View> shared_memory(tensor::DType dtype, tensor::Shape shape) override;
  void meet(uint64_t step) override;
  Result<void> status() const override;
  void fail(const Error& error) override;

  // The memory that each rank showed, in the order of ranks. It stays as it is, and the result is
  // valid, until this rank's next exchange(), which must therefore follow (an empty view shows
  // nothing) before what was shown is written again. `op` names the caller; ranks that come from
  // different ops or with another number of rows fail the group. After a failure it is an Error,
  // which comes once the others have left what this rank showed: it is written again.
  Result<std::span<const tensor::View>> exchange(std::string_view op, const tensor::View& mine);

 private:
  struct Group;

  HostComm(std::shared_ptr<Group> group, ops::Rank rank) : group_(std::move(group)), rank_(rank) {}

  const std::shared_ptr<Group> group_;
  const ops::Rank rank_;
};

}  // namespace rudder::cpu
