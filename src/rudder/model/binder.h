// Binder: finds the tensors of a checkpoint by name, checks their shape and type, and keeps track
// of those that nobody has asked for. It returns a linear module in the form that a backend takes:
// the weight, and for fp8 one scale for each of its rows, for every spelling of scales in files.
// The loader uses it; one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rudder/model/quantisation.h"
#include "rudder/model/tensors.h"
#include "rudder/ops/args.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// What this rank loads of a module. The views of `parts` point into the checkpoint, into `scales`,
// into `cuts` and into what the binder unpacked.
struct BoundLinear {
  std::vector<ops::LinearPart> parts;
  std::vector<std::vector<float>> scales;    // of the stored parts; empty unless they are F8E4M3
  std::vector<std::vector<std::byte>> cuts;  // columns of weights
  bool wide_inputs = false;                  // the checkpoint quantises the weight alone
};

// Of f32, f16 or bf16.
std::vector<float> values_of(const tensor::View& stored);
// What a norm multiplies by, [width.count()], of one number a channel or one for all.
std::vector<float> norm_values(const tensor::View& stored, const Extent& width, float offset);

class Binder {
 public:
  // Both outlive it.
  Binder(const weights::Checkpoint& checkpoint, const Quantisation& quantisation)
      : checkpoint_(checkpoint), quantisation_(quantisation) {}

  // A tensor of f32, f16 or bf16. Of packed numbers it is f32 without data, until unpack_as.
  Result<tensor::View> take(const std::string& name, const tensor::Shape& shape);
  Result<BoundLinear> take_linear(const LinearModule& module);
  // [count.count()], each above 0; empty: the checkpoint has none.
  Result<std::vector<float>> take_scale(const ScaleTensor& tensor);

  // From now on packed numbers are taken as that, f32 or bf16, in memory of this binder, which
  // release_unpacked gives back.
  void unpack_as(tensor::DType dtype) { unpack_as_ = dtype; }
  void release_unpacked() { unpacked_.clear(); }

  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }
  void prefetch(const std::string& name) const;

  // Every tensor was taken or is known to mean nothing.
  Result<void> check_all_taken(const WeightNames& names) const;
  // Says once what the checkpoint has and this engine does not do as it says.
  void log_differences() const;

 private:
  Result<const weights::TensorInfo*> take_any(const std::string& name);
  // The part as it is stored.
  Result<ops::LinearPart> take_part(const LinearModule::Part& part, const LinearModule& module,
                                    BoundLinear& out);
  Result<void> take_weight_scale(const std::string& module, int64_t rows, WeightScales scales,
                                 std::vector<float>& out);
  // The values of a tensor of one or `count` numbers, `count` of them; none when it is not there.
  Result<std::vector<float>> take_scales(const std::string& name, int64_t count, float least);

  tensor::View unpacked(const weights::PackedTensor& packed, const tensor::Shape& shape);

  const weights::Checkpoint& checkpoint_;
  const Quantisation& quantisation_;
  std::optional<tensor::DType> unpack_as_;
  std::vector<std::vector<std::byte>> unpacked_;
  std::set<std::string, std::less<>> taken_;
  std::set<std::string, std::less<>> unexpectedly_wide_;  // modules
  std::set<std::string, std::less<>> input_scales_;       // tensors
};

}  // namespace rudder::model
