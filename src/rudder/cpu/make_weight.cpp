#include "rudder/cpu/make_weight.h"

#include <memory>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/code_weight.h"
#include "rudder/cpu/panel_weight.h"

namespace rudder::cpu {
namespace {

using ops::LinearPart;
using ops::WeightFormat;
using tensor::DType;
using Part = std::shared_ptr<const FastWeight>;

int64_t rows_of(std::span<const LinearPart> parts) {
  int64_t rows = 0;
  for (const LinearPart& part : parts) rows += part.out();
  return rows;
}

// Weights of several formats, one below the other.
class StackedWeight final : public FastWeight {
 public:
  void add(Part part, int64_t rows) {
    parts_.push_back({std::move(part), out_});
    out_ += rows;
  }

  void read_row(int64_t index, float* to) const override {
    size_t i = parts_.size() - 1;
    while (index < parts_[i].first) --i;
    parts_[i].weight->read_row(index - parts_[i].first, to);
  }
  Result<void> multiply(const Kernels& kernels, ThreadPool& pool, ProductScratch& scratch,
                        const float* x, int64_t rows, float* out, int64_t ld) const override {
    for (const Placed& part : parts_) {
      RUDDER_TRY_VOID(part.weight->multiply(kernels, pool, scratch, x, rows, out + part.first, ld));
    }
    return {};
  }
  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const Placed& part : parts_) bytes += part.weight->bytes();
    return bytes;
  }

 private:
  struct Placed {
    Part weight;
    int64_t first = 0;  // of the whole's rows
  };
  std::vector<Placed> parts_;
  int64_t out_ = 0;
};

// Parts of one stored format.
Result<Part> pack(std::span<const LinearPart> parts, const WeightFormat& stored, ThreadPool& pool) {
  if (!stored.is_wide()) return pack_codes(parts, pool);
  return pack_panels(parts, stored.codes == ops::Codes::kBF16 ? Element::kBf16 : Element::kF32,
                     pool);
}

}  // namespace

Result<WeightFormat> stored_format_of(const WeightFormat& file, DType dtype) {
  if (dtype == DType::kBF16 && keeps_codes(file)) return file;
  return ops::wide_format(dtype);
}

Result<ops::LinearWeight> make_weight(std::span<const LinearPart> parts, DType dtype,
                                      ThreadPool& pool) {
  std::vector<Part> packed;
  auto stack = std::make_shared<StackedWeight>();
  ops::LinearWeight linear;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    RUDDER_TRY(const WeightFormat stored, stored_format_of(parts[begin].format, dtype));
    for (; end < parts.size(); ++end) {
      RUDDER_TRY(const WeightFormat next, stored_format_of(parts[end].format, dtype));
      if (next != stored) break;
    }
    const auto some = parts.subspan(begin, end - begin);
    RUDDER_TRY(Part part, pack(some, stored, pool));
    if (begin == 0) linear.format = stored;
    linear.rounds_x = linear.rounds_x || !stored.is_wide();
    packed.push_back(part);
    stack->add(std::move(part), rows_of(some));
  }
  linear.in = parts.front().in();
  linear.out = rows_of(parts);
  const Part whole = packed.size() == 1 ? packed.front() : stack;
  linear.bytes = whole->bytes();
  linear.packed = whole;
  return linear;
}

}  // namespace rudder::cpu
