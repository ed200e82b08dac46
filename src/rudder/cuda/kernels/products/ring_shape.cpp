#include "rudder/cuda/kernels/products/ring_shape.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace rudder::cuda {

RingShape guess_ring_shape(const GemvParams& product, int32_t num_sms, int n) {
  struct Guess {
    RingShape shape;
    int64_t bytes = 0;
  };
  std::array<Guess, std::size(kRingRows) * std::size(kRingSplits)> guesses;
  size_t count = 0;
  const int64_t chunks = ratio_up(row_bytes(product), kRingChunkBytes);
  for (const int32_t splits : kRingSplits) {
    if (splits > 1 && chunks < 4 * splits) continue;
    for (const int32_t rows : kRingRows) {
      if (!ring_takes(product, {rows, splits})) continue;
      const int64_t tiles = ratio_up(product.out, rows);
      // Clusters of four lie in groups of multiprocessors, which leaves some idle.
      const int64_t at_once = (splits > 2 ? num_sms * 10 / 11 : num_sms) / splits;
      const int64_t in_turn = ratio_up(tiles, at_once);
      const int64_t part = ratio_up(chunks, splits) * kRingChunkBytes * in_turn;
      // As measured, x costs a sixteenth of what as many bytes of W do; adding up as much as 16 KB
      // and 10 bytes for each sum; another turn of clusters, which begins anew, as much as 128 KB.
      const int64_t turn = (16 << 10) + int64_t{rows} * product.tokens * 10;
      const int64_t sums = splits == 1 ? 0 : in_turn * turn + (in_turn - 1) * (128 << 10);
      guesses[count++] = {{rows, splits}, part * rows + part * product.tokens / 16 + sums};
    }
  }
  std::stable_sort(guesses.begin(), guesses.begin() + static_cast<std::ptrdiff_t>(count),
                   [](const Guess& a, const Guess& b) { return a.bytes < b.bytes; });
  return n < static_cast<int>(count) ? guesses[static_cast<size_t>(n)].shape : RingShape{};
}

bool ring_takes(const GemvParams& p, const RingShape& shape) {
  const auto is_one_of = [](const auto& values, int32_t value) {
    return std::find(std::begin(values), std::end(values), value) != std::end(values);
  };
  return p.tokens <= kRingMaxTokens && is_made_of_pieces(p) && is_one_of(kRingRows, shape.rows) &&
         is_one_of(kRingSplits, shape.splits) && (!p.is_fp8 || shape.rows <= kMostFp8RingRows);
}

}  // namespace rudder::cuda
