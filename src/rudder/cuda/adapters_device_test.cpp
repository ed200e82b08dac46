// Adapters around products of each form of weight: what they add, that rows without one have the
// bits of the product alone, and that those with one have the same bits in any company.
#include "rudder/cuda/linear_test.h"
#include "rudder/ops/adapter_batch.h"

namespace rudder::cuda {
namespace {

enum class Base { kBf16, kFp8, kU4 };

class AdaptersDevice : public LinearDevice,
                       public ::testing::WithParamInterface<std::tuple<Base, bool>> {
 protected:
  static constexpr int64_t kIn = 1088;
  static constexpr int64_t kTableRows = 3;
  static constexpr int32_t kRank = 32;

  // q, k and v; the table's last row has gains, its first changes no k.
  struct Adapted {
    ops::LinearWeight weight;
    ops::AdapterWeights adapters;
    std::vector<float> a, b, scales, gains;
  };

  void SetUp() override {
    const auto& [base, batch_invariant] = GetParam();
    CudaOpsSettings settings;
    settings.linear_dtype = base == Base::kFp8 ? DType::kF8E4M3 : DType::kBF16;
    settings.tune = false;
    settings.batch_invariant = batch_invariant;
    start(settings);
  }

  Adapted make_adapted() {
    Adapted out;
    ops::AdapterWeights& adapters = out.adapters;
    adapters.num_parts = 3;
    adapters.rank = kRank;
    adapters.part_end = {640, 768, 896};
    const int64_t width = adapters.part_end[2];
    if (std::get<0>(GetParam()) == Base::kU4) {
      out.weight = make_low(width, kIn, true);
    } else {
      const std::vector<float> w = random(width * kIn, 0.05f);
      const ops::LinearPart part =
          ops::wide_part({const_cast<float*>(w.data()), DType::kF32, {width, kIn}});
      out.weight = value_of(ops_->make_linear({&part, 1}));
    }
    out.a = random(kTableRows * 3 * kRank * kIn, 0.1f);
    out.b = random(kTableRows * width * kRank, 0.1f);
    out.scales = {0.7f, 0, 0, 0, 0.3f, 0, 0.9f, 0, 1.1f, 0, 0.6f, 0, 0.8f, 1, 0.5f, 0, 0, 1};
    out.gains = random(kTableRows * width);
    adapters.a = to_device(out.a, {kTableRows, 3 * kRank, kIn});
    adapters.b = to_device(out.b, {kTableRows, width, kRank});
    adapters.scales = to_device(out.scales, {kTableRows, 3, 2}, DType::kF32);
    adapters.gains = to_device(out.gains, {kTableRows, width}, DType::kF32);
    return out;
  }

  ops::AdapterBatch batch_of(const std::vector<int32_t>& rows) {
    const auto count = static_cast<int64_t>(rows.size());
    std::vector<int32_t> order(rows.size());
    std::vector<ops::AdapterGroup> groups(rows.size());
    ops::group_tokens(rows, order, groups);
    std::vector<int32_t> words(groups.size() * 4);
    std::memcpy(words.data(), groups.data(), words.size() * sizeof(int32_t));
    ops::AdapterBatch batch{to_device(rows), to_device(order), to_device(words)};
    batch.groups.shape = {count, 4};
    return batch;
  }

  // Of rows of x in act; empty `rows`: the product alone. As a model runs it, then read.
  std::vector<float> project(const Adapted& adapted, const View& x,
                             const std::vector<int32_t>& rows) {
    const int64_t tokens = x.shape[0];
    View in = x;
    View scale = {};
    if (adapted.weight.input == ops::InputForm::kF8Rows) {
      in = poisoned({tokens, kIn}, DType::kF8E4M3);
      scale = poisoned({tokens}, DType::kF32);
      ops_->quantise({.x = x, .out = in, .out_scale = scale, .next = &adapted.weight});
    }
    const View y = poisoned({tokens, adapted.weight.out});
    ops::AdaptArgs args{.x = x, .tokens = {}, .weights = &adapted.adapters, .mid = {}, .out = y};
    if (!rows.empty()) {
      args.tokens = batch_of(rows);
      args.mid = poisoned({tokens * adapted.adapters.mid_width()}, DType::kF32);
      ops_->adapter_ops()->shrink_adapters(args);
    }
    ops_->linear({.x = in, .x_scale = scale, .weight = &adapted.weight, .out = y});
    if (!rows.empty()) ops_->adapter_ops()->expand_adapters(args);
    return to_host(y);
  }

  // What the product alone is once token `t`'s adapter has changed it.
  static void change(const Adapted& adapted, const float* x, int32_t row, const float* alone,
                     std::vector<double>& want, std::vector<double>& tolerance) {
    const ops::AdapterWeights& adapters = adapted.adapters;
    int64_t begin = 0;
    for (int64_t part = 0; part < 3; ++part) {
      const float* const scale = adapted.scales.data() + 2 * (row * 3 + part);
      std::vector<double> mid(kRank, 0.0);
      for (int64_t r = 0; r < kRank; ++r) {
        const float* const a = adapted.a.data() + ((row * 3 + part) * kRank + r) * kIn;
        for (int64_t i = 0; i < kIn; ++i) mid[static_cast<size_t>(r)] += double{a[i]} * x[i];
      }
      const int64_t end = adapters.part_end[static_cast<size_t>(part)];
      for (int64_t o = begin; o < end; ++o) {
        const int64_t at = row * adapters.part_end[2] + o;
        double delta = 0;
        for (int64_t r = 0; r < kRank; ++r) {
          delta +=
              double{adapted.b[static_cast<size_t>(at * kRank + r)]} * mid[static_cast<size_t>(r)];
        }
        const double gain = scale[1] != 0 ? adapted.gains[static_cast<size_t>(at)] : 1.0;
        want.push_back(gain * (alone[o] + scale[0] * delta));
        tolerance.push_back(
            0.012 * std::abs(gain) * (std::abs(alone[o]) + std::abs(scale[0] * delta)) + 2e-3);
      }
      begin = end;
    }
  }
};

TEST_P(AdaptersDevice, AddToTheProductWhatTheyAreAndNothingElsewhere) {
  const Adapted adapted = make_adapted();
  const auto width = static_cast<size_t>(adapted.weight.out);
  for (const int64_t tokens : {1, 7, 33, 64, 65, 130}) {
    const std::vector<float> values = random(tokens * kIn);
    const View x = to_device(values, {tokens, kIn});
    std::vector<int32_t> rows;
    for (int64_t t = 0; t < tokens; ++t) rows.push_back(static_cast<int32_t>(random_() % 4) - 1);
    if (tokens == 1) rows[0] = 2;
    const std::vector<float> alone = project(adapted, x, {});
    const std::vector<float> got = project(adapted, x, rows);
    std::vector<float> changed;
    std::vector<double> want;
    std::vector<double> tolerance;
    for (size_t t = 0; t < rows.size(); ++t) {
      const auto of_token = [&](const std::vector<float>& all) { return all.data() + t * width; };
      if (rows[t] < 0) {
        EXPECT_EQ(std::memcmp(of_token(got), of_token(alone), width * sizeof(float)), 0)
            << "row " << t << " of " << tokens;
        continue;
      }
      changed.insert(changed.end(), of_token(got), of_token(got) + width);
      change(adapted, values.data() + static_cast<int64_t>(t) * kIn, rows[t], of_token(alone), want,
             tolerance);
    }
    expect_near(changed, want, tolerance, adapted.weight.out, fmt::format("{} tokens", tokens));
    if (!std::get<1>(GetParam())) continue;
    for (const int64_t t : {int64_t{0}, tokens / 2, tokens - 1}) {
      const std::vector<float> one = project(adapted, x.rows(t, 1), {rows[static_cast<size_t>(t)]});
      EXPECT_EQ(std::memcmp(one.data(), got.data() + static_cast<size_t>(t) * width,
                            width * sizeof(float)),
                0)
          << "row " << t << " of " << tokens << ", alone";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bases, AdaptersDevice,
                         ::testing::Combine(::testing::Values(Base::kBf16, Base::kFp8, Base::kU4),
                                            ::testing::Bool()));

}  // namespace
}  // namespace rudder::cuda
