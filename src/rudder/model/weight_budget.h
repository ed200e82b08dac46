// WeightBudget: the device bytes of a model's weights before they are loaded, each weight in the
// format that the backend makes of the one in the file. The memory budget counts with it, stages
// are divided by it. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/ops/weight_format.h"

namespace rudder::model {

struct LayerTensors;  // tensors.h
struct LinearModule;
struct WeightNames;  // archs/archs.h

// The format that a device stores the weight of a module in, by the module's name and whether it is
// the output head. has_factor: the loader multiplies its numbers, which are f32 then, before the
// device gets them. An Error: it stores none of what the checkpoint has.
using FormatOf = std::function<Result<ops::WeightFormat>(std::string_view module,
                                                         ops::ProductUse use, bool has_factor)>;
FormatOf all_as(const ops::WeightFormat& format);

// What the weights of a rank, or of a stage, take.
struct WeightBudget {
  int64_t bytes = 0;
  int64_t host_bytes = 0;  // of tables in memory of the host, which are no part of those
  // Of the layers' products, for people, and of the output head where it has another one: "BF16",
  // "F8_E4M3, BF16", "F8_E4M3, head BF16".
  std::string formats;
};
// `spec` is the whole model's.
Result<WeightBudget> weight_budget(const ModelSpec& spec, const WeightNames& names,
                                   const FormatOf& format_of, ops::Rank rank = {},
                                   const Stage& stage = {});
Result<int64_t> tensor_bytes(const LayerTensors& tensors, const FormatOf& format_of);
Result<int64_t> linear_bytes(const LinearModule& module, const FormatOf& format_of);
// The embedding table is as precise as products of the same file are stored, but never below bf16.
tensor::DType table_dtype(const ops::WeightFormat& stored);
tensor::DType table_dtype(const ops::Ops& ops);  // of a file in bf16
// What rows of that table are multiplied by: `scale` in the table's dtype, in which models with a
// scale are trained. In f32 it is exact.
float table_scale(float scale, tensor::DType table);

}  // namespace rudder::model
