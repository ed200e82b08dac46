// Integers in words of 32 bits: GPTQ (AutoGPTQ's qlinear_cuda, gptqmodel's qlinear/torch.py), AWQ
// (autoawq's packing_utils.py), compressed-tensors (pack_quantized's pack_to_int32), and bytes.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "rudder/model/quantised/low_bits.h"
#include "rudder/model/quantised/stored_weight.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;

// Number `index` of a stream of words, `stride` apart, low bits first; one may lie in two words.
int word_code(const uint32_t* words, int64_t stride, int64_t index, int bits) {
  const int64_t bit = index * bits;
  const int shift = static_cast<int>(bit % 32);
  uint32_t value = words[bit / 32 * stride] >> shift;
  if (shift + bits > 32) value |= words[(bit / 32 + 1) * stride] << (32 - shift);
  return static_cast<int>(value & ((1U << bits) - 1));
}

int64_t words_of(int64_t count, int bits) {
  return (count * bits + 31) / 32;
}

const uint32_t* words(const View& view) {
  return static_cast<const uint32_t*>(view.data);
}

float scale_at(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::kF16:
      return tensor::to_float(view.as<tensor::F16>()[i]);
    case DType::kBF16:
      return tensor::to_float(view.as<tensor::BF16>()[i]);
    default:
      return view.as<float>()[i];
  }
}

Result<void> check_scales(const LowBitCall& call, const View& scales, std::string_view suffix) {
  for (int64_t i = 0; i < scales.shape.numel(); ++i) {
    const float scale = scale_at(scales, i);
    if (std::isfinite(scale)) continue;
    return fail(ErrorCode::kCorruptFile, fmt::format("{} is no scale", scale),
                call.tensors.where(suffix));
  }
  return {};
}

// The group of each input; none: they follow one another.
Result<View> take_order(const LowBitCall& call, std::string_view suffix) {
  RUDDER_TRY(const View order, call.tensors.take(suffix, Shape{call.inputs}, {DType::kI32}));
  for (int64_t k = 0; k < call.inputs; ++k) {
    const int32_t group = order.as<int32_t>()[k];
    if (group >= 0 && group < call.groups()) continue;
    return fail(ErrorCode::kCorruptFile,
                fmt::format("input {} is in group {} of {}", k, group, call.groups()),
                call.tensors.where(suffix));
  }
  return order;
}

// `code` of a row and an input and `zero` of a row and a group are unsigned; `scale` of the latter.
template <typename Code, typename Zero, typename Scale>
ops::LinearPart integers(const LowBitCall& call, const View& order, Code code, Zero zero,
                         Scale scale) {
  const ops::WeightFormat& format = call.format;
  const int half = 1 << (call.group.bits - 1);
  const auto zero_of = [&](int64_t row, int64_t group) {
    return call.group.symmetric ? half : zero(row, group);
  };
  StoredWeight out(format, call.rows, call.inputs, call.memory);
  if (format.is_wide()) {
    for (int64_t row = 0; row < call.rows; ++row) {
      for (int64_t k = 0; k < call.inputs; ++k) {
        const int64_t group = order.as<int32_t>()[k];
        const int distance = code(row, k) - zero_of(row, group);
        out.set_number(row, k, static_cast<float>(distance) * scale(row, group));
      }
    }
    return out.part();
  }
  const bool is_four = format.codes == ops::Codes::kU4;
  // I8 is unsigned less 128; fewer bits than four lie around 8 as well.
  const int shift = is_four && format.offset != ops::Offset::kMiddle ? 0 : (is_four ? 8 : 0) - half;
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t k = 0; k < call.inputs; ++k) out.set_code(row, k, code(row, k) + shift);
    for (int64_t group = 0; group < call.groups(); ++group) {
      const float by = scale(row, group);
      out.set_scale(row, group, by);
      if (format.offset == ops::Offset::kZero) out.set_zero(row, group, zero_of(row, group));
      if (format.offset == ops::Offset::kMinimum) {
        out.set_minimum(row, group, static_cast<float>(zero_of(row, group) - half) * by);
      }
    }
  }
  return out.part();
}

constexpr auto kScaleTypes = {DType::kF16, DType::kBF16, DType::kF32};

}  // namespace

// Words run along the inputs, column by column; those of zeros along the rows.
Result<ops::LinearPart> read_gptq(const LowBitCall& call) {
  const auto& [tensors, group, format, rows, inputs, reads, memory] = call;
  const int bits = group.bits;
  const int64_t groups = call.groups();
  RUDDER_TRY(const View codes,
             tensors.take(".qweight", Shape{words_of(inputs, bits), rows}, {DType::kI32}));
  RUDDER_TRY(const View zeros,
             tensors.take(".qzeros", Shape{groups, words_of(rows, bits)}, {DType::kI32}));
  RUDDER_TRY(const View scales, tensors.take(".scales", Shape{groups, rows}, kScaleTypes));
  View order;
  if (tensors.has(".g_idx")) {
    RUDDER_TRY(order, take_order(call, ".g_idx"));
    for (int64_t k = 0; k < inputs && !group.reorders; ++k) {
      if (order.as<int32_t>()[k] == (group.inputs == 0 ? 0 : k / group.inputs)) continue;
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("input {} is in group {}, and 'desc_act' is false", k,
                              order.as<int32_t>()[k]),
                  tensors.where(".g_idx"));
    }
  }
  if (!reads) return ops::LinearPart{};
  RUDDER_TRY_VOID(check_scales(call, scales, ".scales"));
  const int64_t zero_words = zeros.shape[1];
  const int mask = (1 << bits) - 1;
  return integers(
      call, order,
      [&](int64_t row, int64_t k) { return word_code(words(codes) + row, call.rows, k, bits); },
      [&](int64_t row, int64_t g) {
        const int stored = word_code(words(zeros) + g * zero_words, 1, row, bits);
        return call.group.zeros_less_one ? (stored + 1) & mask : stored;
      },
      [&](int64_t row, int64_t g) { return scale_at(scales, g * call.rows + row); });
}

