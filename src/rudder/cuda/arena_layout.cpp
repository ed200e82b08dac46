#include "rudder/cuda/arena_layout.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::cuda {

ArenaLayout::Piece ArenaLayout::place(int64_t bytes) {
  RUDDER_CHECK(bytes >= 0, "{} bytes", bytes);
  const int64_t size = std::max<int64_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
  if (size < chunk_bytes_ / 2) {
    for (size_t i = 0; i < chunks_.size(); ++i) {
      Chunk& chunk = chunks_[i];
      if (chunk.size - chunk.used < size) continue;
      const Piece piece{i, chunk.used, 0};
      chunk.used += size;
      used_ += size;
      return piece;
    }
  }
  const int64_t chunk_size = size < chunk_bytes_ / 2 ? chunk_bytes_ : size;
  chunks_.push_back({chunk_size, size});
  used_ += size;
  return {chunks_.size() - 1, 0, chunk_size};
}

void ArenaLayout::undo_new_chunk() {
  used_ -= chunks_.back().used;
  chunks_.pop_back();
}

}  // namespace rudder::cuda
