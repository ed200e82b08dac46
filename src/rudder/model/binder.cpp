#include "rudder/model/binder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>

#include "rudder/base/check.h"
#include "rudder/base/log.h"
#include "rudder/model/quantised/low_bits.h"
#include "rudder/model/quantised/stacked_experts.h"
#include "rudder/model/quantised/stored_blocks.h"
#include "rudder/model/quantised/stored_weight.h"

namespace rudder::model {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;
using weights::TensorInfo;

// Tensors that some exporters write and that hold nothing the config does not say; and the scales
// of what attention multiplies: a query has a factor of its own there, and weights none.
constexpr std::string_view kIgnoredSuffixes[] = {".rotary_emb.inv_freq", ".self_attn.q_scale",
                                                 ".self_attn.prob_scale"};

std::string where(const TensorInfo& tensor) {
  return fmt::format("{}: tensor '{}'", tensor.file, tensor.name);
}

bool is_wide(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

tl::unexpected<Error> wrong_shape(const TensorInfo& tensor, const std::string& wanted) {
  return fail(
      ErrorCode::kCorruptFile,
      fmt::format("its shape is {}, the config asks for {}", tensor.view.shape.to_string(), wanted),
      where(tensor));
}

float value_at(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::kBF16:
      return tensor::to_float(view.as<tensor::BF16>()[i]);
    case DType::kF16:
      return tensor::to_float(view.as<tensor::F16>()[i]);
    default:
      return view.as<float>()[i];
  }
}

// The rows of a view of rank 1 or 2, in another order, copied.
View reordered(const View& view, const RowOrder& order,
               std::vector<std::vector<std::byte>>& memory) {
  if (view.empty()) return view;
  const int64_t rows = view.num_rows();
  const size_t row_bytes = view.bytes() / static_cast<size_t>(rows);
  std::vector<std::byte>& copy = memory.emplace_back(view.bytes());
  const auto* const from = static_cast<const std::byte*>(view.data);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(copy.data() + static_cast<size_t>(row) * row_bytes,
                from + static_cast<size_t>(order.stored(row)) * row_bytes, row_bytes);
  }
  return {copy.data(), view.dtype, view.shape};
}

// Scales that several rows share are those of whole heads, or the part is refused.
Result<void> reorder_rows(const RowOrder& order, ops::LinearPart& part,
                          std::vector<std::vector<std::byte>>& memory) {
  if (order.is_stored() || part.codes.empty()) return {};
  const int64_t shared = part.format.block_rows;
  if (shared % order.head_dim != 0 && shared != 1) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} rows share a scale, and a head of {} is loaded in another order",
                            shared, order.head_dim));
  }
  part.codes = reordered(part.codes, order, memory);
  part.bias = reordered(part.bias, order, memory);
  if (shared > 1) return {};
  part.scales = reordered(part.scales, order, memory);
  part.offsets = reordered(part.offsets, order, memory);
  return {};
}

// The part with every number times `factor`: of scales in f32, or of its numbers as f32.
void multiply_by(float factor, ops::LinearPart& part, std::vector<std::vector<std::byte>>& memory) {
  if (part.codes.empty()) return;  // only looked at
  const bool has_scales = !part.format.is_wide() && part.scales.dtype == DType::kF32 &&
                          part.offsets.empty() && !part.scales.empty();
  if (!part.format.is_wide() && !has_scales) part = multiply_out(part, DType::kF32, memory);
  View& numbers = has_scales ? part.scales : part.codes;
  const View out{nullptr, DType::kF32, numbers.shape};
  std::vector<std::byte>& copy = memory.emplace_back(out.bytes());
  auto* const to = reinterpret_cast<float*>(copy.data());
  for (int64_t i = 0; i < numbers.shape.numel(); ++i) to[i] = value_at(numbers, i) * factor;
  numbers = {to, DType::kF32, numbers.shape};
  if (!has_scales) part.format = {.codes = ops::Codes::kF32};
}

// [], [1], [1, 1], ...: one number.
bool is_single(const Shape& shape) {
  return shape.numel() == 1;
}

// [count], [count, 1], ...
bool is_column(const Shape& shape, int64_t count) {
  return shape.rank() > 0 && shape[0] == count && shape.numel() == count;
}

