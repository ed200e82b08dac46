// StoredWeight: memory for a weight [rows, inputs] in a format, and a part that shows it. Readers
// of files fill it element by element; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rudder/ops/args.h"

namespace rudder::model {

class StoredWeight {
 public:
  // Zeros, in pieces that are appended to `memory`, which owns them.
  StoredWeight(const ops::WeightFormat& format, int64_t rows, int64_t inputs,
               std::vector<std::vector<std::byte>>& memory);

  const ops::LinearPart& part() const { return part_; }

  // Of U4 (once a code: bits are added) or I8.
  void set_code(int64_t row, int64_t input, int code) {
    if (is_four_bits_) {
      codes_[row * code_columns_ + input / 2] |= static_cast<uint8_t>(code << (input % 2 * 4));
    } else {
      codes_[row * code_columns_ + input] = static_cast<uint8_t>(code);
    }
  }
  // Of a format whose codes are f32.
  void set_number(int64_t row, int64_t input, float value) {
    part_.codes.as<float>()[row * code_columns_ + input] = value;
  }
  // Rounded to the scales' type; of E8M0 a power of two. `row` is that of a block of rows.
  void set_scale(int64_t row, int64_t group, float scale) { set(part_.scales, row, group, scale); }
  void set_minimum(int64_t row, int64_t group, float minimum) {
    set(part_.offsets, row, group, minimum);
  }
  void set_zero(int64_t row, int64_t group, int zero) {
    part_.offsets.as<uint8_t>()[row * part_.offsets.shape[1] + group] = static_cast<uint8_t>(zero);
  }

 private:
  static void set(const ops::View& view, int64_t row, int64_t column, float value);

  ops::LinearPart part_;
  uint8_t* codes_ = nullptr;
  int64_t code_columns_ = 0;
  bool is_four_bits_ = false;
};

// The part's numbers as f32 or bf16, rounded once, in a piece appended to `memory`.
ops::LinearPart multiply_out(const ops::LinearPart& part, tensor::DType dtype,
                             std::vector<std::vector<std::byte>>& memory);

}  // namespace rudder::model
