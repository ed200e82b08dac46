// Weights of few bits as safetensors files have them, module by module: GPTQ, AWQ,
// compressed-tensors, scales of blocks, bitsandbytes, HQQ. Each is read as an ops::WeightFormat
// with the numbers of the file; docs/contracts/checkpoints.md has the formulas. Pure functions of
// a checkpoint; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/quantised/module_tensors.h"
#include "rudder/model/quantised/quantisation.h"
#include "rudder/ops/args.h"

namespace rudder::model {

using Memory = std::vector<std::vector<std::byte>>;

// Whether the checkpoint has the module's weight in the form of the group, which is one of few
// bits.
bool has_low_bits(const ModuleTensors& tensors, const Quantisation::Group& group);

// What read_low_bits makes of it. F32 where inputs are in an order of their own: no format says it.
Result<ops::WeightFormat> low_bit_format(const ModuleTensors& tensors,
                                         const Quantisation::Group& group);

// The weight [rows, inputs]; its views point into `memory`. Without `reads` its tensors are checked
// and taken, and the part is empty.
Result<ops::LinearPart> read_low_bits(const ModuleTensors& tensors,
                                      const Quantisation::Group& group, int64_t rows,
                                      int64_t inputs, bool reads, Memory& memory);

// ----- a file for each family -----

// What all of them are called with.
struct LowBitCall {
  const ModuleTensors& tensors;
  const Quantisation::Group& group;
  ops::WeightFormat format;  // low_bit_format's
  int64_t rows = 0;
  int64_t inputs = 0;
  bool reads = false;
  Memory& memory;

  int64_t groups() const {
    return group.inputs == 0 ? 1 : (inputs + group.inputs - 1) / group.inputs;
  }
};

Result<ops::LinearPart> read_gptq(const LowBitCall& call);
Result<ops::LinearPart> read_awq(const LowBitCall& call);
Result<ops::LinearPart> read_packed_integers(const LowBitCall& call);  // of compressed-tensors
Result<ops::LinearPart> read_int8(const LowBitCall& call);
Result<ops::LinearPart> read_fp4(const LowBitCall& call);
Result<ops::LinearPart> read_fp8_blocks(const LowBitCall& call);
// number = code * scale, of E4M3 [rows, inputs] and a number for each block of the format; `where`
// the scales are, for errors.
Result<ops::LinearPart> fp8_block_part(const ops::WeightFormat& format, const tensor::View& codes,
                                       const tensor::View& scales, const std::string& where,
                                       Memory& memory);
Result<ops::LinearPart> read_nf4(const LowBitCall& call);
Result<ops::LinearPart> read_hqq(const LowBitCall& call);
// Inputs that share a number of absmax.
Result<int64_t> nf4_block(const ModuleTensors& tensors);

}  // namespace rudder::model
