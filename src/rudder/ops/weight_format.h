// WeightFormat: how the numbers of a weight [rows, inputs] lie in a file or on a device, as plain
// data, and pure functions of it: its parts and their bytes, what a rank may cut out of it, which
// forms of input its products may take. The loader says with it what a checkpoint has, a backend
// what it makes of that (Ops::stored_format), the memory budget adds up. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "rudder/base/result.h"
#include "rudder/ops/code_table.h"
#include "rudder/ops/comm.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// What stands for one number. Two U4 share a byte, the first in the low bits: a row has an even
// number of them.
enum class Codes : uint8_t { kF32, kF16, kBF16, kF8E4M3, kI8, kU4 };
// In one element of the tensor of codes.
inline int64_t codes_per_element(Codes codes) {
  return codes == Codes::kU4 ? 2 : 1;
}

enum class ScaleType : uint8_t { kNone, kF32, kF16, kBF16, kE8M0 };  // E8M0: 2^(code - 127)

// What takes the codes to numbers beside a scale: number = code * scale; code * scale - minimum;
// (code - zero) * scale; (code - 8) * scale, of U4 without a table. A minimum has the scales' type,
// a zero is a U8, and of a middle nothing is stored.
enum class Offset : uint8_t { kNone, kMinimum, kZero, kMiddle };
inline constexpr int kMiddleCode = 8;

struct WeightFormat {
  Codes codes = Codes::kBF16;
  ScaleType scale = ScaleType::kNone;
  int32_t group = 0;       // inputs of a row that share a scale; 0: all of them
  int32_t block_rows = 1;  // rows that share it
  Offset offset = Offset::kNone;
  CodeTable table = CodeTable::kNone;  // of U4
  // A device has whole tiles of a weight, of all its parts together.
  int32_t tile_rows = 1;
  int32_t tile_inputs = 1;

  // Every number is its code: f32, f16 or bf16.
  bool is_wide() const { return scale == ScaleType::kNone; }
  bool operator==(const WeightFormat&) const = default;
};

// Codes of that type alone; kUnsupported for a dtype that no weight has.
Result<WeightFormat> wide_format(tensor::DType dtype);
// E4M3 with one f32 scale a row.
inline constexpr WeightFormat kFp8Rows = {.codes = Codes::kF8E4M3, .scale = ScaleType::kF32};
// E2M1 with a power of two for 32 inputs, as OCP's MXFP4.
inline constexpr WeightFormat kMxfp4 = {
    .codes = Codes::kU4, .scale = ScaleType::kE8M0, .group = 32, .table = CodeTable::kE2M1};

// The tensors that hold a weight; one without rows is not there.
struct StoredPart {
  tensor::DType dtype = tensor::DType::kU8;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t bytes() const;
};
struct StoredParts {
  StoredPart codes;    // [rows, inputs / codes_per_element]
  StoredPart scales;   // [blocks of rows, groups of a row]
  StoredPart offsets;  // likewise

  int64_t bytes() const { return codes.bytes() + scales.bytes() + offsets.bytes(); }
};
StoredParts stored_parts(const WeightFormat& format, int64_t rows, int64_t inputs);

// Whether some rows, or some inputs of every row, are a weight of this format by themselves: no
// group and no block that shares a scale is cut. kUnsupported says which bound is crossed.
Result<void> check_rows(const WeightFormat& format, const Share& rows, int64_t stored);
Result<void> check_inputs(const WeightFormat& format, const Share& inputs, int64_t stored);

// The rows that a product multiplies a weight with: in the activation dtype, or E4M3 with one f32
// scale a row.
enum class InputForm : uint8_t { kAct, kF8Rows };
// Every format can be multiplied with act. Rows of E4M3 go with E4M3 codes whose scale is a row's:
// then a sum is scaled once.
inline bool may_take(const WeightFormat& format, InputForm form) {
  return form == InputForm::kAct || (format.codes == Codes::kF8E4M3 && format.group == 0);
}

// Products of integer codes may round a row of x to I8 (LinearWeight.rounds_x). So many inputs
// share a scale: with m = max |x| in f32, x becomes (m / 127) * (x * (127 / m), rounded to nearest
// even), and 0 where m is below the least. A row with a NaN or an infinity has NaN in its products.
// Whether a row is rounded depends on the weight alone.
inline constexpr int64_t kI8InputGroup = 32;
inline constexpr float kLeastI8Input = 0x1p-100f;

// For people: "BF16", "F8_E4M3", "U4 in groups of 32".
std::string format_name(const WeightFormat& format);

}  // namespace rudder::ops
