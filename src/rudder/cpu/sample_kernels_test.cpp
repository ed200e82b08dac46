#include "rudder/cpu/sample_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace rudder::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kLengths[] = {1, 2, 15, 16, 17, 255, 256, 257, 1000, 4099};

std::vector<float> random_row(int64_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, 6);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& x : row) x = normal(engine);
  if (n > 20) row[7] = -kInf;
  if (n > 20) row[19] = row[3];
  return row;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// exec.X4
TEST(SampleKernels, EveryInstructionSetGivesTheSameBits) {
  const SampleKernels& first = *all_sample_kernels().front();
  for (const SampleKernels* other : all_sample_kernels()) {
    for (const int64_t n : kLengths) {
      SCOPED_TRACE(std::string(other->name) + " " + std::to_string(n));
      const std::vector<float> row = random_row(n, static_cast<uint32_t>(n));
      const auto blocks = static_cast<size_t>(num_sample_blocks(n));
      const auto size = static_cast<size_t>(n);
      std::vector<float> max_a(blocks), max_b(blocks), w_a(size), w_b(size);
      std::vector<double> sum_a(blocks), sum_b(blocks);
      const RowScan scan_a = first.scan(row.data(), n, max_a.data());
      const RowScan scan_b = other->scan(row.data(), n, max_b.data());
      EXPECT_EQ(scan_a.max, scan_b.max);
      EXPECT_EQ(scan_a.has_bad, scan_b.has_bad);
      EXPECT_TRUE(same_bits(max_a, max_b));
      const double total_a =
          first.exp_row(row.data(), n, scan_a.max, 0.7f, w_a.data(), sum_a.data());
      const double total_b =
          other->exp_row(row.data(), n, scan_a.max, 0.7f, w_b.data(), sum_b.data());
      EXPECT_EQ(total_a, total_b);
      EXPECT_TRUE(same_bits(w_a, w_b));
      EXPECT_TRUE(same_bits(sum_a, sum_b));

      std::vector<uint32_t> words((size + 31) / 32);
      for (size_t i = 0; i < size; ++i) words[i / 32] |= (i % 5 < 2 ? 1u : 0u) << (i % 32);
      std::vector<float> masked_a = row;
      std::vector<float> masked_b = row;
      first.mask(masked_a.data(), n, words.data());
      other->mask(masked_b.data(), n, words.data());
      EXPECT_TRUE(same_bits(masked_a, masked_b));
      for (size_t i = 0; i < size; ++i) {
        EXPECT_EQ(masked_a[i], i % 5 < 2 ? row[i] : -kInf) << i;
      }

      std::vector<int32_t> count(size);
      std::vector<uint8_t> seen(size);
      for (size_t i = 0; i < size; ++i) count[i] = i % 3 == 0 ? static_cast<int32_t>(i % 5) : 0;
      for (size_t i = 0; i < size; ++i) seen[i] = i % 4 == 1;
      std::vector<float> x_a = row;
      std::vector<float> x_b = row;
      const Penalties penalties{1.3f, 0.4f, -0.25f};
      first.penalize(x_a.data(), n, count.data(), seen.data(), penalties);
      other->penalize(x_b.data(), n, count.data(), seen.data(), penalties);
      EXPECT_TRUE(same_bits(x_a, x_b));
      for (const int64_t token : {int64_t{0}, n / 2, n - 1}) {
        EXPECT_EQ(first.count_before(row.data(), n, token),
                  other->count_before(row.data(), n, token));
      }
    }
  }
}

TEST(SampleKernels, ScanFindsMaximaAndBadValues) {
  for (const SampleKernels* kernels : all_sample_kernels()) {
    for (const int64_t n : kLengths) {
      std::vector<float> row = random_row(n, 5);
      std::vector<float> block_max(static_cast<size_t>(num_sample_blocks(n)));
      RowScan scan = kernels->scan(row.data(), n, block_max.data());
      EXPECT_EQ(scan.max, *std::max_element(row.begin(), row.end()));
      EXPECT_FALSE(scan.has_bad);
      for (size_t b = 0; b < block_max.size(); ++b) {
        const auto begin = row.begin() + static_cast<std::ptrdiff_t>(b * kSampleBlock);
        const auto end = b + 1 == block_max.size() ? row.end() : begin + kSampleBlock;
        EXPECT_EQ(block_max[b], *std::max_element(begin, end));
      }
      for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
        for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
          std::vector<float> broken = row;
          broken[static_cast<size_t>(at)] = bad;
          EXPECT_TRUE(kernels->scan(broken.data(), n, block_max.data()).has_bad) << n << " " << at;
        }
      }
    }
  }
}

TEST(SampleKernels, ExpIsWithinTwoUlp) {
  std::vector<float> x;
  for (float v = 0; v > -86.9f; v -= 0.00137f) x.push_back(v);
  std::vector<float> w(x.size());
  sample_kernels().exp_row(x.data(), static_cast<int64_t>(x.size()), 0, 1, w.data(), nullptr);
  EXPECT_EQ(w[0], 1.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double{x[i]});
    EXPECT_NEAR(w[i] / exact, 1, 2.4e-7) << x[i];
  }
  const float low[] = {-87.5f, -1e30f, -kInf};
  sample_kernels().exp_row(low, 3, 0, 1, w.data(), nullptr);
  EXPECT_EQ(w[0] + w[1] + w[2], 0.0f);
}

TEST(SampleKernels, PenaltiesFollowTheirFormula) {
  std::vector<float> x = {2, 2, -2, -2, 2, -kInf, 2};
  const std::vector<int32_t> count = {0, 3, 0, 1, 0, 2, 0};
  const std::vector<uint8_t> seen = {0, 0, 1, 1, 1, 0, 0};
  sample_kernels().penalize(x.data(), 7, count.data(), seen.data(), {2, 0.5f, 0.25f});
  EXPECT_EQ(x, (std::vector<float>{2, 1 - 0.75f - 0.5f, -4, -4 - 0.25f - 0.5f, 1, -kInf, 2}));
  x[0] = 3e38f;
  const std::vector<uint8_t> all(7, 1);
  sample_kernels().penalize(x.data(), 7, count.data(), all.data(), {1e-6f, 0, 0});
  EXPECT_EQ(x[0], std::numeric_limits<float>::max());
}

TEST(SampleKernels, CountBeforeBreaksTiesByIndex) {
  std::vector<float> x(300, 1.0f);
  x[17] = 2;
  x[250] = 2;
  for (const SampleKernels* kernels : all_sample_kernels()) {
    EXPECT_EQ(kernels->count_before(x.data(), 300, 17), 0);
    EXPECT_EQ(kernels->count_before(x.data(), 300, 250), 1);
    EXPECT_EQ(kernels->count_before(x.data(), 300, 0), 2);
    EXPECT_EQ(kernels->count_before(x.data(), 300, 18), 2 + 17);
    EXPECT_EQ(kernels->count_before(x.data(), 300, 299), 299);
  }
}

}  // namespace
}  // namespace rudder::cpu