// Words run along the rows, eight in the order 0 2 4 6 1 3 5 7.
Result<ops::LinearPart> read_awq(const LowBitCall& call) {
  const auto& [tensors, group, format, rows, inputs, reads, memory] = call;
  if (rows % 8 != 0) {
    return fail(ErrorCode::kUnsupported, fmt::format("{} outputs are not whole words of 8", rows),
                tensors.where(".qweight"));
  }
  const int64_t width = rows / 8;
  RUDDER_TRY(const View codes, tensors.take(".qweight", Shape{inputs, width}, {DType::kI32}));
  RUDDER_TRY(const View zeros, tensors.take(".qzeros", Shape{call.groups(), width}, {DType::kI32}));
  RUDDER_TRY(const View scales, tensors.take(".scales", Shape{call.groups(), rows}, kScaleTypes));
  if (!reads) return ops::LinearPart{};
  RUDDER_TRY_VOID(check_scales(call, scales, ".scales"));
  const auto at = [width](const View& view, int64_t row, int64_t line) {
    constexpr int kNibbleOf[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return static_cast<int>(words(view)[line * width + row / 8] >> (4 * kNibbleOf[row % 8]) & 15);
  };
  return integers(
      call, {}, [&](int64_t row, int64_t k) { return at(codes, row, k); },
      [&](int64_t row, int64_t g) { return at(zeros, row, g); },
      [&](int64_t row, int64_t g) { return scale_at(scales, g * call.rows + row); });
}

namespace {

// One number for the whole weight, or one a row and group.
Result<View> take_row_scales(const LowBitCall& call) {
  RUDDER_TRY(const View any, call.tensors.take_any(".weight_scale"));
  const bool is_single = call.group.scales == WeightScales::kTensor && any.shape.numel() == 1;
  const Shape shape = is_single ? any.shape : Shape{call.rows, call.groups()};
  return call.tensors.take(".weight_scale", shape, kScaleTypes);
}

float row_scale_at(const View& scales, int64_t row, int64_t group) {
  if (scales.shape.numel() == 1) return scale_at(scales, 0);
  return scale_at(scales, row * scales.shape[1] + group);
}

}  // namespace

// Words run along the inputs of a row, those of zeros along the rows; all of them plus half.
Result<ops::LinearPart> read_packed_integers(const LowBitCall& call) {
  const auto& [tensors, group, format, rows, inputs, reads, memory] = call;
  const int bits = group.bits;
  const int64_t width = words_of(inputs, bits);
  RUDDER_TRY(const View codes, tensors.take(".weight_packed", Shape{rows, width}, {DType::kI32}));
  RUDDER_TRY(const View scales, take_row_scales(call));
  RUDDER_TRY(const View shape, tensors.take(".weight_shape", Shape{2}, {DType::kI64, DType::kI32}));
  const auto extent = [&](int i) {
    return shape.dtype == DType::kI64 ? shape.as<int64_t>()[i] : shape.as<int32_t>()[i];
  };
  if (extent(0) != rows || extent(1) != inputs) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("it says [{}, {}], the config asks for [{}, {}]", extent(0), extent(1),
                            rows, inputs),
                tensors.where(".weight_shape"));
  }
  View zeros;
  if (!group.symmetric) {
    RUDDER_TRY(zeros, tensors.take(".weight_zero_point", Shape{words_of(rows, bits), call.groups()},
                                   {DType::kI32}));
  }
  View order;
  if (tensors.has(".weight_g_idx")) {
    RUDDER_TRY(order, take_order(call, ".weight_g_idx"));
  }
  if (!reads) return ops::LinearPart{};
  RUDDER_TRY_VOID(check_scales(call, scales, ".weight_scale"));
  return integers(
      call, order,
      [&](int64_t row, int64_t k) { return word_code(words(codes) + row * width, 1, k, bits); },
      [&](int64_t row, int64_t g) {
        return word_code(words(zeros) + g, zeros.shape[1], row, bits);
      },
      [&](int64_t row, int64_t g) { return row_scale_at(scales, row, g); });
}

Result<ops::LinearPart> read_int8(const LowBitCall& call) {
  const auto& [tensors, group, format, rows, inputs, reads, memory] = call;
  RUDDER_TRY(const View codes, tensors.take(".weight", Shape{rows, inputs}, {DType::kI8}));
  RUDDER_TRY(const View scales, take_row_scales(call));
  View zeros;
  if (!group.symmetric) {
    const bool is_single = scales.shape.numel() == 1;
    RUDDER_TRY(zeros,
               tensors.take(".weight_zero_point",
                            is_single ? scales.shape : Shape{rows, call.groups()}, {DType::kI8}));
  }
  if (!reads) return ops::LinearPart{};
  RUDDER_TRY_VOID(check_scales(call, scales, ".weight_scale"));
  return integers(
      call, {},
      [&](int64_t row, int64_t k) { return codes.as<int8_t>()[row * call.inputs + k] + 128; },
      [&](int64_t row, int64_t g) {
        const int64_t at = zeros.shape.numel() == 1 ? 0 : row * call.groups() + g;
        return zeros.as<int8_t>()[at] + 128;
      },
      [&](int64_t row, int64_t g) { return row_scale_at(scales, row, g); });
}

}  // namespace rudder::model
