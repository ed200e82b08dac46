#include "rudder/cpu/double_sums.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace rudder::cpu {
namespace {

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

double in_turn(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

TEST(DoubleSums, HaveTheBitsOfOneProductAfterTheOther) {
  for (int64_t count = 0; count < 40; ++count) {
    const std::vector<float> a = random_floats(count, 1);
    const std::vector<float> rows = random_floats(4 * count, 2);
    const FourRows four = {rows.data(), rows.data() + count, rows.data() + 2 * count,
                           rows.data() + 3 * count};
    const auto sums = sums_of_products(a.data(), four, count);
    for (size_t r = 0; r < four.size(); ++r) {
      const double expected = in_turn(a.data(), four[r], count);
      EXPECT_EQ(sums[r], expected) << count;
      EXPECT_EQ(sum_of_products(a.data(), four[r], count), expected) << count;
    }
  }
}

TEST(DoubleSums, AddAWeightedRow) {
  constexpr double kWeight = 0.3;
  for (int64_t count = 0; count < 40; ++count) {
    const std::vector<float> row = random_floats(count, 3);
    std::vector<double> sums(static_cast<size_t>(count), 1.5);
    add_weighted(sums.data(), kWeight, row.data(), count);
    for (size_t i = 0; i < sums.size(); ++i) {
      EXPECT_EQ(sums[i], 1.5 + kWeight * double{row[i]}) << i << " of " << count;
    }
  }
}

}  // namespace
}  // namespace rudder::cpu
