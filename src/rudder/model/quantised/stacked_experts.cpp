#include "rudder/model/quantised/stacked_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rudder/model/quantised/stored_weight.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::View;

constexpr int64_t kMxfp4Inputs = 32;  // that share a scale
constexpr std::string_view kScales = "_scale_inv";

// to[r, i] = from[i, part + r * parts], in tiles: rows of `from` are long.
template <typename Number>
void turn(const Number* from, int64_t inputs, int64_t rows, const InStack& stack, Number* to) {
  constexpr int64_t kTile = 64;
  const int64_t columns = rows * stack.parts;
  for (int64_t row = 0; row < rows; row += kTile) {
    for (int64_t begin = 0; begin < inputs; begin += kTile) {
      const int64_t row_end = std::min(rows, row + kTile);
      for (int64_t r = row; r < row_end; ++r) {
        const Number* const column = from + stack.part + r * stack.parts;
        for (int64_t i = begin; i < std::min(inputs, begin + kTile); ++i) {
          to[r * inputs + i] = column[i * columns];
        }
      }
    }
  }
}

// Rows of `bytes` bytes of the part in `all`, one behind the other.
void gather(const View& all, const InStack& stack, int64_t rows, int64_t bytes, std::byte* to) {
  const auto* const from =
      static_cast<const std::byte*>(all.data) + stack.expert * rows * stack.parts * bytes;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * bytes, from + (stack.part + r * stack.parts) * bytes,
                static_cast<size_t>(bytes));
  }
}

}  // namespace

View turned_rows(const View& all, const InStack& stack, int64_t rows, Memory& memory) {
  const int64_t inputs = all.shape[1];
  const View out{nullptr, all.dtype, {rows, inputs}};
  std::vector<std::byte>& copy = memory.emplace_back(out.bytes());
  const int64_t begin = stack.expert * inputs * all.shape[2];
  if (tensor::dtype_bytes(all.dtype) == sizeof(float)) {
    turn(static_cast<const uint32_t*>(all.data) + begin, inputs, rows, stack,
         reinterpret_cast<uint32_t*>(copy.data()));
  } else {
    turn(static_cast<const uint16_t*>(all.data) + begin, inputs, rows, stack,
         reinterpret_cast<uint16_t*>(copy.data()));
  }
  return {copy.data(), all.dtype, out.shape};
}

View strided_row(const View& all, const InStack& stack, int64_t rows, Memory& memory) {
  const View out{nullptr, all.dtype, {rows}};
  std::vector<std::byte>& copy = memory.emplace_back(out.bytes());
  gather(all, stack, rows, static_cast<int64_t>(tensor::dtype_bytes(all.dtype)), copy.data());
  return {copy.data(), all.dtype, out.shape};
}

Result<ops::LinearPart> read_mxfp4_stack(const ModuleTensors& tensors, const InStack& stack,
                                         int64_t rows, int64_t in, bool reads, Memory& memory) {
  if (in % kMxfp4Inputs != 0) {
    return fail(ErrorCode::kUnsupported, fmt::format("rows of {} numbers of MXFP4", in),
                tensors.where("_blocks"));
  }
  const int64_t groups = in / kMxfp4Inputs;
  const int64_t all_rows = rows * stack.parts;
  RUDDER_TRY(
      const View codes,
      tensors.take("_blocks", {stack.experts, all_rows, groups, kMxfp4Inputs / 2}, {DType::kU8}));
  RUDDER_TRY(const View scales,
             tensors.take("_scales", {stack.experts, all_rows, groups}, {DType::kU8}));
  if (!reads) return ops::LinearPart{};
  const StoredWeight out(ops::kMxfp4, rows, in, memory);
  gather(codes, stack, rows, in / 2, static_cast<std::byte*>(out.part().codes.data));
  gather(scales, stack, rows, groups, static_cast<std::byte*>(out.part().scales.data));
  return out.part();
}

View rows_behind(const View& all, const InStack& stack, int64_t rows) {
  View out = all.rows(stack.expert, 1);
  out.shape = {all.shape[1], all.shape[2]};
  return out.rows(stack.part * rows, rows);
}

Result<ops::LinearPart> read_fp8_stack(const ModuleTensors& tensors,
                                       const Quantisation::Group& group, const InStack& stack,
                                       int64_t rows, int64_t in, bool reads, Memory& memory) {
  const int64_t all_rows = rows * stack.parts;
  const auto blocks = [](int64_t count, int64_t size) { return (count + size - 1) / size; };
  if (rows % group.rows != 0 && stack.parts > 1) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("parts of {} rows share scales of {} rows", rows, group.rows),
                tensors.where(kScales));
  }
  RUDDER_TRY(const View codes, tensors.take("", {stack.experts, all_rows, in}, {DType::kF8E4M3}));
  RUDDER_TRY(
      const View scales,
      tensors.take(kScales, {stack.experts, blocks(all_rows, group.rows), blocks(in, group.inputs)},
                   {DType::kF32, DType::kBF16, DType::kF16}));
  if (!reads) return ops::LinearPart{};
  RUDDER_TRY(const ops::WeightFormat format, low_bit_format(tensors, group));
  return fp8_block_part(format, rows_behind(codes, stack, rows),
                        rows_behind(scales, stack, blocks(rows, group.rows)),
                        tensors.where(kScales), memory);
}

}  // namespace rudder::model
