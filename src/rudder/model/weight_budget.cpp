#include "rudder/model/weight_budget.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "rudder/model/tensors.h"

namespace rudder::model {

namespace {

// Numbers, or what a backend makes of numbers. Rows of other formats are not looked up: a tied head
// of these has a table beside it.
bool is_of_numbers(const ops::WeightFormat& format) {
  return format.is_wide() || format == ops::kFp8Rows;
}

void add_formats(const LayerTensors& tensors, const FormatOf& format_of,
                 std::vector<ops::WeightFormat>& out) {
  for (const LinearModule& module : tensors.linears) {
    for (const LinearModule::Part& part : module.parts) {
      const auto format = format_of(part.name, module.use, part.factor != 1);
      if (format && std::ranges::find(out, *format) == out.end()) out.push_back(*format);
    }
  }
}

}  // namespace

FormatOf all_as(const ops::WeightFormat& format) {
  return [format](std::string_view, ops::ProductUse, bool) -> Result<ops::WeightFormat> {
    return format;
  };
}

tensor::DType table_dtype(const ops::WeightFormat& stored) {
  return stored.codes == ops::Codes::kF32 ? tensor::DType::kF32 : tensor::DType::kBF16;
}

tensor::DType table_dtype(const ops::Ops& ops) {
  return table_dtype(ops.stored_format({}).value());
}

float table_scale(float scale, tensor::DType table) {
  return table == tensor::DType::kF32 ? scale : tensor::to_float(tensor::to_bf16(scale));
}

Result<int64_t> linear_bytes(const LinearModule& module, const FormatOf& format_of) {
  int64_t bytes = module.adds_bias() ? module.rows() * int64_t{sizeof(float)} : 0;
  std::vector<ops::WeightFormat> formats;
  for (const LinearModule::Part& part : module.parts) {
    RUDDER_TRY(formats.emplace_back(), format_of(part.name, module.use, part.factor != 1));
  }
  // Where one part is wide all of them are.
  const auto wide = std::ranges::find_if(formats, is_of_numbers);
  const ops::WeightFormat& first = formats.front();
  if (first.tile_rows > 1 && std::ranges::count(formats, first) == std::ssize(formats)) {
    const int64_t weights = std::max<int64_t>(module.experts, 1);
    return bytes + weights * ops::stored_parts(first, module.out(), module.in.count()).bytes();
  }
  for (size_t i = 0; i < formats.size(); ++i) {
    const ops::WeightFormat& format = wide != formats.end() ? *wide : formats[i];
    for (const Extent& rows : module.parts[i].rows) {
      bytes += ops::stored_parts(format, rows.count(), module.in.count()).bytes();
    }
  }
  return bytes;
}

Result<int64_t> tensor_bytes(const LayerTensors& tensors, const FormatOf& format_of) {
  int64_t numbers = 0;  // f32
  // Every channel has its number on the device, also where the checkpoint has one for all.
  for (const NormTensor& norm : tensors.norms) {
    numbers += (norm.alpha.count > 0 ? 2 : 1) * norm.width.count();
  }
  for (const VectorTensor& vector : tensors.vectors) numbers += vector.loaded().numel();
  for (const FilterTensor& filter : tensors.filters) numbers += filter.count();
  int64_t bytes = numbers * int64_t{sizeof(float)};
  for (const LinearModule& module : tensors.linears) {
    RUDDER_TRY(const int64_t linear, linear_bytes(module, format_of));
    bytes += linear;
  }
  return bytes;
}

namespace {

constexpr std::string_view kWeightSuffix = ".weight";

std::string_view module_of(std::string_view table) {
  table.remove_suffix(std::min(table.size(), kWeightSuffix.size()));
  return table;
}

std::string_view embedding_module(const WeightNames& names) {
  return module_of(names.embedding);
}

}  // namespace

Result<WeightBudget> weight_budget(const ModelSpec& spec, const WeightNames& names,
                                   const FormatOf& format_of, ops::Rank rank, const Stage& stage) {
  WeightBudget budget;
  if (stage.is_last()) {
    LayerTensors last;
    last.norms = final_norm_tensors(spec, names);
    LinearModule& head = last.linears.emplace_back(head_module(spec, names, rank));
    if (spec.tied_head) head.parts.front().name = embedding_module(names);
    RUDDER_TRY(budget.bytes, tensor_bytes(last, format_of));
  }
  std::vector<ops::WeightFormat> formats;
  const LayerRange layers = layers_of(spec, stage);
  for (size_t i = layers.begin; i < layers.end; ++i) {
    const LayerTensors tensors = layer_tensors(spec, names, i, nullptr, rank);
    RUDDER_TRY(const int64_t bytes, tensor_bytes(tensors, format_of));
    budget.bytes += bytes;
    add_formats(tensors, format_of, formats);
  }
  for (const ops::WeightFormat& format : formats) {
    budget.formats += (budget.formats.empty() ? "" : ", ") + ops::format_name(format);
  }
  if (stage.is_last()) {
    RUDDER_TRY(const ops::WeightFormat head, format_of(names.head, ops::ProductUse::kHead, false));
    if (std::ranges::find(formats, head) == formats.end()) {
      budget.formats += (budget.formats.empty() ? "head " : ", head ") + ops::format_name(head);
    }
  }
  if (stage.is_first()) {
    const LayerTensors tensors = model_tensors(spec, names);
    RUDDER_TRY(const int64_t bytes, tensor_bytes(tensors, format_of));
    budget.bytes += bytes;
    for (const TableTensor& table : tensors.tables) {
      RUDDER_TRY(const ops::WeightFormat stored,
                 format_of(module_of(table.name), ops::ProductUse::kHidden, false));
      (table.on_host ? budget.host_bytes : budget.bytes) +=
          table.rows * table.width * static_cast<int64_t>(tensor::dtype_bytes(table_dtype(stored)));
    }
  }
  if (stage.embeds()) {
    RUDDER_TRY(const ops::WeightFormat stored,
               format_of(embedding_module(names), ops::ProductUse::kHidden, false));
    if (!is_of_numbers(stored) || !shares_table(spec, rank, stage)) {
      budget.bytes += int64_t{spec.vocab} * spec.hidden *
                      static_cast<int64_t>(tensor::dtype_bytes(table_dtype(stored)));
    }
  }
  return budget;
}

}  // namespace rudder::model
