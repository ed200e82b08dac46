// Tensors that hold a product of all experts of a layer (in_stack.h): of numbers, E4M3 with scales
// of blocks, or packed E2M1 with a scale for each 32 inputs. Each expert's part is found in them,
// or copied out of them. The binder calls it; pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/quantised/in_stack.h"
#include "rudder/model/quantised/low_bits.h"
#include "rudder/ops/args.h"

namespace rudder::model {

// [rows, in] of one expert, in the type of `all` [experts, in, rows * parts], in a piece appended
// to `memory`.
ops::View turned_rows(const ops::View& all, const InStack& stack, int64_t rows, Memory& memory);
// [rows] of one expert, of `all` [experts, rows * parts].
ops::View strided_row(const ops::View& all, const InStack& stack, int64_t rows, Memory& memory);

// number = code * 2^(scale - 127), of NAME_blocks [experts, rows * parts, in / 32, 16] u8 with the
// even input in the low bits, and NAME_scales [experts, rows * parts, in / 32] u8. Without `reads`
// the tensors are checked and taken, and the part is empty.
Result<ops::LinearPart> read_mxfp4_stack(const ModuleTensors& tensors, const InStack& stack,
                                         int64_t rows, int64_t in, bool reads, Memory& memory);

// [rows, in] of one expert, where they lie in `all` [experts, parts * rows, in].
ops::View rows_behind(const ops::View& all, const InStack& stack, int64_t rows);
// number = code * scale, of NAME [experts, parts * rows, in] E4M3 and NAME_scale_inv, a number for
// each block of an expert's rows. Parts that do not begin with a block are refused.
Result<ops::LinearPart> read_fp8_stack(const ModuleTensors& tensors,
                                       const Quantisation::Group& group, const InStack& stack,
                                       int64_t rows, int64_t in, bool reads, Memory& memory);

}  // namespace rudder::model