// "<prefix>layers.<i>.<module>."
bool is_of_ignored_module(std::string_view name, const WeightNames& names) {
  const std::string layers = names.prefix + "layers.";
  if (!name.starts_with(layers)) return false;
  const size_t layer_end = name.find('.', layers.size());
  if (layer_end == std::string_view::npos) return false;
  return std::ranges::any_of(names.ignored_modules, [&](std::string_view module) {
    return name.substr(layer_end + 1).starts_with(std::string(module) + ".");
  });
}

bool is_ignored(std::string_view name, const WeightNames& names) {
  for (const std::string_view suffix : kIgnoredSuffixes) {
    if (name.ends_with(suffix)) return true;
  }
  for (const std::string_view prefix : names.ignored_prefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return is_of_ignored_module(name, names);
}

}  // namespace

std::vector<float> values_of(const View& stored) {
  std::vector<float> values(static_cast<size_t>(stored.shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = value_at(stored, static_cast<int64_t>(i));
  return values;
}

std::vector<float> norm_values(const View& stored, const Extent& width, float offset) {
  const std::vector<float> read = values_of(stored);
  std::vector<float> values(static_cast<size_t>(width.count()));
  const auto first = static_cast<size_t>(width.share.begin);
  for (size_t i = 0; i < values.size(); ++i) values[i] = read[(first + i) % read.size()] + offset;
  return values;
}

Result<const TensorInfo*> Binder::take_any(const std::string& name) {
  const TensorInfo* tensor = checkpoint_.find(name);
  if (tensor == nullptr) {
    return fail(ErrorCode::kCorruptFile, fmt::format("the tensor '{}' is missing", name),
                checkpoint_.name());
  }
  taken_.insert(name);
  return tensor;
}

Result<View> Binder::take(const std::string& name, const Shape& shape) {
  RUDDER_TRY(const TensorInfo* const tensor, take_any(name));
  if (!is_wide(tensor->view.dtype)) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("weights of type {} are not supported", tensor::dtype_name(tensor->view.dtype)),
        where(*tensor));
  }
  if (tensor->view.shape != shape) return wrong_shape(*tensor, shape.to_string());
  if (tensor->packed && ops_ != nullptr) return unpacked(*tensor->packed, shape);
  return tensor->view;
}

View Binder::unpacked(const weights::PackedTensor& packed, const Shape& shape) {
  const View out{nullptr, wide_, shape};
  note_multiplied(static_cast<int64_t>(packed.bytes.size()), shape.numel());
  std::vector<std::byte>& memory = unpacked_.emplace_back(std::max<size_t>(out.bytes(), 1));
  std::vector<float> row(static_cast<size_t>(packed.columns));
  for (int64_t r = 0; r < packed.rows; ++r) {
    const auto first = static_cast<size_t>(r * packed.columns);
    packed.unpack_row(r, row.data());
    if (out.dtype == DType::kF32) {
      std::memcpy(memory.data() + first * sizeof(float), row.data(), row.size() * sizeof(float));
      continue;
    }
    auto* const to = reinterpret_cast<tensor::BF16*>(memory.data()) + first;
    std::ranges::transform(row, to, [](float value) { return tensor::to_bf16(value); });
  }
  return {memory.data(), out.dtype, shape};
}

Result<std::vector<float>> Binder::take_scales(const std::string& name, int64_t count,
                                               float least) {
  if (!has(name)) return std::vector<float>();
  RUDDER_TRY(const TensorInfo* const tensor, take_any(name));
  const View& view = tensor->view;
  if (!is_wide(view.dtype)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("scales of type {} are not supported", tensor::dtype_name(view.dtype)),
                where(*tensor));
  }
  if (!is_single(view.shape) && !is_column(view.shape, count)) {
    return wrong_shape(*tensor, count == 1 ? "[1]" : fmt::format("[1] or [{}]", count));
  }
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float value = value_at(view, is_single(view.shape) ? 0 : i);
    if (!std::isfinite(value) || value < least) {
      return fail(ErrorCode::kCorruptFile, fmt::format("{} is no scale", value), where(*tensor));
    }
    values[static_cast<size_t>(i)] = value;
  }
  return values;
}

Result<void> Binder::take_weight_scale(const std::string& module, int64_t rows, WeightScales scales,
                                       std::vector<float>& out) {
  const std::string name = module + ".weight_scale";
  RUDDER_TRY(out, take_scales(name, rows, 0));  // a channel of zeros may have a scale of zero
  RUDDER_TRY(const TensorInfo* const tensor, take_any(name));  // it is missing
  const Shape& shape = tensor->view.shape;
  if (scales == WeightScales::kTensor && !is_single(shape)) return wrong_shape(*tensor, "[1]");
  if (scales == WeightScales::kChannel && !is_column(shape, rows)) {
    return wrong_shape(*tensor, Shape{rows, 1}.to_string());
  }
  // Of a scheme with static scales; what products take here is scaled a token at a time.
  const std::string input_name = module + ".input_scale";
  RUDDER_TRY(const std::vector<float> input,
             take_scales(input_name, 1, std::numeric_limits<float>::min()));
  if (!input.empty()) input_scales_.insert(input_name);
  return {};
}

