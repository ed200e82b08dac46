#include "rudder/exec/upload_ring.h"

#include <algorithm>
#include <cstring>

namespace rudder::exec {

Result<std::unique_ptr<UploadRing>> UploadRing::make(ops::Ops& ops, int64_t bytes) {
  std::unique_ptr<UploadRing> ring(new UploadRing(ops));
  const auto num_parts = static_cast<int64_t>(ring->parts_.size());
  for (Part& part : ring->parts_) {
    RUDDER_TRY(part.staging, ops.allocate_staging((bytes + num_parts - 1) / num_parts));
    part.sent = ops.make_event();
  }
  return ring;
}

Result<void> UploadRing::next_part() {
  ops_.record(*parts_[current_].sent);
  parts_[current_].is_under_way = true;
  current_ = (current_ + 1) % parts_.size();
  used_ = 0;
  Part& part = parts_[current_];
  if (part.is_under_way) RUDDER_TRY_VOID(part.sent->wait());
  part.is_under_way = false;
  return {};
}

Result<void> UploadRing::copy(const ops::View& device, const void* from) {
  const auto bytes = static_cast<int64_t>(device.bytes());
  for (int64_t done = 0; done < bytes;) {
    if (used_ == parts_[current_].staging.shape[0]) RUDDER_TRY_VOID(next_part());
    const ops::View& staging = parts_[current_].staging;
    const int64_t count = std::min(bytes - done, staging.shape[0] - used_);
    const ops::View piece = staging.rows(used_, count);
    std::memcpy(piece.data, static_cast<const std::byte*>(from) + done, static_cast<size_t>(count));
    ops_.copy_in({static_cast<std::byte*>(device.data) + done, tensor::DType::kU8, {count}}, piece);
    used_ += count;
    done += count;
  }
  return {};
}

}  // namespace rudder::exec
