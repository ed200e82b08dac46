// Binder: finds the tensors of a checkpoint by name, checks their shape and type, and keeps track
// of those that nobody has asked for. It returns a linear module in the form that a backend takes:
// as the file has it where the backend keeps that, else multiplied out; for fp8 with one scale for
// each of its rows, for every spelling of scales in files. The loader uses it; one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rudder/model/quantised/quantisation.h"
#include "rudder/model/tensors.h"
#include "rudder/ops/args.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// What this rank loads of a module. The views of `parts` point into the checkpoint, into `memory`
// and into what the binder unpacked.
struct BoundLinear {
  std::vector<ops::LinearPart> parts;
  std::vector<std::vector<std::byte>> memory;
  bool wide_inputs = false;  // the checkpoint quantises the weight alone
};

// What the backend stores of weights that a file has in that format: codes where the backend keeps
// some, else what it makes of them multiplied out.
Result<ops::WeightFormat> stored_or_wide(const ops::WeightFormat& file, const ops::Ops& ops,
                                         ops::ProductUse use = ops::ProductUse::kHidden);

// Of f32, f16 or bf16.
std::vector<float> values_of(const tensor::View& stored);
// What a norm multiplies by, [width.count()], of one number a channel or one for all.
std::vector<float> norm_values(const tensor::View& stored, const Extent& width, float offset);

class Binder {
 public:
  // Both outlive it.
  Binder(const weights::Checkpoint& checkpoint, const Quantisation& quantisation)
      : checkpoint_(checkpoint), quantisation_(quantisation) {}

  // A tensor of f32, f16 or bf16. Of packed numbers it is f32 without data, until read_for.
  Result<tensor::View> take(const std::string& name, const tensor::Shape& shape);
  Result<BoundLinear> take_linear(const LinearModule& module);
  // Where the backend has no product of their shape; false: there are no codes in it.
  bool multiply_out_codes(BoundLinear& bound) const;
  // [count.count()], each above 0; empty: the checkpoint has none.
  Result<std::vector<float>> take_scale(const ScaleTensor& tensor);

  // From now on data is read, as this backend takes it; before, tensors are only looked at. Tables
  // of packed numbers lie in memory of this binder, which release_unpacked gives back.
  Result<void> read_for(const ops::Ops& ops);
  void release_unpacked() { unpacked_.clear(); }

  // Packed numbers of a table that the backend keeps as they are stored, as a part of a product.
  std::optional<ops::LinearPart> keep_table(const std::string& name, BoundLinear& out) const;

  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }
  void prefetch(const std::string& name) const;

  void pass_over(const std::string& name) { taken_.insert(name); }
  // Every tensor whose name begins with `prefix` was taken or is known to mean nothing.
  Result<void> check_all_taken(const WeightNames& names, std::string_view prefix = "") const;
  // Says once what the checkpoint has and this engine does not do as it says.
  void log_differences() const;
  // How many tensors are of another modality, and so are not read.
  void log_passed_over(const WeightNames& names) const;
  // And what was multiplied out.
  void log_multiplied() const;

 private:
  Result<const weights::TensorInfo*> take_any(const std::string& name);
  // The part as it is stored.
  Result<ops::LinearPart> take_part(const LinearModule::Part& part, const LinearModule& module,
                                    BoundLinear& out);
  // A part of a tensor of all experts; of one of numbers.
  Result<ops::LinearPart> take_wide_stack(const LinearModule::Part& stored, int64_t rows,
                                          int64_t in, BoundLinear& out);
  Result<ops::LinearPart> take_stacked(const LinearModule::Part& stored, const LinearModule& module,
                                       BoundLinear& out);
  Result<void> take_weight_scale(const std::string& module, int64_t rows, WeightScales scales,
                                 std::vector<float>& out);
  Result<ops::LinearPart> take_fp8_rows(const LinearModule::Part& stored,
                                        const LinearModule& module,
                                        const Quantisation::Group& group, BoundLinear& out);
  bool keeps(const ops::WeightFormat& format, ops::ProductUse use = ops::ProductUse::kHidden) const;
  void note_multiplied(int64_t bytes, int64_t numbers) {
    multiplied_bytes_ += bytes;
    multiplied_numbers_ += numbers;
  }
  // The values of a tensor of one or `count` numbers, `count` of them; none when it is not there.
  Result<std::vector<float>> take_scales(const std::string& name, int64_t count, float least);

  tensor::View unpacked(const weights::PackedTensor& packed, const tensor::Shape& shape);

  const weights::Checkpoint& checkpoint_;
  const Quantisation& quantisation_;
  const ops::Ops* ops_ = nullptr;  // null: nothing is read
  tensor::DType wide_ = tensor::DType::kF32;
  std::vector<std::vector<std::byte>> unpacked_;
  int64_t multiplied_bytes_ = 0;  // of the file
  int64_t multiplied_numbers_ = 0;
  std::set<std::string, std::less<>> taken_;
  std::set<std::string, std::less<>> unexpectedly_wide_;  // modules
  std::set<std::string, std::less<>> input_scales_;       // tensors
};

}  // namespace rudder::model