Result<ops::WeightFormat> stored_or_wide(const ops::WeightFormat& file, const ops::Ops& ops,
                                         ops::ProductUse use) {
  const auto stored_as = [&](const ops::WeightFormat& format) {
    return ops.format_for(format, use);
  };
  auto stored = stored_as(file);
  if (file.is_wide() || file == ops::kFp8Rows || (stored && !stored->is_wide())) return stored;
  return stored_as({.codes = ops::Codes::kF32});
}

Result<void> Binder::read_for(const ops::Ops& ops) {
  RUDDER_TRY(const ops::WeightFormat wide, ops.stored_format({.codes = ops::Codes::kF32}));
  wide_ = wide.codes == ops::Codes::kF32 ? DType::kF32 : DType::kBF16;
  ops_ = &ops;
  return {};
}

bool Binder::keeps(const ops::WeightFormat& format, ops::ProductUse use) const {
  if (ops_ == nullptr) return false;
  const auto stored = ops_->format_for(format, use);
  return stored && !stored->is_wide();
}

std::optional<ops::LinearPart> Binder::keep_table(const std::string& name, BoundLinear& out) const {
  const TensorInfo* const tensor = checkpoint_.find(name);
  if (tensor == nullptr || !tensor->packed) return {};
  const auto format = format_of_blocks(*tensor->packed->type);
  if (!format || !keeps(*format)) return {};
  return split_blocks(*tensor->packed, out.memory);
}

Result<ops::LinearPart> Binder::take_fp8_rows(const LinearModule::Part& stored,
                                              const LinearModule& module,
                                              const Quantisation::Group& group, BoundLinear& out) {
  const std::string name = stored.weight_name();
  const int64_t rows = stored.stored_rows();
  const Shape shape{rows, module.in.stored};
  const TensorInfo& tensor = *checkpoint_.find(name);
  if (tensor.view.shape != shape) return wrong_shape(tensor, shape.to_string());
  taken_.insert(name);
  std::vector<float> scale;
  RUDDER_TRY_VOID(take_weight_scale(stored.name, rows, group.scales, scale));
  StoredWeight scales({.codes = ops::Codes::kF32}, rows, 1, out.memory);
  for (int64_t row = 0; row < rows; ++row) {
    scales.set_number(row, 0, scale[static_cast<size_t>(row)]);
  }
  out.wide_inputs = out.wide_inputs || group.wide_inputs;
  return ops::LinearPart{
      .format = ops::kFp8Rows, .codes = tensor.view, .scales = scales.part().codes};
}

Result<ops::LinearPart> Binder::take_part(const LinearModule::Part& stored,
                                          const LinearModule& module, BoundLinear& out) {
  const std::string name = stored.weight_name();
  const int64_t rows = stored.stored_rows();
  const Shape shape{rows, module.in.stored};
  RUDDER_TRY(const Quantisation::Group* const group, quantisation_.group_of(stored.name));
  ops::LinearPart part;
  const TensorInfo* const tensor = checkpoint_.find(name);
  const ModuleTensors tensors(checkpoint_, stored.name, &taken_);
  const bool has_few_bits = group != nullptr && group->as != StoredAs::kWide &&
                            group->as != StoredAs::kFp8Rows &&
                            (tensor == nullptr || has_low_bits(tensors, *group));
  if (has_few_bits) {
    Memory memory;
    RUDDER_TRY(part,
               read_low_bits(tensors, *group, rows, module.in.stored, ops_ != nullptr, memory));
    if (!part.codes.empty() && !keeps(part.format, module.use)) {
      note_multiplied(ops::stored_parts(part.format, rows, module.in.stored).bytes(),
                      shape.numel());
      part = multiply_out(part, wide_, out.memory);
    } else {
      std::ranges::move(memory, std::back_inserter(out.memory));
    }
    out.wide_inputs = out.wide_inputs || group->wide_inputs;
  } else if (tensor == nullptr || tensor->view.dtype != DType::kF8E4M3) {
    const auto kept = keep_table(name, out);
    if (kept && tensor->view.shape == shape) {
      taken_.insert(name);
      part = *kept;
    } else {
      RUDDER_TRY(const View weight, take(name, shape));
      part = ops::wide_part(weight);
    }
    if (group != nullptr && group->as != StoredAs::kWide) unexpectedly_wide_.insert(stored.name);
  } else if (group == nullptr || group->as != StoredAs::kFp8Rows) {
    return fail(ErrorCode::kUnsupported,
                quantisation_.groups.empty()
                    ? "it is F8_E4M3, and no quantization_config says how"
                    : "it is F8_E4M3, and the quantization_config excludes its module",
                where(*tensor));
  } else {
    RUDDER_TRY(part, take_fp8_rows(stored, module, *group, out));
  }
  // All parts, so that the product has numbers of one type.
  const auto is_multiplied = [](const LinearModule::Part& one) { return one.factor != 1; };
  if (std::ranges::any_of(module.parts, is_multiplied)) {
    RUDDER_CHECK(!module.bias, "'{}': a bias has no factor", stored.name);
    multiply_by(stored.factor, part, out.memory);
  }
  if (module.bias) {
    RUDDER_TRY(part.bias, take(stored.bias_name(), Shape{rows}));
  }
  if (auto done = reorder_rows(stored.order, part, out.memory); !done) {
    done.error().where = fmt::format("{}: module '{}'", checkpoint_.name(), stored.name);
    return tl::unexpected(std::move(done.error()));
  }
  return part;
}

