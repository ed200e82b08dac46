#include "rudder/cuda/peer_comm.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "rudder/base/check.h"
#include "rudder/cuda/device_info.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/peer_access.h"

namespace rudder::cuda {
namespace {

constexpr const char* kWhere = "tensor-parallel-size";
// Of the time between two looks this much counts as waiting: of a time in which the process stood
// still only so much.
constexpr auto kLongestLook = std::chrono::milliseconds(50);
// No rank's host is so many iterations ahead of another's.
constexpr size_t kMeetings = 64;

Result<void> check_count(size_t count) {
  if (count == 2 || count == 4 || count == 8) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("a group of GPUs has 2, 4 or 8 ranks, not {}", count), kWhere);
}

}  // namespace

struct PeerComm::Group {
  // What a rank's kernels keep on its device.
  struct Memory {
    void* data = nullptr;  // inboxes, flags, next look, epochs
    char* inbox = nullptr;
    uint64_t* flags = nullptr;
    uint64_t* next_look = nullptr;
    uint32_t* epochs = nullptr;
  };
  struct Meeting {
    uint64_t number = 0;  // from 1; 0: none yet
    uint64_t step = 0;
  };

  Group(std::span<const int32_t> on, int32_t patience)
      : devices(on.begin(), on.end()),
        patience_ms(patience),
        memory(on.size()),
        num_met(on.size(), 0) {}
  ~Group() {
    for (const Memory& one : memory) cudaFree(one.data);
    cudaFree(shared.data);
    cudaFreeHost(const_cast<uint32_t*>(faults));
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Result<void> allocate();
  Result<void> share_locked(tensor::DType dtype, const tensor::Shape& shape);

  int32_t count() const { return static_cast<int32_t>(devices.size()); }
  // Of a rank's kernel. Those of all ranks of a GPU fit on it at once, each with the one behind it,
  // whose blocks may be there already.
  int32_t max_blocks() const {
    int64_t ranks = 1;  // of the GPU that has most
    for (const int32_t device : devices) {
      ranks = std::max<int64_t>(ranks, std::ranges::count(devices, device));
    }
    return ranks == 1 ? kPeerBlocks : static_cast<int32_t>(kPeerBlocks / (2 * ranks));
  }
  // The first failure counts; the kernels of all ranks see it.
  void fail_locked(int32_t rank, Error error) {
    if (fault) return;
    fault = std::move(error);
    if (faults[rank] == 0) faults[rank] = static_cast<uint32_t>(PeerFault::kHost) << 8;
  }
  void look_at_kernels_locked();
  void look_at_hosts_locked();

  const std::vector<int32_t> devices;
  const int32_t patience_ms;
  std::vector<Memory> memory;
  volatile uint32_t* faults = nullptr;  // [count] pinned
  std::mutex mutex;                     // of all below
  std::vector<uint64_t> num_met;        // of each rank
  std::array<Meeting, kMeetings> meetings;
  std::chrono::steady_clock::time_point last_look;
  std::chrono::steady_clock::duration waited{};  // since the last rank was where the first is
  uint64_t awaited = 0;                          // the meeting that `waited` is of
  std::optional<Error> fault;
  tensor::View shared;  // of shared_memory(); empty: nobody has asked yet
};

Result<void> PeerComm::Group::allocate() {
  const auto first_bytes = static_cast<size_t>(peer_inbox_bytes(count()));
  const auto words_bytes = static_cast<size_t>(peer_words_bytes(count()));
  const size_t inbox_bytes = first_bytes + words_bytes;
  const size_t flag_bytes = static_cast<size_t>(peer_num_flags(count())) * sizeof(uint64_t);
  const size_t bytes = inbox_bytes + flag_bytes + sizeof(uint64_t) + kPeerBlocks * sizeof(uint32_t);
  for (size_t i = 0; i < devices.size(); ++i) {
    Memory& one = memory[i];
    use_device(devices[i]);
    RUDDER_CUDA_TRY(cudaMalloc(&one.data, bytes), "ranks", fmt::format("{} bytes", bytes));
    one.inbox = static_cast<char*>(one.data);
    RUDDER_CUDA_TRY(cudaMemset(one.data, 0, bytes), "ranks", "");
    RUDDER_CUDA_TRY(cudaMemset(one.inbox + first_bytes, 0xff, words_bytes), "ranks", "");
    RUDDER_CUDA_TRY(cudaDeviceSynchronize(), "ranks", "");
    one.flags = reinterpret_cast<uint64_t*>(one.inbox + inbox_bytes);
    one.next_look = reinterpret_cast<uint64_t*>(one.inbox + inbox_bytes + flag_bytes);
    one.epochs = reinterpret_cast<uint32_t*>(one.next_look + 1);
  }
  void* words = nullptr;
  const size_t fault_bytes = static_cast<size_t>(count()) * sizeof(uint32_t);
  RUDDER_CUDA_TRY(cudaHostAlloc(&words, fault_bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                  "ranks", "");
  faults = static_cast<uint32_t*>(words);
  std::fill(faults, faults + count(), 0u);
  return {};
}

// On the first rank's GPU, whose memory the others reach.
Result<void> PeerComm::Group::share_locked(tensor::DType dtype, const tensor::Shape& shape) {
  const size_t bytes = tensor::View{nullptr, dtype, shape}.bytes();
  void* data = nullptr;
  use_device(devices.front());
  RUDDER_CUDA_TRY(cudaMalloc(&data, bytes), "what ranks share", fmt::format("{} bytes", bytes));
  shared = {data, dtype, shape};
  RUDDER_CUDA_TRY(cudaMemset(data, 0, bytes), "what ranks share", "");
  RUDDER_CUDA_TRY(cudaDeviceSynchronize(), "what ranks share", "");
  return {};
}

void PeerComm::Group::look_at_kernels_locked() {
  for (int32_t rank = 0; rank < count() && !fault; ++rank) {
    const uint32_t word = faults[rank];
    const uint32_t peer = word & 0xFFu;
    switch (static_cast<PeerFault>(word >> 8)) {
      case PeerFault::kNone:
      case PeerFault::kHost:
        break;
      case PeerFault::kLate:
        fault = Error{ErrorCode::kInternal,
                      fmt::format("rank {} did not come to an exchange with rank {} within {} ms",
                                  peer, rank, patience_ms),
                      kWhere};
        break;
      case PeerFault::kOtherOp:
        fault = Error{ErrorCode::kInternal,
                      fmt::format("rank {} and rank {} are at different ops or rows", rank, peer),
                      kWhere};
        break;
    }
  }
}

// A host that stays behind where no kernel waits for it.
void PeerComm::Group::look_at_hosts_locked() {
  const auto now = std::chrono::steady_clock::now();
  const auto since = std::min<std::chrono::steady_clock::duration>(now - last_look, kLongestLook);
  last_look = now;
  const auto [least, most] = std::ranges::minmax(num_met);
  if (least == most || awaited != least + 1) {
    awaited = least == most ? 0 : least + 1;
    waited = {};
    return;
  }
  waited += since;
  if (waited < std::chrono::milliseconds(patience_ms)) return;
  const auto late = std::ranges::find(num_met, least) - num_met.begin();
  fail_locked(static_cast<int32_t>(late),
              {ErrorCode::kInternal,
               fmt::format("rank {} of {} did not come to the end of a step within {} ms", late,
                           count(), patience_ms),
               kWhere});
}

Result<std::vector<std::shared_ptr<PeerComm>>> PeerComm::make_group(
    std::span<const int32_t> devices, int32_t patience_ms, Gpus gpus) {
  RUDDER_TRY_VOID(check_count(devices.size()));
  if (gpus == Gpus::kOneEach) RUDDER_TRY_VOID(check_each_its_own(devices, kWhere));
  RUDDER_TRY_VOID(enable_peer_access(devices, kWhere));
  const auto group = std::make_shared<Group>(devices, patience_ms);
  RUDDER_TRY_VOID(group->allocate());
  std::vector<std::shared_ptr<PeerComm>> ranks;
  ranks.reserve(static_cast<size_t>(group->count()));
  for (int32_t i = 0; i < group->count(); ++i) {
    ranks.push_back(std::shared_ptr<PeerComm>(new PeerComm(group, {i, group->count()})));
  }
  return ranks;
}

PeerComm::~PeerComm() = default;

Result<tensor::View> PeerComm::shared_memory(tensor::DType dtype, tensor::Shape shape) {
  const std::lock_guard lock(group_->mutex);
  if (group_->shared.empty()) {
    const Result<void> allocated = group_->share_locked(dtype, shape);
    use_device(device());
    RUDDER_TRY_VOID(allocated);
  }
  RUDDER_CHECK(group_->shared.dtype == dtype && group_->shared.shape == shape,
               "rank {} shares other memory", rank_.index);
  return group_->shared;
}

int32_t PeerComm::device() const {
  return group_->devices[static_cast<size_t>(rank_.index)];
}

PeerLinks PeerComm::links(bool is_captured) const {
  PeerLinks links;
  links.rank = rank_.index;
  links.count = rank_.count;
  links.is_open = is_open_ || is_captured;
  links.patience_ns = int64_t{group_->patience_ms} * 1'000'000;
  links.max_blocks = group_->max_blocks();
  for (size_t i = 0; i < group_->memory.size(); ++i) {
    links.inbox[i] = group_->memory[i].inbox;
    links.flags[i] = group_->memory[i].flags;
  }
  const Group::Memory& mine = group_->memory[static_cast<size_t>(rank_.index)];
  links.epochs = mine.epochs;
  links.next_look = mine.next_look;
  links.faults = const_cast<uint32_t*>(group_->faults);
  return links;
}

void PeerComm::meet(uint64_t step) {
  const std::lock_guard lock(group_->mutex);
  const uint64_t number = ++group_->num_met[static_cast<size_t>(rank_.index)];
  Group::Meeting& meeting = group_->meetings[number % kMeetings];
  if (meeting.number < number) {
    meeting = {number, step};
  } else if (meeting.number == number && meeting.step != step) {
    group_->fail_locked(rank_.index, {ErrorCode::kInternal,
                                      fmt::format("rank {} is at step {}, others at step {}",
                                                  rank_.index, step, meeting.step),
                                      kWhere});
  }
}

Result<void> PeerComm::status() const {
  const std::lock_guard lock(group_->mutex);
  if (!group_->fault) group_->look_at_kernels_locked();
  if (!group_->fault) group_->look_at_hosts_locked();
  if (group_->fault) return tl::unexpected<Error>(*group_->fault);
  return {};
}

void PeerComm::fail(const Error& error) {
  const std::lock_guard lock(group_->mutex);
  group_->look_at_kernels_locked();  // what a kernel has found came first
  group_->fail_locked(rank_.index, error);
}

}  // namespace rudder::cuda
