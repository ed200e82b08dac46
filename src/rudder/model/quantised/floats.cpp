// Small floats: E4M3 with scales of blocks (DeepSeek's fp8), E2M1 (compressed-tensors' NVFP4 and
// MXFP4), NF4 of bitsandbytes; and HQQ, whose zeros are floats.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "rudder/model/quantised/low_bits.h"
#include "rudder/model/quantised/stored_weight.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;

float wide_at(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::kF16:
      return tensor::to_float(view.as<tensor::F16>()[i]);
    case DType::kBF16:
      return tensor::to_float(view.as<tensor::BF16>()[i]);
    case DType::kF8E4M3:
      return tensor::to_float(view.as<tensor::F8E4M3>()[i]);
    default:
      return view.as<float>()[i];
  }
}

Result<float> finite(float value, const std::string& where) {
  if (std::isfinite(value)) return value;
  return fail(ErrorCode::kCorruptFile, fmt::format("{} is no scale", value), where);
}

Result<float> finite(const LowBitCall& call, float value, std::string_view suffix) {
  return finite(value, call.tensors.where(suffix));
}

constexpr auto kZeroTypes = {DType::kF16, DType::kBF16, DType::kF32};
constexpr std::string_view kState = ".weight.quant_state.bitsandbytes__nf4";

Result<weights::HfConfig> read_state(const ModuleTensors& tensors) {
  RUDDER_TRY(const View text, tensors.take_any(kState));
  if (text.dtype != DType::kU8) {
    return fail(ErrorCode::kCorruptFile, "it is no text", tensors.where(kState));
  }
  return weights::HfConfig::parse(
      {static_cast<const char*>(text.data), static_cast<size_t>(text.shape.numel())},
      tensors.where(kState));
}

int64_t ceil_of(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

Result<ops::LinearPart> fp8_block_part(const ops::WeightFormat& format, const View& codes,
                                       const View& scales, const std::string& where,
                                       Memory& memory) {
  const int64_t rows = codes.shape[0];
  const int64_t inputs = codes.shape[1];
  StoredWeight out(format, rows, inputs, memory);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < inputs; ++k) {
      out.set_code(row, k, codes.as<tensor::F8E4M3>()[row * inputs + k].bits);
    }
  }
  for (int64_t block = 0; block < scales.shape[0]; ++block) {
    for (int64_t g = 0; g < scales.shape[1]; ++g) {
      RUDDER_TRY(const float scale, finite(wide_at(scales, block * scales.shape[1] + g), where));
      out.set_scale(block, g, scale);
    }
  }
  return out.part();
}

// A scale is called an inverse one.
Result<ops::LinearPart> read_fp8_blocks(const LowBitCall& call) {
  const auto& [tensors, group, format, rows, inputs, reads, memory] = call;
  const std::string_view suffix =
      tensors.has(".weight_scale_inv") ? ".weight_scale_inv" : ".weight_scale";
  const Shape shape{ceil_of(rows, group.rows), call.groups()};
  RUDDER_TRY(const View codes, tensors.take(".weight", Shape{rows, inputs}, {DType::kF8E4M3}));
  RUDDER_TRY(const View scales,
             tensors.take(suffix, shape, {DType::kF32, DType::kBF16, DType::kF16}));
  if (!reads) return ops::LinearPart{};
  return fp8_block_part(format, codes, scales, tensors.where(suffix), memory);
}

// NVFP4: code * (scale / global scale); MXFP4: code * 2^(scale - 127). The even input is in the low
// bits.
Result<ops::LinearPart> read_fp4(const LowBitCall& call) {
  const auto& [tensors, group, format, rows, inputs, reads, memory] = call;
  const bool is_mx = group.as == StoredAs::kMxfp4;
  const int64_t groups = call.groups();
  RUDDER_TRY(const View codes,
             tensors.take(".weight_packed", Shape{rows, inputs / 2}, {DType::kU8}));
  RUDDER_TRY(const View scales, tensors.take(".weight_scale", Shape{rows, groups},
                                             {is_mx ? DType::kU8 : DType::kF8E4M3}));
  float global = 1;
  if (!is_mx) {
    RUDDER_TRY(const View one, tensors.take(".weight_global_scale", Shape{1}, {DType::kF32}));
    global = one.as<float>()[0];
    if (!std::isfinite(global) || global <= 0) {
      return fail(ErrorCode::kCorruptFile, fmt::format("{} is no scale", global),
                  tensors.where(".weight_global_scale"));
    }
  }
  if (!reads) return ops::LinearPart{};
  StoredWeight out(format, rows, inputs, memory);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < inputs; ++k) {
      const uint8_t pair = codes.as<uint8_t>()[(row * inputs + k) / 2];
      out.set_code(row, k, pair >> (k % 2 * 4) & 15);
    }
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = row * groups + g;
      const float scale =
          is_mx ? std::ldexp(1.0f, scales.as<uint8_t>()[at] - 127) : wide_at(scales, at) / global;
      RUDDER_TRY(const float checked, finite(call, scale, ".weight_scale"));
      out.set_scale(row, g, checked);
    }
  }
  return out.part();
}

