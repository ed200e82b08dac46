// ArenaLayout: computes the address of each piece of device memory by bump allocation in big
// chunks. It is plain arithmetic and owns no memory, so it is tested without a device. Used by
// DeviceMemory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rudder::cuda {

class ArenaLayout {
 public:
  static constexpr int64_t kAlignment =
      256;  // of every piece: what TMA and 16-byte loads ask for, and more

  // Pieces of at least `chunk_bytes` / 2 get a chunk of their own.
  explicit ArenaLayout(int64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  struct Piece {
    size_t chunk = 0;
    int64_t offset = 0;
    int64_t new_chunk_bytes = 0;  // > 0: this chunk is to be made first
  };
  Piece place(int64_t bytes);  // bytes >= 0; a piece of 0 bytes has an address too
  // Takes back the chunk that place() has just asked for: it could not be made.
  void undo_new_chunk();

  int64_t used_bytes() const { return used_; }

 private:
  struct Chunk {
    int64_t size = 0;
    int64_t used = 0;
  };

  const int64_t chunk_bytes_;
  std::vector<Chunk> chunks_;
  int64_t used_ = 0;
};

}  // namespace rudder::cuda
