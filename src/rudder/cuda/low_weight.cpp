#include "rudder/cuda/low_weight.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/rows/pack_low_bits.h"
#include "rudder/cuda/linear.h"
#include "rudder/cuda/load_scratch.h"

namespace rudder::cuda {
namespace {

using ops::Codes;
using ops::CodeTable;
using ops::LinearPart;
using ops::Offset;
using ops::ScaleType;
using ops::WeightFormat;
using tensor::DType;
using tensor::View;

LowOffset offset_of(Offset offset) {
  switch (offset) {
    case Offset::kNone:
      return LowOffset::kNone;
    case Offset::kMinimum:
      return LowOffset::kMinimum;
    case Offset::kZero:
      return LowOffset::kZero;
    case Offset::kMiddle:
      return LowOffset::kMiddle;
  }
  RUDDER_CHECK(false, "offset {}", static_cast<int>(offset));
}

Element scale_element(ScaleType type) {
  return type == ScaleType::kF16    ? Element::kF16
         : type == ScaleType::kBF16 ? Element::kBf16
                                    : Element::kF32;
}

// Inputs that share a scale on the device; 0: those of the file cannot.
int32_t group_of(const WeightFormat& file) {
  if (file.group == 0) return kLowChunk;
  for (const int32_t group : {128, 64, 32, 16}) {
    if (file.group % group == 0) return group;
  }
  return 0;
}

// Numbers of a table take 8 bits.
LowCode code_of(const WeightFormat& file) {
  if (file.codes == Codes::kF8E4M3) return LowCode::kE4M3;
  return file.codes == Codes::kU4 && file.table == CodeTable::kNone ? LowCode::kU4 : LowCode::kI8;
}

// `of_wide`: what wide parts are rounded to.
Result<LowBits> form_of(std::span<const LinearPart> parts, const WeightFormat& of_wide) {
  const auto file_of = [&](const LinearPart& part) -> const WeightFormat& {
    return part.format.is_wide() ? of_wide : part.format;
  };
  LowBits form{code_of(file_of(parts[0])), kLowChunk, true, true};
  for (const LinearPart& part : parts) {
    const WeightFormat& file = file_of(part);
    if ((code_of(file) == LowCode::kE4M3) != (form.code == LowCode::kE4M3)) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{} and {} are no parts of one weight on a GPU",
                              ops::format_name(file_of(parts[0])), ops::format_name(file)),
                  "quantization");
    }
    form.is_by_row = form.is_by_row && file.codes == Codes::kI8 && file.group == 0 &&
                     file.offset == Offset::kNone;
    if (code_of(file) != LowCode::kU4) form.code = code_of(file);
    form.group = std::min(form.group, group_of(file));
    form.is_zero = form.is_zero && file.offset != Offset::kMinimum;
  }
  return form;
}

WeightFormat format_of(const LowBits& form) {
  return {.codes = form.code == LowCode::kU4   ? Codes::kU4
                   : form.code == LowCode::kI8 ? Codes::kI8
                                               : Codes::kF8E4M3,
          .scale = ScaleType::kF16,
          .group = form.group,
          .offset = Offset::kMinimum,
          .tile_rows = kLowBlockRows,
          .tile_inputs = kLowChunk};
}

}  // namespace

Result<WeightFormat> low_stored_format(const WeightFormat& file) {
  if (file.is_wide() || file.table == CodeTable::kNf4 || group_of(file) == 0) {
    return fail(ErrorCode::kUnsupported, fmt::format("the CUDA backend multiplies no weights of {}",
                                                     ops::format_name(file)));
  }
  return format_of({code_of(file), group_of(file)});
}

namespace {

// Where some parts of a weight go.
struct LowRoom {
  uint8_t* blocks;
  float* row_factor;
  bool interleaves;
};

Result<void> pack_parts(std::span<const LinearPart> parts, const LowBits& form, const LowRoom& room,
                        Uploader& uploader, cudaStream_t stream) {
  const int64_t in = parts[0].in();
  int64_t out = 0;
  for (const LinearPart& part : parts) out += part.out();
  LoadScratch scratch(stream);
  PlainLowRows plain;
  plain.rows = out;
  plain.in = in;
  plain.group = form.is_by_row ? static_cast<int32_t>(in) : form.group;
  const int64_t groups = (in + plain.group - 1) / plain.group;
  RUDDER_TRY(plain.codes, scratch.allocate<int8_t>(out * in));
  RUDDER_TRY(plain.scales, scratch.allocate<float>(out * groups));
  RUDDER_TRY(plain.offsets, scratch.allocate<float>(out * groups));
  int64_t row = 0;
  for (const LinearPart& part : parts) {
    PlainLowRows to = plain;
    to.codes += row * in;
    to.scales += row * groups;
    to.offsets += row * groups;
    to.rows = part.out();
    row += part.out();
    if (part.format.is_wide()) {
      RUDDER_TRY(void* const wide, scratch.upload(part.codes, uploader));
      RUDDER_CUDA_TRY(
          launch_round_low_rows({wide, element_of(part.codes.dtype), low_code_bits(form.code), to},
                                stream),
          "make_linear", "");
      continue;
    }
    ReadLowPartParams params;
    RUDDER_TRY(params.codes, scratch.upload(part.codes, uploader));
    RUDDER_TRY(params.scales, scratch.upload(part.scales, uploader));
    if (!part.offsets.empty()) {
      RUDDER_TRY(params.offsets, scratch.upload(part.offsets, uploader));
    }
    params.is_u4 = part.format.codes == Codes::kU4;
    params.table = part.format.table;
    params.scale_element = scale_element(part.format.scale);
    params.scales_are_e8m0 = part.format.scale == ScaleType::kE8M0;
    params.file_group = part.format.group == 0 ? in : part.format.group;
    params.block_rows = part.format.block_rows;
    params.offset = offset_of(part.format.offset);
    params.takes_zeros = form.is_zero;
    params.to = to;
    RUDDER_CUDA_TRY(launch_read_low_part(params, stream), "make_linear", "");
  }
  PackLowBitsParams pack;
  pack.from = plain;
  pack.form = form;
  pack.interleaves = room.interleaves;
  pack.to = room.blocks;
  pack.row_factor = room.row_factor;
  RUDDER_CUDA_TRY(launch_pack_low_bits(pack, stream), "make_linear", "");
  return {};
}

}  // namespace

Result<WeightFormat> make_low_weight(std::span<const LinearPart> parts, int64_t experts,
                                     const WeightFormat& of_wide, DeviceMemory& memory,
                                     Uploader& uploader, cudaStream_t stream, CudaWeight& weight) {
  RUDDER_TRY(const LowBits form, form_of(parts, of_wide));
  const size_t each = parts.size() / static_cast<size_t>(experts);
  int64_t out = 0;  // of one
  for (const LinearPart& part : parts.first(each)) out += part.out();
  const int64_t bytes = low_weight_bytes(form, out, parts[0].in());
  RUDDER_TRY(weight.weight, memory.allocate_raw(DType::kU8, {experts, bytes}));
  RUDDER_TRY(weight.scale, memory.allocate_raw(DType::kF32, {experts * out}));
  weight.low = form;
  for (int64_t e = 0; e < experts; ++e) {
    const LowRoom room{static_cast<uint8_t*>(weight.weight.data) + e * bytes,
                       static_cast<float*>(weight.scale.data) + e * out, weight.interleaves};
    RUDDER_TRY_VOID(pack_parts(parts.subspan(static_cast<size_t>(e) * each, each), form, room,
                               uploader, stream));
  }
  return format_of(form);
}

}  // namespace rudder::cuda