Result<ops::LinearPart> Binder::take_wide_stack(const LinearModule::Part& stored, int64_t rows,
                                                int64_t in, BoundLinear& out) {
  const InStack& stack = stored.stack;
  const int64_t all_rows = rows * stack.parts;
  const bool in_turn = stack.form == StackForm::kInTurn;
  RUDDER_TRY(const View all, take(stored.name, in_turn ? Shape{stack.experts, in, all_rows}
                                                       : Shape{stack.experts, all_rows, in}));
  if (ops_ == nullptr) return ops::LinearPart{};
  return ops::wide_part(in_turn ? turned_rows(all, stack, rows, out.memory)
                                : rows_behind(all, stack, rows));
}

Result<ops::LinearPart> Binder::take_stacked(const LinearModule::Part& stored,
                                             const LinearModule& module, BoundLinear& out) {
  const int64_t rows = stored.stored_rows();
  const int64_t in = module.in.stored;
  const InStack& stack = stored.stack;
  RUDDER_TRY(const Quantisation::Group* const group, quantisation_.group_of(stored.name));
  const ModuleTensors tensors(checkpoint_, stored.name, &taken_);
  const TensorInfo* const whole = checkpoint_.find(stored.name);
  const bool reads = ops_ != nullptr;
  Memory memory;
  ops::LinearPart part;
  if (group != nullptr && group->as == StoredAs::kMxfp4Stack && has_low_bits(tensors, *group)) {
    RUDDER_TRY(part, read_mxfp4_stack(tensors, stack, rows, in, reads, memory));
  } else if (group != nullptr && group->as == StoredAs::kFp8Blocks && whole != nullptr &&
             stack.form == StackForm::kBehind && whole->view.dtype == DType::kF8E4M3) {
    RUDDER_TRY(part, read_fp8_stack(tensors, *group, stack, rows, in, reads, memory));
  } else {
    RUDDER_TRY(part, take_wide_stack(stored, rows, in, out));
    if (group != nullptr && group->as != StoredAs::kWide) unexpectedly_wide_.insert(stored.name);
  }
  const bool is_coded = !part.codes.empty() && !part.format.is_wide();
  if (is_coded && !keeps(part.format, module.use)) {
    note_multiplied(ops::stored_parts(part.format, rows, in).bytes(), rows * in);
    part = multiply_out(part, wide_, out.memory);
  } else {
    std::ranges::move(memory, std::back_inserter(out.memory));
  }
  out.wide_inputs = out.wide_inputs || (is_coded && group != nullptr && group->wide_inputs);
  if (!module.bias) return part;
  RUDDER_TRY(const View all, take(stored.bias_name(), Shape{stack.experts, rows * stack.parts}));
  if (reads) part.bias = strided_row(all, stack, rows, out.memory);
  return part;
}

