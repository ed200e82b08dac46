#include "rudder/cpu/panel_weight.h"

#include <cstring>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/ops/stored_row.h"

namespace rudder::cpu {
namespace {

using tensor::DType;
using tensor::View;

class PanelWeight final : public PanelledWeight {
 public:
  explicit PanelWeight(Element element) : element_(element) {}

  Result<void> pack(std::span<const ops::LinearPart> parts, ThreadPool& pool) {
    steps_ = round_up(parts.front().in() * element_bytes(element_), kStepBytes) / 4;
    RUDDER_TRY_VOID(allocate(parts, steps_ * kStepBytes));
    pool.parallel_for(num_panels(), [&](int64_t index) {
      for_columns(parts, index,
                  [&](const ops::LinearPart& part, int64_t row, int64_t column, int64_t count) {
                    pack_columns(part, row, count, panel(index) + column * 4);
                  });
    });
    return {};
  }

  void read_row(int64_t index, float* to) const override {
    const std::byte* from = panel(index / kPanelWidth) + index % kPanelWidth * 4;
    const int64_t per_step = 4 / element_bytes(element_);
    for (int64_t i = 0; i < in(); i += per_step, from += kStepBytes) {
      if (element_ == Element::kF32) {
        std::memcpy(to + i, from, sizeof(float));
        continue;
      }
      tensor::BF16 pair[2];
      std::memcpy(pair, from, sizeof(pair));
      to[i] = tensor::to_float(pair[0]);
      if (i + 1 < in()) to[i + 1] = tensor::to_float(pair[1]);
    }
  }

 protected:
  void pack_rows(const Kernels& kernels, const float* x, int64_t count,
                 std::byte* to) const override {
    kernels.pack_rows[static_cast<int>(element_)](x, count, in(), steps_, to);
  }
  int64_t row_bytes() const override { return steps_ * 4; }
  void product(const Kernels& kernels, const PanelCall& call) const override {
    PanelProduct args;
    args.a = call.a;
    args.rows = call.rows;
    args.panels = panel(call.panel);
    args.num_panels = call.count;
    args.steps = steps_;
    args.out = call.out;
    args.ld = call.ld;
    kernels.product[static_cast<int>(element_)](args);
  }

 private:
  DType dtype() const { return element_ == Element::kBf16 ? DType::kBF16 : DType::kF32; }

  // Rows [row, row + count) of a part into as many columns of a panel, from `to` on.
  void pack_columns(const ops::LinearPart& part, int64_t row, int64_t count, std::byte* to) const {
    std::vector<std::byte> words(static_cast<size_t>(steps_) * 4);
    std::vector<float> numbers(part.format.is_wide() ? 0 : static_cast<size_t>(in()));
    for (int64_t c = 0; c < count; ++c) {
      const View codes = part.codes.rows(row + c, 1);
      const bool is_wide = part.format.is_wide();
      if (!is_wide) read_stored_row(part, row + c, numbers.data());
      const void* const from = is_wide ? codes.data : numbers.data();
      const DType from_dtype = is_wide ? codes.dtype : DType::kF32;
      RUDDER_CHECK(convert_values(from, from_dtype, words.data(), dtype(), in()).has_value());
      for (int64_t s = 0; s < steps_; ++s) {
        std::memcpy(to + s * kStepBytes + c * 4, words.data() + s * 4, 4);
      }
    }
  }

  Element element_;
  int64_t steps_ = 0;  // of a row, a multiple of 16; what lies behind its inputs is zero
};

}  // namespace

Result<std::shared_ptr<const FastWeight>> pack_panels(std::span<const ops::LinearPart> parts,
                                                      Element element, ThreadPool& pool) {
  auto weight = std::make_shared<PanelWeight>(element);
  RUDDER_TRY_VOID(weight->pack(parts, pool));
  return weight;
}

}  // namespace rudder::cpu
