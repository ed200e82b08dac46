#include "rudder/exec/adapter_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::exec {
namespace {

using ops::View;
using tensor::DType;

constexpr int64_t kUploadBytes = int64_t{8} << 20;

float value_at(const View& matrix, int64_t i) {
  switch (matrix.dtype) {
    case DType::kF32:
      return matrix.as<float>()[i];
    case DType::kF16:
      return tensor::to_float(matrix.as<tensor::F16>()[i]);
    default:
      RUDDER_CHECK(matrix.dtype == DType::kBF16);
      return tensor::to_float(matrix.as<tensor::BF16>()[i]);
  }
}

// Elements [begin, begin + count) of `matrix`, converted to `act`, from element `at` of `to` on.
void put_converted(const View& matrix, int64_t begin, int64_t count, DType act, std::byte* to,
                   int64_t at) {
  if (matrix.dtype == act) {
    const size_t element = tensor::dtype_bytes(act);
    std::memcpy(to + static_cast<size_t>(at) * element,
                static_cast<const std::byte*>(matrix.data) + static_cast<size_t>(begin) * element,
                static_cast<size_t>(count) * element);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float value = value_at(matrix, begin + i);
    if (act == DType::kF32) {
      reinterpret_cast<float*>(to)[at + i] = value;
    } else {
      RUDDER_CHECK(act == DType::kBF16);
      reinterpret_cast<tensor::BF16*>(to)[at + i] = tensor::to_bf16(value);
    }
  }
}

}  // namespace

Result<std::unique_ptr<AdapterTable>> AdapterTable::make(
    ops::Ops& ops, std::vector<model::AdaptedProduct> products, const lora::TableSize& size,
    int32_t max_tokens) {
  if (ops.adapter_ops() == nullptr) {
    return fail(ErrorCode::kUnsupported, fmt::format("the backend {} has no adapters", ops.name()),
                "enable-lora");
  }
  std::unique_ptr<AdapterTable> table(new AdapterTable(ops, size));
  for (model::AdaptedProduct& product : products) {
    RUDDER_TRY_VOID(table->add(std::move(product)));
  }
  RUDDER_TRY(table->scratch_.mid,
             ops.allocate(DType::kF32, {max_tokens * model::widest_adapter_mid(size.max_rank)}));
  int64_t quantised = 0;  // the widest such row
  for (const Product& product : table->products_) {
    const ops::LinearWeight& weight = *product.described.module.target;
    if (weight.input == ops::InputForm::kF8Rows) quantised = std::max(quantised, weight.in);
  }
  if (quantised > 0) {
    RUDDER_TRY(table->scratch_.act, ops.allocate(ops.act_dtype(), {max_tokens * quantised}));
  }
  RUDDER_TRY(table->uploads_, UploadRing::make(ops, kUploadBytes));
  return table;
}

int64_t AdapterTable::device_bytes(const model::ModelSpec& spec, const lora::TableSize& size,
                                   int32_t max_tokens, ops::Ops& ops) {
  if (size.empty() || ops.adapter_ops() == nullptr) return 0;
  const int64_t mid = max_tokens * model::widest_adapter_mid(size.max_rank);
  return size.num_rows * model::adapter_row_bytes(spec, size.max_rank, ops.act_dtype()) +
         mid * static_cast<int64_t>(sizeof(float));
}

Result<void> AdapterTable::add(model::AdaptedProduct product) {
  const model::LinearModule& module = product.module;
  const int64_t parts = std::ssize(module.parts);
  RUDDER_CHECK(parts <= ops::kMaxAdapterParts, "{} parts of a product", parts);
  const int32_t rank = ops::padded_rank(size_.max_rank);
  const auto weights = std::make_shared<ops::AdapterWeights>();
  weights->num_parts = static_cast<int32_t>(parts);
  weights->rank = rank;
  int64_t end = 0;
  for (size_t part = 0; part < module.parts.size(); ++part) {
    for (const model::Extent& run : module.parts[part].rows) end += run.count();
    weights->part_end[part] = end;
  }
  RUDDER_CHECK(end == module.target->out && module.in.count() == module.target->in,
               "a product of [{}, {}], not [{}, {}]", module.target->out, module.target->in, end,
               module.in.count());
  const DType act = ops_.act_dtype();
  RUDDER_TRY(weights->a, ops_.allocate(act, {size_.num_rows, parts * rank, module.in.count()}));
  RUDDER_TRY(weights->b, ops_.allocate(act, {size_.num_rows, end, rank}));
  const std::vector<float> none(static_cast<size_t>(size_.num_rows * parts * 2), 0.0f);
  RUDDER_TRY(weights->scales,
             ops_.upload({const_cast<float*>(none.data()), DType::kF32, {size_.num_rows, parts, 2}},
                         DType::kF32));
  RUDDER_TRY(weights->gains, ops_.allocate(DType::kF32, {size_.num_rows, end}));
  if (module.adds_bias()) {
    RUDDER_TRY(weights->offsets, ops_.allocate(DType::kF32, {size_.num_rows, end}));
  }
  module.target->adapters = weights;
  products_.push_back({std::move(product), weights});
  return {};
}

