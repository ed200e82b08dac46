#include "rudder/cpu/panel_weight.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/ops/stored_row.h"

namespace rudder::cpu {
namespace {

using tensor::DType;
using tensor::View;

// Rows of x that stay in a core's second-level cache while the weight streams through.
constexpr int64_t kRowTileBytes = int64_t{768} << 10;
// Bytes of weight that a thread claims at once: small enough to balance, large enough to stream.
constexpr int64_t kClaimBytes = int64_t{512} << 10;
constexpr int64_t kClaimsPerThread = 8;
// A smaller product ends before another thread has woken up.
constexpr int64_t kForkBytes = int64_t{64} << 10;
constexpr int64_t kPanelsTogether = 4;  // a kernel walks this many panels at a time

DType dtype_of(Element element) {
  return element == Element::kBf16 ? DType::kBF16 : DType::kF32;
}

// Rows [panel * 16, ...) of one part into the columns of a panel, from column `column` on.
void pack_columns(const ops::LinearPart& part, int64_t row, int64_t count, PanelWeight& weight,
                  int64_t panel, int64_t column) {
  std::vector<std::byte> words(static_cast<size_t>(weight.steps) * 4);
  std::vector<float> numbers(part.format.is_wide() ? 0 : static_cast<size_t>(weight.in));
  std::byte* to = static_cast<std::byte*>(weight.panels.data()) + panel * weight.steps * kStepBytes;
  for (int64_t c = 0; c < count; ++c) {
    const View codes = part.codes.rows(row + c, 1);
    const bool is_wide = part.format.is_wide();
    if (!is_wide) read_stored_row(part, row + c, numbers.data());
    const void* const from = is_wide ? codes.data : numbers.data();
    const DType from_dtype = is_wide ? codes.dtype : DType::kF32;
    RUDDER_CHECK(convert_values(from, from_dtype, words.data(), dtype_of(weight.element), weight.in)
                     .has_value());
    for (int64_t s = 0; s < weight.steps; ++s) {
      std::memcpy(to + s * kStepBytes + (column + c) * 4, words.data() + s * 4, 4);
    }
  }
}

// Every column of one panel, from whichever parts hold them.
void pack_panel(std::span<const ops::LinearPart> parts, PanelWeight& weight, int64_t panel) {
  const int64_t begin = panel * kPanelWidth;
  const int64_t end = std::min(begin + kPanelWidth, weight.out);
  int64_t first = 0;  // of the part, in rows of the whole
  for (const ops::LinearPart& part : parts) {
    const int64_t rows = part.out();
    const int64_t from = std::max(begin, first);
    const int64_t to = std::min(end, first + rows);
    if (from < to) pack_columns(part, from - first, to - from, weight, panel, from - begin);
    first += rows;
  }
}

Result<void> pack_bias(std::span<const ops::LinearPart> parts, PanelWeight& weight) {
  const int64_t columns = weight.num_panels * kPanelWidth;
  RUDDER_TRY(weight.bias, Buffer::make(static_cast<size_t>(columns) * sizeof(float)));
  float* bias = static_cast<float*>(weight.bias.data());
  for (const ops::LinearPart& part : parts) {
    RUDDER_CHECK(!part.bias.empty());
    RUDDER_TRY_VOID(convert_values(part.bias.data, part.bias.dtype, bias, DType::kF32,
                                   part.bias.shape.numel()));
    bias += part.bias.shape.numel();
  }
  return {};
}

// Panels [begin, end) for `rows` packed rows, and their bias.
struct Product {
  const Kernels& kernels;
  const PanelWeight& weight;
  const std::byte* a;
  int64_t rows;
  float* out;
  float* last_panel;  // [rows, 16]: for a panel that is wider than what is left of `out`

  void run(int64_t begin, int64_t end) const {
    const int64_t whole = std::min(end, weight.out / kPanelWidth);
    if (begin < whole) {
      product(begin, whole - begin, out + begin * kPanelWidth, weight.out);
      add_bias(begin * kPanelWidth, (whole - begin) * kPanelWidth);
    }
    if (whole == end) return;
    const int64_t column = whole * kPanelWidth;
    product(whole, 1, last_panel, kPanelWidth);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(last_panel + r * kPanelWidth, weight.out - column, out + r * weight.out + column);
    }
    add_bias(column, weight.out - column);
  }

  void product(int64_t panel, int64_t count, float* to, int64_t ld) const {
    PanelProduct args;
    args.a = a;
    args.rows = rows;
    args.panels = weight.panel(panel);
    args.num_panels = count;
    args.steps = weight.steps;
    args.out = to;
    args.ld = ld;
    kernels.product[static_cast<int>(weight.element)](args);
  }

