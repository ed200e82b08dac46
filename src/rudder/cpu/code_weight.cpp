#include "rudder/cpu/code_weight.h"

#include <cstring>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/ops/stored_row.h"

namespace rudder::cpu {
namespace {

using ops::Codes;
using ops::CodeTable;
using ops::LinearPart;
using ops::Offset;
using ops::WeightFormat;
using tensor::DType;
using tensor::View;

constexpr int64_t kStepInputs = 4;

// Numbers of a table that are whole ones times a unit lie above -middle units.
void set_table(const float (&numbers)[16], float unit, int32_t middle, CodeLayout& layout) {
  layout.kind = CodeKind::kTable;
  layout.middle = middle;
  layout.unit = unit;
  for (int code = 0; code < 16; ++code) {
    layout.table[code] = static_cast<uint8_t>(static_cast<int32_t>(numbers[code] / unit) + middle);
  }
}

// How codes are numbers.
void set_meaning(const WeightFormat& format, CodeLayout& layout) {
  layout.scale = format.scale;
  layout.offset = format.offset;
  if (format.offset == Offset::kMiddle) {
    layout.offset = Offset::kNone;
    layout.middle = ops::kMiddleCode;
  }
  if (format.codes == Codes::kI8) {
    layout.kind = CodeKind::kU8;
    layout.middle = 128;
  }
  if (format.table == CodeTable::kE2M1) set_table(ops::kE2M1Numbers, 0.5f, 12, layout);
  if (format.table == CodeTable::kIq4Nl) set_table(ops::kIq4NlNumbers, 1, 127, layout);
}

CodeLayout layout_of(const WeightFormat& format, int64_t in) {
  CodeLayout layout;
  set_meaning(format, layout);
  layout.blocks = round_up(in, kCodeBlock) / kCodeBlock;
  layout.halves = format.group == kCodeBlock / 2;
  layout.group_blocks = layout.halves       ? 1
                        : format.group == 0 ? layout.blocks
                                            : format.group / kCodeBlock;
  const int64_t groups = layout.halves
                             ? 2 * layout.blocks
                             : round_up(layout.blocks, layout.group_blocks) / layout.group_blocks;
  // Of one group and one row.
  const ops::StoredParts one = ops::stored_parts(format, 1, std::max(format.group, 2));
  layout.scales_at =
      layout.blocks * kPanelWidth * kCodeBlock / ops::codes_per_element(format.codes);
  layout.offsets_at = layout.scales_at + groups * kPanelWidth * one.scales.bytes();
  layout.panel_bytes =
      round_up(layout.offsets_at + groups * kPanelWidth * one.offsets.bytes(), kStepBytes);
  layout.row_bytes = layout.blocks * static_cast<int64_t>(layout.halves ? sizeof(RowBlock<2>)
                                                                        : sizeof(RowBlock<1>));
  return layout;
}

class CodeWeight final : public PanelledWeight {
 public:
  CodeWeight(const WeightFormat& format, int64_t in)
      : format_(format), layout_(layout_of(format, in)) {}

  Result<void> pack(std::span<const LinearPart> parts, ThreadPool& pool) {
    RUDDER_TRY_VOID(allocate(parts, layout_.panel_bytes));
    pool.parallel_for(num_panels(), [&](int64_t index) {
      for_columns(parts, index,
                  [&](const LinearPart& part, int64_t row, int64_t column, int64_t count) {
                    for (int64_t c = 0; c < count; ++c) {
                      pack_column(part, row + c, panel(index), column + c);
                    }
                  });
    });
    return {};
  }