Result<BoundLinear> Binder::take_linear(const LinearModule& module) {
  BoundLinear out;
  std::vector<ops::LinearPart> stored;
  bool has_fp8_rows = false;
  for (const LinearModule::Part& part : module.parts) {
    RUDDER_TRY(stored.emplace_back(),
               part.is_stacked() ? take_stacked(part, module, out) : take_part(part, module, out));
    has_fp8_rows = has_fp8_rows || stored.back().format == ops::kFp8Rows;
  }
  // One product has codes alone, or numbers alone.
  const bool has_wide = std::ranges::any_of(
      stored, [](const ops::LinearPart& part) { return part.format.is_wide(); });
  for (ops::LinearPart& part : stored) {
    if (!has_wide || part.codes.empty() || part.format.is_wide()) continue;
    if (part.format != ops::kFp8Rows) part = multiply_out(part, wide_, out.memory);
  }
  for (size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].codes.empty()) continue;  // only looked at
    RUDDER_TRY_VOID(cut_part(stored[i], module, i, out.memory, out.parts));
    if (!has_fp8_rows || !stored[i].format.is_wide()) continue;
    return fail(ErrorCode::kUnsupported,
                "it is not quantised, and others that are multiplied with it in one product are",
                fmt::format("{}: module '{}'", checkpoint_.name(), module.parts[i].name));
  }
  return out;
}

bool Binder::multiply_out_codes(BoundLinear& bound) const {
  bool changed = false;
  for (ops::LinearPart& part : bound.parts) {
    if (part.format.is_wide() || part.format == ops::kFp8Rows) continue;
    part = multiply_out(part, wide_, bound.memory);
    changed = true;
  }
  return changed;
}

Result<std::vector<float>> Binder::take_scale(const ScaleTensor& tensor) {
  std::vector<float> out;
  for (const std::string& name : tensor.names) {
    RUDDER_TRY(std::vector<float> scales,
               take_scales(name, tensor.count.stored, std::numeric_limits<float>::min()));
    if (scales.empty()) continue;
    const auto begin = scales.begin() + tensor.count.share.begin;
    out.assign(begin, begin + tensor.count.count());
  }
  return out;
}

void Binder::prefetch(const std::string& name) const {
  if (const TensorInfo* tensor = checkpoint_.find(name)) checkpoint_.prefetch(*tensor);
}

Result<void> Binder::check_all_taken(const WeightNames& names, std::string_view prefix) const {
  std::string left;
  std::string file;
  int count = 0;
  for (const TensorInfo& tensor : checkpoint_.tensors()) {
    if (!tensor.name.starts_with(prefix) || taken_.contains(tensor.name)) continue;
    if (is_ignored(tensor.name, names)) continue;
    if (file.empty()) file = tensor.file;
    if (++count <= 5) left += fmt::format("{}'{}'", left.empty() ? "" : ", ", tensor.name);
  }
  if (count == 0) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("{} tensors have no place in this architecture: {}{}", count, left,
                          count > 5 ? ", ..." : ""),
              file);
}

void Binder::log_multiplied() const {
  if (multiplied_numbers_ == 0) return;
  const auto bytes = static_cast<int64_t>(tensor::dtype_bytes(wide_)) * multiplied_numbers_;
  log_info("{}: {} MiB of its tensors were multiplied out while they were loaded: {} MiB of {}",
           checkpoint_.name(), multiplied_bytes_ >> 20, bytes >> 20, tensor::dtype_name(wide_));
}

void Binder::log_passed_over(const WeightNames& names) const {
  std::map<std::string_view, int> counts;
  for (const TensorInfo& tensor : checkpoint_.tensors()) {
    for (const std::string_view prefix : names.ignored_prefixes) {
      if (tensor.name.starts_with(prefix)) ++counts[prefix];
    }
  }
  if (counts.empty()) return;
  std::string listed;
  for (const auto& [prefix, count] : counts) {
    listed += fmt::format("{}{} of '{}'", listed.empty() ? "" : ", ", count, prefix);
  }
  log_info("{}: tensors that are not of the text model are passed over: {}", checkpoint_.name(),
           listed);
}

void Binder::log_differences() const {
  if (!unexpectedly_wide_.empty()) {
    log_warn(
        "{}: {} modules are not quantised although its quantization_config means them, '{}' "
        "is the first; they are served as they are",
        checkpoint_.name(), unexpectedly_wide_.size(), *unexpectedly_wide_.begin());
  }
  if (!input_scales_.empty()) {
    log_info(
        "{}: its {} static input scales are not used: what an fp8 product takes is scaled a "
        "token at a time",
        checkpoint_.name(), input_scales_.size());
  }
}

}  // namespace rudder::model