  void add_bias(int64_t column, int64_t width) const {
    if (weight.bias.data() == nullptr) return;
    const float* bias = static_cast<const float*>(weight.bias.data()) + column;
    for (int64_t r = 0; r < rows; ++r) kernels.add(out + r * weight.out + column, bias, width);
  }
};

Result<std::byte*> grown(Buffer& buffer, int64_t bytes) {
  if (static_cast<int64_t>(buffer.bytes()) < bytes) {
    RUDDER_TRY(buffer, Buffer::make(static_cast<size_t>(bytes)));
  }
  return static_cast<std::byte*>(buffer.data());
}

}  // namespace

void PanelWeight::read_row(int64_t index, float* to) const {
  const std::byte* from = panel(index / kPanelWidth) + index % kPanelWidth * 4;
  const int64_t per_step = 4 / element_bytes(element);
  for (int64_t i = 0; i < in; i += per_step, from += kStepBytes) {
    if (element == Element::kF32) {
      std::memcpy(to + i, from, sizeof(float));
      continue;
    }
    tensor::BF16 pair[2];
    std::memcpy(pair, from, sizeof(pair));
    to[i] = tensor::to_float(pair[0]);
    if (i + 1 < in) to[i + 1] = tensor::to_float(pair[1]);
  }
}

Result<ops::LinearWeight> pack_linear(std::span<const ops::LinearPart> parts, Element element,
                                      ThreadPool& pool) {
  auto weight = std::make_shared<PanelWeight>();
  weight->element = element;
  weight->in = parts.front().in();
  for (const ops::LinearPart& part : parts) {
    RUDDER_CHECK(part.in() == weight->in);
    weight->out += part.out();
  }
  weight->steps = round_up(weight->in * element_bytes(element), kStepBytes) / 4;
  weight->num_panels = round_up(weight->out, kPanelWidth) / kPanelWidth;
  RUDDER_TRY(weight->panels,
             Buffer::make(static_cast<size_t>(weight->num_panels * weight->steps * kStepBytes)));
  pool.parallel_for(weight->num_panels, [&](int64_t panel) { pack_panel(parts, *weight, panel); });
  if (!parts.front().bias.empty()) RUDDER_TRY_VOID(pack_bias(parts, *weight));
  ops::LinearWeight linear;
  linear.in = weight->in;
  linear.out = weight->out;
  linear.bytes = static_cast<int64_t>(weight->panels.bytes() + weight->bias.bytes());
  RUDDER_TRY(linear.format, ops::wide_format(dtype_of(element)));
  linear.packed = std::move(weight);
  return linear;
}

Result<void> multiply(const Kernels& kernels, ThreadPool& pool, ProductScratch& scratch,
                      const float* x, int64_t rows, const PanelWeight& weight, float* out) {
  if (rows == 0) return {};
  const int64_t row_bytes = weight.steps * 4;
  const int64_t tile_rows = round_up(rows, kTileRows);
  RUDDER_TRY(std::byte* const tiles, grown(scratch.row_tiles, tile_rows * row_bytes));
  const int64_t block = std::max<int64_t>(
      2 * kTileRows, kRowTileBytes / row_bytes / (2 * kTileRows) * (2 * kTileRows));
  RUDDER_TRY(std::byte* const last, grown(scratch.last_panel, std::min(rows, block) * kPanelWidth *
                                                                  int64_t{sizeof(float)}));
  auto* last_panel = reinterpret_cast<float*>(last);
  const auto pack = [&](int64_t group) {
    const int64_t row = group * kTileRows;
    kernels.pack_rows[static_cast<int>(weight.element)](
        x + row * weight.in, std::min<int64_t>(kTileRows, rows - row), weight.in, weight.steps,
        tiles + row * row_bytes);
  };
  if (rows * row_bytes < kForkBytes) {
    for (int64_t group = 0; group < tile_rows / kTileRows; ++group) pack(group);
  } else {
    pool.parallel_for(tile_rows / kTileRows, pack);
  }
  const int64_t panel_bytes = weight.steps * kStepBytes;
  int64_t claim = weight.num_panels;
  if (weight.num_panels * panel_bytes >= kForkBytes) {
    const int64_t shared = weight.num_panels / (pool.num_threads() * kClaimsPerThread);
    claim =
        round_up(std::clamp<int64_t>(shared, 1, std::max<int64_t>(1, kClaimBytes / panel_bytes)),
                 kPanelsTogether);
  }
  for (int64_t row = 0; row < rows; row += block) {
    const Product product{kernels,
                          weight,
                          tiles + row * row_bytes,
                          std::min(block, rows - row),
                          out + row * weight.out,
                          last_panel};
    pool.parallel_for((weight.num_panels + claim - 1) / claim, [&](int64_t i) {
      product.run(i * claim, std::min(weight.num_panels, (i + 1) * claim));
    });
  }
  return {};
}

}  // namespace rudder::cpu
