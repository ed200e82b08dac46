// CopyLane: a way of its own between the memory of a device and that of the host, beside what the
// device's stream runs: copies wait for nothing that is enqueued there, and nothing there for them.
// Who copies sees to it that nobody else uses the device's end meanwhile. Any thread; those that
// copy at the same time do so side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "rudder/base/function_ref.h"
#include "rudder/base/result.h"

namespace rudder::ops {

// The two ends of a copy, of equal bytes.
struct LanePiece {
  std::span<std::byte> device;
  std::span<std::byte> host;
};

class CopyLane {
 public:
  virtual ~CopyLane() = default;
  // Memory of the host that copies go to and from (pinned on a GPU), alive as long as the lane. Not
  // while anything is copied. kUnavailable, or the device's: there is not as much.
  virtual Result<std::span<std::byte>> allocate(int64_t bytes) = 0;
  // To the device, and back when all pieces have been copied and `meanwhile`, which is called once,
  // has returned: it reads what is copied. An Error is the device's.
  virtual Result<void> copy_in(std::span<const LanePiece> pieces,
                               FunctionRef<void()> meanwhile) = 0;
  // To the host, likewise.
  virtual Result<void> copy_out(std::span<const LanePiece> pieces) = 0;
};

// Of a device whose memory is the host's.
class HostLane final : public CopyLane {
 public:
  Result<std::span<std::byte>> allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    memory_.emplace_back(new (std::nothrow) std::byte[size]);
    if (memory_.back() != nullptr) return std::span(memory_.back().get(), size);
    return fail(ErrorCode::kUnavailable,
                std::to_string(bytes) + " bytes of host memory are not to be had");
  }
  Result<void> copy_in(std::span<const LanePiece> pieces, FunctionRef<void()> meanwhile) override {
    meanwhile();
    for (const LanePiece& piece : pieces) {
      std::memcpy(piece.device.data(), piece.host.data(), piece.host.size());
    }
    return {};
  }
  Result<void> copy_out(std::span<const LanePiece> pieces) override {
    for (const LanePiece& piece : pieces) {
      std::memcpy(piece.host.data(), piece.device.data(), piece.host.size());
    }
    return {};
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace rudder::ops
