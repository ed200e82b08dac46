#include "rudder/cuda/kernels/products/tile_shape.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "rudder/cuda/kernels/products/ring_shape.h"

namespace rudder::cuda {
namespace {

// What registers hold: the sums of a tile, of fp8 those of 512 columns besides, and those of all
// parts where a block takes them in turn.
int32_t most_rows(const GemvParams& product, const TileShape& shape) {
  const bool in_turn = shape.splits > 1 && !shape.side_by_side;
  const int sets = 1 + (product.is_fp8 ? 1 : 0) + (in_turn ? 1 : 0);
  return sets == 1 ? 256 : sets == 2 ? 192 : 128;
}

// Cycles of the device, about as measured on one H200: of a chunk of all blocks that run at once
// what bounds it, tensor cores, L2 or memory; of a tile what comes before and after.
int64_t cycles(const GemvParams& product, const TileShape& shape, int32_t num_sms) {
  constexpr int64_t kL2Bytes = 4400;      // a cycle
  constexpr int64_t kMemoryBytes = 2400;  // a cycle
  const int64_t chunks = ratio_up(row_bytes(product), kRingChunkBytes);
  const int64_t token_tiles = ratio_up(product.tokens, kTileTokens);
  const int64_t tiles = ratio_up(product.out, shape.rows) * token_tiles;
  const int64_t rows = kTileTokens + shape.rows;  // that a block asks L2 for
  // Clusters of four lie in groups of multiprocessors, which leaves some idle.
  const int64_t at_once = shape.side_by_side
                              ? (shape.splits > 2 ? num_sms * 10 / 11 : num_sms) / shape.splits
                              : num_sms;
  const int64_t blocks = std::min(tiles, at_once) * (shape.side_by_side ? shape.splits : 1);
  const int64_t arithmetic = 4 * int64_t{shape.rows} + 40;
  const int64_t l2 = rows * kRingChunkBytes * blocks / kL2Bytes;
  const int64_t memory = shape.rows * kRingChunkBytes * blocks / (kMemoryBytes * token_tiles);
  const int64_t chunk = std::max({arithmetic, l2, memory});
  const int64_t write = 600 + 8 * int64_t{shape.rows};
  if (!shape.side_by_side) return ratio_up(tiles, at_once) * (chunks * chunk + write);
  const int64_t exchange = 2000 + 100 * int64_t{shape.rows};
  return ratio_up(tiles, at_once) * (ratio_up(chunks, shape.splits) * chunk + write + exchange);
}

}  // namespace

int32_t fixed_splits(int64_t out, int64_t in, bool is_fp8) {
  // With so few blocks of 48 rows some multiprocessors have none, which costs more than adding up
  // parts where rows are long (measured, ADR 0100).
  constexpr int64_t kRows = 48;
  constexpr int64_t kBlocks = 120;
  constexpr int64_t kLeastChunks = 24;  // of a part
  const int64_t chunks = ratio_up(in * (is_fp8 ? 1 : 2), kRingChunkBytes);
  int32_t splits = 1;
  for (const int32_t more : kRingSplits) {
    if (ratio_up(out, kRows) * splits >= kBlocks || chunks < kLeastChunks * more) break;
    splits = more;
  }
  return splits;
}

TileShape guess_tile_shape(const GemvParams& product, int32_t splits, int32_t num_sms, int n) {
  struct Guess {
    TileShape shape;
    int64_t cycles = 0;
  };
  std::array<Guess, 2 * std::size(kTileRows)> guesses;
  size_t count = 0;
  for (const int32_t rows : kTileRows) {
    for (const bool side_by_side : {false, true}) {
      const TileShape shape{rows, splits, side_by_side};
      if (!tile_takes(product, shape)) continue;
      guesses[count++] = {shape, cycles(product, shape, num_sms)};
    }
  }
  std::stable_sort(guesses.begin(), guesses.begin() + static_cast<std::ptrdiff_t>(count),
                   [](const Guess& a, const Guess& b) { return a.cycles < b.cycles; });
  return n < static_cast<int>(count) ? guesses[static_cast<size_t>(n)].shape : TileShape{};
}

bool tile_takes(const GemvParams& p, const TileShape& shape) {
  const auto is_one_of = [](const auto& values, int32_t value) {
    return std::find(std::begin(values), std::end(values), value) != std::end(values);
  };
  return is_made_of_pieces(p) && p.softcap == 0.0f && is_one_of(kTileRows, shape.rows) &&
         is_one_of(kRingSplits, shape.splits) && (shape.splits > 1 || !shape.side_by_side) &&
         shape.rows <= most_rows(p, shape);
}

}  // namespace rudder::cuda
