// PeerComm: the ranks of one process whose GPUs read and write each other's memory (peer access).
// Kernels exchange (kernels/peers/peer.h); the host only sees that ranks run the same steps, and
// that one which fails or stands still ends the waits of all. CudaOps owns one for each rank; its
// inbox and flags, and what ranks share, live as long as the group has a rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/cuda/kernels/peers/peer.h"
#include "rudder/ops/comm.h"

namespace rudder::cuda {

class PeerComm final : public ops::Comm {
 public:
  static constexpr int32_t kPatienceMs = 2000;

  // Whether ranks may have a GPU together. Only exchanges can: products and attention of one rank
  // fill a GPU on which another's exchange waits. So groups that run models never do; tests of more
  // ranks than there are GPUs do.
  enum class Gpus { kOneEach, kShared };

  // One for each of `devices`, in the order of ranks. `patience_ms` is how long a rank waits for
  // another: its GPU by the clock, its host in time in which the process runs. kUnsupported: not 2,
  // 4 or 8 ranks; a GPU that is there twice, unless `gpus` allows it; two without peer access,
  // which it names.
  static Result<std::vector<std::shared_ptr<PeerComm>>> make_group(
      std::span<const int32_t> devices, int32_t patience_ms = kPatienceMs,
      Gpus gpus = Gpus::kOneEach);
  ~PeerComm() override;
  PeerComm(const PeerComm&) = delete;
  PeerComm& operator=(const PeerComm&) = delete;

  ops::Rank rank() const override { return rank_; }
  Result<tensor::View> shared_memory(tensor::DType dtype, tensor::Shape shape) override;
  void open() override { is_open_ = true; }
  // Does not wait: that a rank stays behind is found by status(), or by a kernel of another.
  void meet(uint64_t step) override;
  Result<void> status() const override;
  void fail(const Error& error) override;

  int32_t device() const;
  // For a kernel that runs, or for one that is captured and runs when the rank is open.
  PeerLinks links(bool is_captured) const;

 private:
  struct Group;

  PeerComm(std::shared_ptr<Group> group, ops::Rank rank) : group_(std::move(group)), rank_(rank) {}

  const std::shared_ptr<Group> group_;
  const ops::Rank rank_;
  bool is_open_ = false;
};

}  // namespace rudder::cuda
