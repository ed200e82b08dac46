#include "rudder/cpu/fast_weight.h"

#include "rudder/base/check.h"

namespace rudder::cpu {
namespace {

// Rows of x that stay in a core's second-level cache while the weight streams through.
constexpr int64_t kRowTileBytes = int64_t{768} << 10;
// Bytes of weight that a thread claims at once: small enough to balance, large enough to stream.
constexpr int64_t kClaimBytes = int64_t{512} << 10;
constexpr int64_t kClaimsPerThread = 8;
// A smaller product ends before another thread has woken up.
constexpr int64_t kForkBytes = int64_t{64} << 10;
constexpr int64_t kPanelsTogether = 4;  // a kernel walks this many panels at a time

Result<std::byte*> grown(Buffer& buffer, int64_t bytes) {
  if (static_cast<int64_t>(buffer.bytes()) < bytes) {
    RUDDER_TRY(buffer, Buffer::make(static_cast<size_t>(bytes)));
  }
  return static_cast<std::byte*>(buffer.data());
}

Result<Buffer> pack_bias(std::span<const ops::LinearPart> parts, int64_t columns) {
  RUDDER_TRY(Buffer packed, Buffer::make(static_cast<size_t>(columns) * sizeof(float)));
  float* bias = static_cast<float*>(packed.data());
  for (const ops::LinearPart& part : parts) {
    RUDDER_CHECK(!part.bias.empty());
    RUDDER_TRY_VOID(convert_values(part.bias.data, part.bias.dtype, bias, tensor::DType::kF32,
                                   part.bias.shape.numel()));
    bias += part.bias.shape.numel();
  }
  return packed;
}

}  // namespace

Result<void> PanelledWeight::allocate(std::span<const ops::LinearPart> parts, int64_t panel_bytes) {
  in_ = parts.front().in();
  for (const ops::LinearPart& part : parts) {
    RUDDER_CHECK(part.in() == in_);
    out_ += part.out();
  }
  num_panels_ = round_up(out_, kPanelWidth) / kPanelWidth;
  panel_bytes_ = panel_bytes;
  RUDDER_TRY(panels_, Buffer::make(static_cast<size_t>(num_panels_ * panel_bytes)));
  if (parts.front().bias.empty()) return {};
  RUDDER_TRY(bias_, pack_bias(parts, num_panels_ * kPanelWidth));
  return {};
}

Result<void> PanelledWeight::multiply(const Kernels& kernels, ThreadPool& pool,
                                      ProductScratch& scratch, const float* x, int64_t rows,
                                      float* out, int64_t ld) const {
  if (rows == 0) return {};
  const int64_t row_bytes = this->row_bytes();
  const int64_t tile_rows = round_up(rows, kTileRows);
  RUDDER_TRY(std::byte* const tiles, grown(scratch.row_tiles, tile_rows * row_bytes));
  const int64_t block = std::max<int64_t>(
      2 * kTileRows, kRowTileBytes / row_bytes / (2 * kTileRows) * (2 * kTileRows));
  RUDDER_TRY(std::byte* const last, grown(scratch.last_panel, std::min(rows, block) * kPanelWidth *
                                                                  int64_t{sizeof(float)}));
  auto* last_panel = reinterpret_cast<float*>(last);
  const auto pack = [&](int64_t group) {
    const int64_t row = group * kTileRows;
    pack_rows(kernels, x + row * in_, std::min<int64_t>(kTileRows, rows - row),
              tiles + row * row_bytes);
  };
  if (rows * row_bytes < kForkBytes) {
    for (int64_t group = 0; group < tile_rows / kTileRows; ++group) pack(group);
  } else {
    pool.parallel_for(tile_rows / kTileRows, pack);
  }
  int64_t claim = num_panels_;
  if (num_panels_ * panel_bytes_ >= kForkBytes) {
    const int64_t shared = num_panels_ / (pool.num_threads() * kClaimsPerThread);
    claim =
        round_up(std::clamp<int64_t>(shared, 1, std::max<int64_t>(1, kClaimBytes / panel_bytes_)),
                 kPanelsTogether);
  }
  for (int64_t row = 0; row < rows; row += block) {
    pool.parallel_for((num_panels_ + claim - 1) / claim, [&](int64_t i) {
      PanelCall call;
      call.a = tiles + row * row_bytes;
      call.rows = std::min(block, rows - row);
      call.panel = i * claim;
      call.count = std::min(num_panels_, (i + 1) * claim) - call.panel;
      call.out = out + row * ld;
      call.ld = ld;
      run(kernels, call, last_panel);
    });
  }
  return {};
}

// `call.out` is the first column of the whole product. last_panel [rows, 16]: for a panel that is
// wider than what is left of `out`.
void PanelledWeight::run(const Kernels& kernels, const PanelCall& call, float* last_panel) const {
  const int64_t end = call.panel + call.count;
  const int64_t whole = std::min(end, out_ / kPanelWidth);
  if (call.panel < whole) {
    PanelCall some = call;
    some.count = whole - call.panel;
    some.out = call.out + call.panel * kPanelWidth;
    product(kernels, some);
    add_bias(kernels, call, call.panel * kPanelWidth, some.count * kPanelWidth);
  }
  if (whole == end) return;
  PanelCall some = call;
  some.panel = whole;
  some.count = 1;
  some.out = last_panel;
  some.ld = kPanelWidth;
  product(kernels, some);
  const int64_t column = whole * kPanelWidth;
  for (int64_t r = 0; r < call.rows; ++r) {
    std::copy_n(last_panel + r * kPanelWidth, out_ - column, call.out + r * call.ld + column);
  }
  add_bias(kernels, call, column, out_ - column);
}

void PanelledWeight::add_bias(const Kernels& kernels, const PanelCall& call, int64_t column,
                              int64_t width) const {
  if (bias_.data() == nullptr) return;
  const float* bias = static_cast<const float*>(bias_.data()) + column;
  for (int64_t r = 0; r < call.rows; ++r) {
    kernels.add(call.out + r * call.ld + column, bias, width);
  }
}

}  // namespace rudder::cpu
