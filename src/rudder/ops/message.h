// Message: memory by which a device of a pipeline tells other devices of the process something
// (exec/stage_link.h). Ops makes it, fills it and posts it; the Ops of the others, which are of the
// same kind, await it and copy from it. It is shared by all of them and may outlive the Ops that
// made it, so that nobody reads memory that is gone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rudder/tensor/view.h"

namespace rudder::ops {

class Message {
 public:
  virtual ~Message() = default;
  // [bytes] u8, 64-byte aligned, of the device that made it.
  virtual tensor::View memory() const = 0;
  // Whether everything in front of its last Ops::post is done. Any thread.
  virtual bool has_arrived() = 0;
};

// Of a device whose ops run before their call returns: there is nothing to wait for.
class HostMessage : public Message {
 public:
  explicit HostMessage(int64_t bytes)
      : bytes_(bytes), lines_(static_cast<size_t>(bytes + kLineBytes - 1) / kLineBytes) {}

  tensor::View memory() const override { return {lines_.data(), tensor::DType::kU8, {bytes_}}; }
  bool has_arrived() override { return true; }

 private:
  static constexpr size_t kLineBytes = 64;
  struct alignas(kLineBytes) Line {
    std::array<std::byte, kLineBytes> bytes;
  };

  const int64_t bytes_;
  mutable std::vector<Line> lines_;
};

}  // namespace rudder::ops
