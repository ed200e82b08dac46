#include "rudder/model/quantised/low_bits.h"

#include <fmt/format.h>

#include <array>

#include "rudder/base/check.h"

namespace rudder::model {
namespace {

using ops::Codes;
using ops::CodeTable;
using ops::Offset;
using ops::ScaleType;
using ops::WeightFormat;
using tensor::DType;

struct Family {
  StoredAs as;
  const char* codes;  // the tensor that a module of it has
  Result<ops::LinearPart> (*read)(const LowBitCall&);
};
constexpr std::array kFamilies = {Family{StoredAs::kGptq, ".qweight", read_gptq},
                                  Family{StoredAs::kAwq, ".qweight", read_awq},
                                  Family{StoredAs::kPacked, ".weight_packed", read_packed_integers},
                                  Family{StoredAs::kInt8, ".weight", read_int8},
                                  Family{StoredAs::kNvfp4, ".weight_packed", read_fp4},
                                  Family{StoredAs::kMxfp4, ".weight_packed", read_fp4},
                                  Family{StoredAs::kMxfp4Stack, "_blocks", nullptr},
                                  Family{StoredAs::kFp8Blocks, ".weight", read_fp8_blocks},
                                  Family{StoredAs::kNf4, ".weight", read_nf4},
                                  Family{StoredAs::kHqq, ".W_q", read_hqq}};

const Family* family_of(StoredAs as) {
  for (const Family& family : kFamilies) {
    if (family.as == as) return &family;
  }
  return nullptr;
}

Result<ScaleType> scale_type(const ModuleTensors& tensors, std::string_view suffix) {
  RUDDER_TRY(const tensor::View scales, tensors.take_any(suffix));
  switch (scales.dtype) {
    case DType::kF16:
      return ScaleType::kF16;
    case DType::kBF16:
      return ScaleType::kBF16;
    case DType::kF32:
      return ScaleType::kF32;
    default:
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("scales of type {} are not supported", tensor::dtype_name(scales.dtype)),
          tensors.where(suffix));
  }
}

// Codes of up to four bits are U4, of eight I8: there a zero is no U8, and becomes a minimum.
Result<WeightFormat> integer_format(const ModuleTensors& tensors, const Quantisation::Group& group,
                                    std::string_view scales) {
  WeightFormat format{.group = group.inputs};
  RUDDER_TRY(format.scale, scale_type(tensors, scales));
  if (group.bits <= 4) {
    format.codes = Codes::kU4;
    format.offset = group.symmetric ? Offset::kMiddle : Offset::kZero;
  } else {
    format.codes = Codes::kI8;
    if (!group.symmetric) {
      format.offset = Offset::kMinimum;
      format.scale = ScaleType::kF32;
    }
  }
  return format;
}

}  // namespace

bool has_low_bits(const ModuleTensors& tensors, const Quantisation::Group& group) {
  const Family* const family = family_of(group.as);
  if (family == nullptr || !tensors.has(family->codes)) return false;
  const auto codes =
      ModuleTensors(tensors.checkpoint(), tensors.module(), nullptr).take_any(family->codes);
  if (!codes) return false;
  // A wide weight has the same name.
  const DType dtype = codes->dtype;
  return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16;
}

Result<WeightFormat> low_bit_format(const ModuleTensors& tensors,
                                    const Quantisation::Group& group) {
  const WeightFormat reordered{.codes = Codes::kF32};
  switch (group.as) {
    case StoredAs::kGptq:
      if (group.reorders && tensors.has(".g_idx")) return reordered;
      return integer_format(tensors, group, ".scales");
    case StoredAs::kAwq:
      return integer_format(tensors, group, ".scales");
    case StoredAs::kPacked:
      if (tensors.has(".weight_g_idx")) return reordered;
      return integer_format(tensors, group, ".weight_scale");
    case StoredAs::kInt8:
      return integer_format(tensors, group, ".weight_scale");
    case StoredAs::kNvfp4:
      return WeightFormat{.codes = Codes::kU4,
                          .scale = ScaleType::kF32,
                          .group = group.inputs,
                          .table = CodeTable::kE2M1};
    case StoredAs::kMxfp4:
      return WeightFormat{.codes = Codes::kU4,
                          .scale = ScaleType::kE8M0,
                          .group = group.inputs,
                          .table = CodeTable::kE2M1};
    case StoredAs::kMxfp4Stack:
      return ops::kMxfp4;
    case StoredAs::kFp8Blocks:
      return WeightFormat{.codes = Codes::kF8E4M3,
                          .scale = ScaleType::kF32,
                          .group = group.inputs,
                          .block_rows = group.rows};
    case StoredAs::kNf4: {
      RUDDER_TRY(const int64_t block, nf4_block(tensors));
      return WeightFormat{.codes = Codes::kU4,
                          .scale = ScaleType::kF32,
                          .group = static_cast<int32_t>(block),
                          .table = CodeTable::kNf4};
    }
    case StoredAs::kHqq:
      return WeightFormat{.codes = group.bits == 8 ? Codes::kI8 : Codes::kU4,
                          .scale = ScaleType::kF32,
                          .group = group.inputs,
                          .offset = Offset::kMinimum};
    case StoredAs::kWide:
    case StoredAs::kFp8Rows:
      break;
  }
  RUDDER_CHECK(false, "'{}' is not of few bits", tensors.module());
}

Result<ops::LinearPart> read_low_bits(const ModuleTensors& tensors,
                                      const Quantisation::Group& group, int64_t rows,
                                      int64_t inputs, bool reads, Memory& memory) {
  const Family* const family = family_of(group.as);
  RUDDER_CHECK(family != nullptr && family->read != nullptr);
  RUDDER_TRY(const WeightFormat format, low_bit_format(tensors, group));
  if (inputs % ops::codes_per_element(format.codes) != 0) {
    return fail(ErrorCode::kUnsupported, fmt::format("rows of {} numbers of four bits", inputs),
                tensors.where(family->codes));
  }
  // Of inputs, which are not rounded here.
  for (const std::string_view suffix :
       {".input_scale", ".input_zero_point", ".input_global_scale"}) {
    tensors.pass(suffix);
  }
  return family->read({.tensors = tensors,
                       .group = group,
                       .format = format,
                       .rows = rows,
                       .inputs = inputs,
                       .reads = reads,
                       .memory = memory});
}

}  // namespace rudder::model
