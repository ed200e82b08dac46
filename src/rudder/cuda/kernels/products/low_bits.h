// LowBits: how weights of 4 and 8 bits lie on the device. Every low-bit format
// becomes this one when a model is loaded (pack_low_bits.h); products
// (low_product.h) and the gather of rows read it.
//
// A weight is blocks of 64 rows by 128 inputs; the blocks of the same rows
// follow each other. A block has its codes and then, for each group of inputs,
// a pair of f16 for each row: the scale, and the zero or the minimum. Both are
// relative to a power of two that each row has in f32:
//   number = row_factor * scale * (code - zero), or row_factor * (scale * code
//   - minimum)
// Codes lie as lanes read them: 16 bytes a lane, in the order of the A operand
// of wgmma (kernels/ wgmma.cuh). Rows behind the last one and inputs behind the
// last one have scales of zero.
//
// What rounding scales to f16 costs is 2^-11 of a number at most, and nothing
// where the file has f16, bf16 or powers of two within 2^14 of the row's
// largest. A scale of a whole row stays as it is.
#pragma once

#include <cstdint>

namespace rudder::cuda {

// What stands for a number: 0 to 15 of 4 bits; -128 to 127 of 8; E4M3.
enum class LowCode : uint8_t { kNone, kU4, kI8, kE4M3 };
constexpr int low_code_bits(LowCode code) {
  return code == LowCode::kU4 ? 4 : 8;
}

struct LowBits {
  LowCode code = LowCode::kNone;  // kNone: a weight that is none of these
  int32_t group = 0;              // inputs that share a scale: 16, 32, 64 or 128
  bool is_zero = true;            // what comes with a scale: a zero, else a minimum
  bool is_by_row = false;         // scales are 1, offsets 0: row factors are scales

  bool operator==(const LowBits& other) const {
    return code == other.code && group == other.group && is_zero == other.is_zero &&
           is_by_row == other.is_by_row;
  }
};

constexpr int kLowBlockRows = 64;
constexpr int kLowChunk = 128;  // inputs of a block
constexpr int kLowPairBytes = 4;

constexpr int low_code_bytes(LowCode code) {
  return kLowBlockRows * kLowChunk * low_code_bits(code) / 8;
}
constexpr int low_block_bytes(LowCode code, int group) {
  return low_code_bytes(code) + kLowBlockRows * (kLowChunk / group) * kLowPairBytes;
}
constexpr int64_t low_row_blocks(int64_t out) {
  return (out + kLowBlockRows - 1) / kLowBlockRows;
}
constexpr int64_t low_chunks(int64_t in) {
  return (in + kLowChunk - 1) / kLowChunk;
}
constexpr int64_t low_weight_bytes(const LowBits& form, int64_t out, int64_t in) {
  return low_row_blocks(out) * low_chunks(in) * low_block_bytes(form.code, form.group);
}

// A form as a number of a policy's file; 0: none.
constexpr int64_t low_id(const LowBits& form) {
  const int flags = (form.is_zero ? 1 : 0) | (form.is_by_row ? 2 : 0);
  return form.code == LowCode::kNone
             ? 0
             : (static_cast<int64_t>(form.code) << 16) | (int64_t{form.group} << 2) | flags;
}
constexpr LowBits low_of_id(int64_t id) {
  LowBits form;
  form.code = static_cast<LowCode>(id >> 16);
  form.group = static_cast<int32_t>(id >> 2 & 0x3fff);
  form.is_zero = (id & 1) != 0;
  form.is_by_row = (id & 2) != 0;
  return form;
}

}  // namespace rudder::cuda
