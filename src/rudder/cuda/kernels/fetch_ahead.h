// FetchAhead: weights that a product behind a kernel reads, which the kernel asks to come to L2
// because it leaves the memory idle itself: it waits for other ranks, or has little to move. A
// kernel has one in its params and calls fetch_ahead() (fetch_ahead.cuh). Nothing depends on it but
// time.
//
// Floor: the product is shorter by the time that what has come takes from memory, 4 us of 16 MiB,
// as long as the memory had nothing else to do meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rudder::cuda {

struct FetchAhead {
  const char* weight = nullptr;  // 16-byte aligned; null: nothing
  int64_t stride = 0;            // from piece to piece
  int32_t pieces = 0;
  int32_t bytes = 0;         // of a piece, whole 16
  uint32_t first_block = 0;  // of the grid, that fetches: a launcher says so
};

// A third of the L2 of an H100 or H200: it is still there when it is read, and so is what the
// kernels in between read and write.
inline constexpr int64_t kFetchBytes = int64_t{16} << 20;

// Of a weight [rows, row_bytes] the beginnings of rows, or the rows, up to `most_bytes` in all.
inline FetchAhead fetch_ahead_of(const void* weight, int64_t rows, int64_t row_bytes,
                                 int64_t most_bytes = kFetchBytes) {
  constexpr int64_t kLine = 128;
  constexpr int64_t kPieceBytes = 8192;  // of rows that are fetched whole
  FetchAhead fetch;
  if (weight == nullptr || rows <= 0 || row_bytes % 16 != 0) return fetch;
  int64_t bytes = std::min(row_bytes, most_bytes / rows / kLine * kLine);
  if (bytes <= 0) return fetch;
  while (bytes == row_bytes && rows % 2 == 0 && bytes < kPieceBytes) {
    bytes *= 2;
    row_bytes *= 2;
    rows /= 2;
  }
  fetch.weight = static_cast<const char*>(weight);
  fetch.stride = row_bytes;
  fetch.pieces = static_cast<int32_t>(rows);
  fetch.bytes = static_cast<int32_t>(bytes);
  return fetch;
}

// A warp takes some 50 cycles to ask for a piece, so few blocks would be long about it. How many
// blocks that have nothing else to do a launcher adds to `blocks`.
inline unsigned add_fetchers(FetchAhead& fetch, unsigned blocks) {
  constexpr unsigned kFetchBlocks = 128;
  if (fetch.weight == nullptr || 2 * blocks > kFetchBlocks) return 0;
  fetch.first_block = blocks;
  return kFetchBlocks - blocks;
}

}  // namespace rudder::cuda