  // As the file has the row again, so that its numbers are those of read_stored_row().
  void read_row(int64_t index, float* to) const override {
    const ops::StoredParts shape = ops::stored_parts(format_, 1, in());
    std::vector<std::byte> codes(static_cast<size_t>(shape.codes.bytes()));
    std::vector<std::byte> scales(static_cast<size_t>(shape.scales.bytes()));
    std::vector<std::byte> offsets(static_cast<size_t>(shape.offsets.bytes()));
    const std::byte* const from = panel(index / kPanelWidth);
    const int64_t column = index % kPanelWidth;
    for (int64_t i = 0; i < in(); ++i) {
      const uint8_t code = code_at(from, column, i);
      std::byte& at = codes[static_cast<size_t>(i / ops::codes_per_element(format_.codes))];
      at = is_u4() ? at | std::byte(i % 2 == 0 ? code : code << 4) : std::byte(code ^ 0x80);
    }
    const auto gather = [column](const std::byte* numbers, std::vector<std::byte>& row,
                                 const ops::StoredPart& part) {
      const auto bytes = static_cast<size_t>(tensor::dtype_bytes(part.dtype));
      for (int64_t g = 0; g < part.columns; ++g) {
        std::memcpy(row.data() + static_cast<size_t>(g) * bytes,
                    numbers + static_cast<size_t>(g * kPanelWidth + column) * bytes, bytes);
      }
    };
    gather(from + layout_.scales_at, scales, shape.scales);
    gather(from + layout_.offsets_at, offsets, shape.offsets);
    const auto view = [](std::vector<std::byte>& bytes, const ops::StoredPart& part) {
      return View{bytes.data(), part.dtype, {part.rows, part.columns}};
    };
    LinearPart part;
    part.format = format_;
    part.codes = view(codes, shape.codes);
    part.scales = view(scales, shape.scales);
    if (shape.offsets.rows > 0) part.offsets = view(offsets, shape.offsets);
    read_stored_row(part, 0, to);
  }

 protected:
  void pack_rows(const Kernels& kernels, const float* x, int64_t count,
                 std::byte* to) const override {
    kernels.round_rows(layout_, x, count, in(), to);
  }
  int64_t row_bytes() const override { return layout_.row_bytes; }
  void product(const Kernels& kernels, const PanelCall& call) const override {
    CodeProduct args;
    args.layout = &layout_;
    args.a = call.a;
    args.rows = call.rows;
    args.panels = panel(call.panel);
    args.num_panels = call.count;
    args.out = call.out;
    args.ld = call.ld;
    kernels.code_product(args);
  }

 private:
  bool is_u4() const { return format_.codes == Codes::kU4; }

  // Of a column's code i in a panel; of U4 two steps share it.
  int64_t byte_at(int64_t column, int64_t i) const {
    const int64_t step = is_u4() ? i / (2 * kStepInputs) : i / kStepInputs;
    return step * kStepBytes + column * kStepInputs + i % kStepInputs;
  }
  static bool is_high(int64_t i) { return i / kStepInputs % 2 == 1; }
  uint8_t code_at(const std::byte* panel, int64_t column, int64_t i) const {
    const auto byte = std::to_integer<uint8_t>(panel[byte_at(column, i)]);
    if (!is_u4()) return byte;
    return is_high(i) ? byte >> 4 : byte & 15;
  }

  void pack_column(const LinearPart& part, int64_t row, std::byte* panel, int64_t column) const {
    const auto* codes = part.codes.rows(row, 1).as<uint8_t>();
    for (int64_t i = 0; i < in(); ++i) {
      std::byte& to = panel[byte_at(column, i)];
      if (is_u4()) {
        const int code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
        to |= std::byte(is_high(i) ? code << 4 : code);
      } else {
        to = std::byte(codes[i] ^ 0x80);  // + 128
      }
    }
    const auto spread = [&](const View& numbers, std::byte* to) {
      const auto bytes = static_cast<size_t>(tensor::dtype_bytes(numbers.dtype));
      const auto* from = numbers.rows(row, 1).as<std::byte>();
      for (int64_t g = 0; g < numbers.shape[1]; ++g) {
        std::memcpy(to + static_cast<size_t>(g * kPanelWidth + column) * bytes,
                    from + static_cast<size_t>(g) * bytes, bytes);
      }
    };
    spread(part.scales, panel + layout_.scales_at);
    if (!part.offsets.empty()) spread(part.offsets, panel + layout_.offsets_at);
  }

  WeightFormat format_;
  CodeLayout layout_;
};

}  // namespace

bool keeps_codes(const WeightFormat& format) {
  const bool is_code = format.codes == Codes::kU4 || format.codes == Codes::kI8;
  return is_code && format.table != CodeTable::kNf4 && !format.is_wide() &&
         format.block_rows == 1 &&
         (format.group == kCodeBlock / 2 || format.group % kCodeBlock == 0);
}

Result<std::shared_ptr<const FastWeight>> pack_codes(std::span<const LinearPart> parts,
                                                     ThreadPool& pool) {
  const LinearPart& first = parts.front();
  auto weight = std::make_shared<CodeWeight>(first.format, first.in());
  RUDDER_TRY_VOID(weight->pack(parts, pool));
  return weight;
}

}  // namespace rudder::cpu