Result<int64_t> nf4_block(const ModuleTensors& tensors) {
  RUDDER_TRY(const weights::HfConfig state, read_state(tensors));
  RUDDER_TRY(const std::string type, state.string("quant_type"));
  if (type != "nf4") {
    return fail(ErrorCode::kUnsupported, fmt::format("'quant_type' is '{}'", type),
                tensors.where(kState));
  }
  return state.integer("blocksize", 16, 4096);
}

// The odd input is in the low bits. absmax may be quantised itself: number `code` of a map, times
// a number for each block of these, plus an offset.
Result<ops::LinearPart> read_nf4(const LowBitCall& call) {
  const auto& [tensors, group, format, rows, inputs, reads, memory] = call;
  const int64_t block = format.group;
  const int64_t count = rows * inputs;
  RUDDER_TRY(const weights::HfConfig state, read_state(tensors));
  if (inputs % block != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("blocks of {} cross the ends of rows of {}", block, inputs),
                tensors.where(kState));
  }
  RUDDER_TRY(const View codes, tensors.take(".weight", Shape{count / 2, 1}, {DType::kU8}));
  RUDDER_TRY(const View table, tensors.take(".weight.quant_map", Shape{16}, {DType::kF32}));
  for (int i = 0; i < 16; ++i) {
    if (std::abs(table.as<float>()[i] - ops::kNf4Numbers[i]) <= 1e-6f) continue;
    return fail(ErrorCode::kUnsupported, fmt::format("number {} is not that of NF4", i),
                tensors.where(".weight.quant_map"));
  }
  const bool is_nested = tensors.has(".weight.nested_absmax");
  const int64_t blocks = count / block;
  RUDDER_TRY(const View absmax,
             tensors.take(".weight.absmax", Shape{blocks}, {is_nested ? DType::kU8 : DType::kF32}));
  View outer;
  View map;
  int64_t outer_block = 1;
  double offset = 0;
  if (is_nested) {
    RUDDER_TRY(outer_block, state.integer("nested_blocksize", 1, 1 << 20));
    RUDDER_TRY(offset, state.number("nested_offset"));
    RUDDER_TRY(outer, tensors.take(".weight.nested_absmax", Shape{ceil_of(blocks, outer_block)},
                                   {DType::kF32}));
    RUDDER_TRY(map, tensors.take(".weight.nested_quant_map", Shape{256}, {DType::kF32}));
  }
  if (!reads) return ops::LinearPart{};
  StoredWeight out(format, rows, inputs, memory);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < inputs; ++k) {
      const uint8_t pair = codes.as<uint8_t>()[(row * inputs + k) / 2];
      out.set_code(row, k, k % 2 == 0 ? pair >> 4 : pair & 15);
    }
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const float most =
        is_nested ? map.as<float>()[absmax.as<uint8_t>()[b]] * outer.as<float>()[b / outer_block] +
                        static_cast<float>(offset)
                  : absmax.as<float>()[b];
    RUDDER_TRY(const float scale, finite(call, most, ".weight.absmax"));
    out.set_scale(b * block / inputs, b * block % inputs / block, scale);
  }
  return out.part();
}

// number = (code - zero) * scale with a zero that is a float. Rows of groups; a byte has one of the
// first half of them in its high bits, and one of the second half.
Result<ops::LinearPart> read_hqq(const LowBitCall& call) {
  const auto& [tensors, group, format, rows, inputs, reads, memory] = call;
  const int64_t groups = rows * call.groups();
  const bool is_byte = group.bits == 8;
  if (inputs % group.inputs != 0 || (!is_byte && groups % 2 != 0)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("groups of {} in rows of {}", group.inputs, inputs),
                tensors.where(".W_q"));
  }
  const int64_t half = is_byte ? groups : groups / 2;
  RUDDER_TRY(const View codes, tensors.take(".W_q", Shape{half, group.inputs}, {DType::kU8}));
  RUDDER_TRY(const View scales, tensors.take(".scale", Shape{groups, 1}, kZeroTypes));
  RUDDER_TRY(const View zeros, tensors.take(".zero", Shape{groups, 1}, kZeroTypes));
  for (const std::string_view suffix :
       {".axis", ".channel_wise", ".compute_dtype", ".encoded_state_dict", ".group_size", ".nbits",
        ".offload_meta", ".optimize", ".packing", ".quant_scale", ".quant_zero", ".round_zero",
        ".shape", ".stores_quant_config", ".unpack_view_dtype", ".view_as_float"}) {
    tensors.pass(suffix);
  }
  if (!reads) return ops::LinearPart{};
  StoredWeight out(format, rows, inputs, memory);
  for (int64_t at = 0; at < groups; ++at) {
    const int64_t row = at / call.groups();
    const int64_t g = at % call.groups();
    for (int64_t i = 0; i < group.inputs; ++i) {
      const uint8_t byte = codes.as<uint8_t>()[at % half * group.inputs + i];
      const int code = is_byte ? byte - 128 : (at < half ? byte >> 4 : byte & 15);
      out.set_code(row, g * group.inputs + i, code);
    }
    RUDDER_TRY(const float scale, finite(call, wide_at(scales, at), ".scale"));
    RUDDER_TRY(const float zero, finite(call, wide_at(zeros, at), ".zero"));
    out.set_scale(row, g, scale);
    out.set_minimum(row, g, (zero - (is_byte ? 128.0f : 0.0f)) * scale);
  }
  return out.part();
}

}  // namespace rudder::model