Result<void> AdapterTable::apply(const step::StepPlan& plan) {
  for (const step::AdapterEdit& edit : plan.adapter_edits) {
    RUDDER_CHECK(edit.adapter_row >= 0 && edit.adapter_row < size_.num_rows, "adapter row {}",
                 edit.adapter_row);
    RUDDER_CHECK(edit.adapter != nullptr && edit.adapter->max_rank <= size_.max_rank,
                 "an adapter of rank {}", edit.adapter == nullptr ? 0 : edit.adapter->max_rank);
    RUDDER_TRY_VOID(upload(edit.adapter_row, *edit.adapter));
  }
  return {};
}

Result<void> AdapterTable::upload(int32_t row, const lora::Adapter& adapter) {
  for (const Product& product : products_) RUDDER_TRY_VOID(upload(row, adapter, product));
  return {};
}

// The whole row: what the adapter leaves alone is zeros, so that nothing of the row's last adapter
// is read.
Result<void> AdapterTable::upload(int32_t row, const lora::Adapter& adapter,
                                  const Product& product) {
  const model::LinearModule& module = product.described.module;
  const ops::AdapterWeights& weights = *product.weights;
  const DType act = ops_.act_dtype();
  const View a = weights.a.rows(row, 1);
  const View b = weights.b.rows(row, 1);
  a_.assign(a.bytes(), std::byte{0});
  b_.assign(b.bytes(), std::byte{0});
  scales_.assign(module.parts.size() * 2, 0.0f);
  gains_.assign(static_cast<size_t>(weights.out()), 1.0f);
  offsets_.assign(static_cast<size_t>(weights.out()), 0.0f);
  int64_t out_row = 0;
  for (size_t part = 0; part < module.parts.size(); ++part) {
    const auto delta = std::ranges::lower_bound(adapter.deltas, product.described.targets[part], {},
                                                &lora::Delta::target);
    const bool has_delta =
        delta != adapter.deltas.end() && delta->target == product.described.targets[part];
    if (has_delta) {
      scales_[2 * part] = delta->scale;
      scales_[2 * part + 1] = delta->gains.empty() ? 0.0f : 1.0f;
      const int64_t in = module.in.count();
      for (int64_t r = 0; r < delta->rank(); ++r) {
        put_converted(delta->a, r * module.in.stored + module.in.share.begin, in, act, a_.data(),
                      (static_cast<int64_t>(part) * weights.rank + r) * in);
      }
    }
    int64_t stored = 0;  // row of B
    for (const model::Extent& run : module.parts[part].rows) {
      for (int64_t i = 0; has_delta && i < run.count(); ++i) {
        const int64_t from = module.parts[part].order.stored(stored + run.share.begin + i);
        put_converted(delta->b, from * delta->rank(), delta->rank(), act, b_.data(),
                      (out_row + i) * weights.rank);
      }
      if (has_delta && !delta->gains.empty()) {
        const size_t from = static_cast<size_t>(stored + run.share.begin);
        const auto count = static_cast<size_t>(run.count());
        const auto to = static_cast<size_t>(out_row);
        std::copy_n(delta->gains.begin() + from, count, gains_.begin() + to);
        if (!delta->offsets.empty()) {
          std::copy_n(delta->offsets.begin() + from, count, offsets_.begin() + to);
        }
      }
      stored += run.stored;
      out_row += run.count();
    }
  }
  RUDDER_TRY_VOID(uploads_->copy(a, a_.data()));
  RUDDER_TRY_VOID(uploads_->copy(b, b_.data()));
  RUDDER_TRY_VOID(uploads_->copy(weights.scales.rows(row, 1), scales_.data()));
  if (!adapter.has_gains()) return {};  // none of them is read
  RUDDER_TRY_VOID(uploads_->copy(weights.gains.rows(row, 1), gains_.data()));
  if (weights.offsets.empty()) return {};
  return uploads_->copy(weights.offsets.rows(row, 1), offsets_.data());
}

}  // namespace rudder::exec
