#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "rudder/steer/library.h"
#include "rudder/steer/test_support.h"
#include "rudder/steer/train/directions.h"
#include "rudder/steer/train/vector_files.h"

namespace rudder::steer {
namespace {

constexpr int32_t kWidth = 32;

std::vector<double> random_unit(std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> v(kWidth);
  double squares = 0;
  for (double& x : v) {
    x = normal(random);
    squares += x * x;
  }
  for (double& x : v) x /= std::sqrt(squares);
  return v;
}

double cosine(std::span<const float> a, const std::vector<double>& b) {
  double product = 0;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    product += double{a[i]} * b[i];
    squares += double{a[i]} * double{a[i]};
  }
  return product / std::sqrt(squares);
}

struct Sets {
  RowSet positive{kWidth, {}};
  RowSet negative{kWidth, {}};
};

// Pairs that share their content and differ by (1 + jitter) * `apart` along the truth, in noise.
Sets make_sets(const std::vector<double>& truth, size_t count, double apart, double jitter,
               double noise, std::mt19937& random) {
  std::normal_distribution<double> normal;
  Sets sets;
  for (size_t i = 0; i < count; ++i) {
    const double along = apart * (1 + jitter * normal(random));
    for (size_t k = 0; k < kWidth; ++k) {
      const double content = normal(random);
      sets.positive.values.push_back(
          static_cast<float>(content + along / 2 * truth[k] + noise * normal(random)));
      sets.negative.values.push_back(
          static_cast<float>(content - along / 2 * truth[k] + noise * normal(random)));
    }
  }
  return sets;
}

TEST(Directions, BothMethodsFindWhatIsThere) {
  std::mt19937 random(3);
  const std::vector<double> truth = random_unit(random);
  const Sets sets = make_sets(truth, 400, 6, 0.5, 0.1, random);
  for (const Method method : {Method::kMeanDifference, Method::kPca}) {
    const Result<Direction> found = find_direction(method, sets.positive, sets.negative);
    ASSERT_TRUE(found.has_value()) << found.error().to_string();
    EXPECT_GT(cosine(found->values, truth), 0.999) << method_name(method);
    EXPECT_NEAR(norm(found->values), 6, 0.4) << method_name(method);
    const Projections projections = project(found->values, sets.positive, sets.negative);
    EXPECT_NEAR(projections.positive - projections.negative, norm(found->values), 0.01);
    EXPECT_GT(accuracy(found->values, projections, sets.positive, sets.negative), 0.93);
    const Sets others = make_sets(truth, 200, 6, 0.5, 0.1, random);
    EXPECT_GT(accuracy(found->values, projections, others.positive, others.negative), 0.91);
  }
  EXPECT_GT(find_direction(Method::kPca, sets.positive, sets.negative)->explained, 0.9);
}

// Two dimensions are enough to know the largest eigenvector in closed form.
TEST(Directions, PcaIsTheLargestEigenvectorOfTheDifferencesAboutZero) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  RowSet positive{2, {}};
  RowSet negative{2, {}};
  std::vector<std::pair<double, double>> differences;
  for (int i = 0; i < 50; ++i) {
    const auto x = static_cast<float>(3 + 2 * normal(random));
    const auto y = static_cast<float>(1 + 0.7 * double{x} + 0.5 * normal(random));
    positive.values.insert(positive.values.end(), {x, y});
    negative.values.insert(negative.values.end(), {0.0f, 0.0f});
    differences.emplace_back(x, y);
  }
  double a = 0;
  double b = 0;
  double c = 0;
  for (const auto& [x, y] : differences) {
    a += x * x;
    b += x * y;
    c += y * y;
  }
  const double root = std::sqrt((a - c) * (a - c) / 4 + b * b);
  const double largest = (a + c) / 2 + root;
  const Result<Direction> found = find_direction(Method::kPca, positive, negative);
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(found->explained, largest / (a + c), 1e-9);
  const double expected_slope = (largest - a) / b;
  EXPECT_NEAR(double{found->values[1]} / double{found->values[0]}, expected_slope, 1e-5);
  EXPECT_GT(found->values[0], 0) << "the positive rows lie that way";
}

// Pairs that all differ by 10 along one axis, and by more or less along another: about zero the
// first is the larger, about their mean the second is all there is.
TEST(Directions, PcaDiffIsTheAxisAlongWhichPairsDifferFromOneAnother) {
  std::mt19937 random(12);
  std::normal_distribution<double> normal;
  RowSet positive{2, {}};
  RowSet negative{2, {}};
  for (int i = 0; i < 60; ++i) {
    positive.values.insert(positive.values.end(), {10.0f, static_cast<float>(1 + normal(random))});
    negative.values.insert(negative.values.end(), {0.0f, 0.0f});
  }
  const Result<Direction> about_zero = find_direction(Method::kPca, positive, negative);
  const Result<Direction> about_mean = find_direction(Method::kPcaDifference, positive, negative);
  ASSERT_TRUE(about_zero.has_value() && about_mean.has_value());
  EXPECT_GT(std::abs(about_zero->values[0]), 9);
  EXPECT_NEAR(double{about_mean->values[0]}, 0, 1e-5);
  EXPECT_NEAR(about_mean->explained, 1, 1e-9);
  double mean = 0;
  for (size_t i = 0; i < positive.count(); ++i) mean += double{positive.row(i)[1]} / 60;
  EXPECT_NEAR(double{about_mean->values[1]}, mean, 1e-5) << "scale 1 moves mean onto mean";
  EXPECT_EQ(find_method("pca-diff"), Method::kPcaDifference);
  EXPECT_FALSE(find_method("pca_of").has_value());
}

TEST(Directions, SetsThatTeachNothingAreRefused) {
  const RowSet empty{4, {}};
  const RowSet one{4, {1, 2, 3, 4}};
  const RowSet two{4, {1, 2, 3, 4, 2, 3, 4, 5}};
  EXPECT_FALSE(find_direction(Method::kMeanDifference, empty, one).has_value());
  EXPECT_FALSE(find_direction(Method::kMeanDifference, one, one).has_value());
  EXPECT_FALSE(find_direction(Method::kPca, one, two).has_value());
  EXPECT_FALSE(find_direction(Method::kPca, one, RowSet{4, {0, 0, 0, 1}}).has_value());
  EXPECT_FALSE(find_direction(Method::kMeanDifference, one, RowSet{2, {1, 2}}).has_value());
  EXPECT_TRUE(find_direction(Method::kMeanDifference, one, two).has_value());
}

TEST(Directions, PairsThatDifferAlikeGiveTheirDifference) {
  const RowSet positive{2, {3, 1, 5, 4}};
  const RowSet negative{2, {1, 0, 3, 3}};
  const Result<Direction> found = find_direction(Method::kPca, positive, negative);
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(found->values[0], 2, 1e-6);
  EXPECT_NEAR(found->values[1], 1, 1e-6);
  EXPECT_NEAR(found->explained, 1, 1e-9);
}

class VectorFiles : public ::testing::Test {
 protected:
  VectorFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "rudder-vectors-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    card_ = {.name = "joy",
             .model = "demo",
             .method = Method::kPca,
             .site = "resid_post",
             .tokens = "last",
             .positive_file = "a.jsonl",
             .negative_file = "b.jsonl",
             .num_positive = 10,
             .num_negative = 10,
             .num_held_out = 4,
             .unit = {},
             .vectors = {}};
    for (const int32_t layer : {0, 2, 3}) {
      TrainedVector vector;
      vector.point = {layer, tap::Site::kResidPost};
      for (int i = 0; i < 5; ++i) {
        vector.direction.values.push_back(static_cast<float>(layer * 10 + i) / 3);
      }
      vector.direction.explained = 0.25;
      vector.train = {2.5, -1.25, 0.5};
      vector.row_norm = 12;
      vector.train_accuracy = 0.9;
      vector.held_out_accuracy = 0.75;
      card_.vectors.push_back(std::move(vector));
    }
  }
  ~VectorFiles() override { std::filesystem::remove_all(folder_); }

  std::string read(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::filesystem::path folder_;
  VectorCard card_;
};

TEST_F(VectorFiles, SafetensorsKeepTheVectorsAndTheCard) {
  const std::string path = (folder_ / "joy.safetensors").string();
  ASSERT_TRUE(write_vectors_safetensors(card_, path).has_value());
  const Result<VectorCard> read = read_vectors_safetensors(path);
  ASSERT_TRUE(read.has_value()) << read.error().to_string();
  EXPECT_EQ(card_json(*read), card_json(card_));
  ASSERT_EQ(read->vectors.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read->vectors[i].point, card_.vectors[i].point);
    EXPECT_EQ(read->vectors[i].direction.values, card_.vectors[i].direction.values);
  }
}

TEST_F(VectorFiles, SteeringLoadsBothFormats) {
  for (TrainedVector& vector : card_.vectors) vector.direction.values.resize(kTestHidden, 0.25f);
  Library library(test_model(), nullptr);
  for (const char* format : {"safetensors", "gguf"}) {
    const std::string path = (folder_ / "joy.").string() + format;
    ASSERT_TRUE((std::string(format) == "gguf" ? write_control_vector(card_, path)
                                               : write_vectors_safetensors(card_, path))
                    .has_value());
    const auto module = library.add_file(format, path);
    ASSERT_TRUE(module.has_value()) << module.error().to_string();
    const std::vector<OpSpec>& specs = (*module)->config->specs();
    const size_t first = std::string(format) == "gguf" ? 1 : 0;  // no place for block 0
    ASSERT_EQ(specs.size(), 3 - first);
    for (size_t i = 0; i < specs.size(); ++i) {
      const TrainedVector& vector = card_.vectors[i + first];
      EXPECT_EQ(specs[i].op, OpName::kAdd);
      EXPECT_EQ(specs[i].point, vector.point);
      const auto values = specs[i].vector.values();
      EXPECT_EQ(std::vector<float>(values.begin(), values.end()), vector.direction.values);
    }
  }
}

TEST_F(VectorFiles, AControlVectorHasTheBytesOfTheFormat) {
  const std::string path = (folder_ / "joy.gguf").string();
  ASSERT_TRUE(write_control_vector(card_, path).has_value());
  const std::string bytes = read("joy.gguf");
  ASSERT_EQ(bytes.substr(0, 4), "GGUF");
  const auto u64 = [&](size_t at) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, 8);
    return value;
  };
  EXPECT_EQ(bytes[4], 3);
  EXPECT_EQ(u64(8), 2u) << "block 0 has no place";
  EXPECT_EQ(u64(16), 4u);
  const size_t table = bytes.find("direction.2");
  ASSERT_NE(table, std::string::npos);
  EXPECT_EQ(u64(table + 11 + 4), 5u);          // its one dimension
  EXPECT_EQ(u64(table + 11 + 4 + 8 + 4), 0u);  // the first data
  const size_t next = bytes.find("direction.3");
  EXPECT_EQ(u64(next + 11 + 4 + 8 + 4), 32u);
  const size_t data = (next + 11 + 4 + 8 + 4 + 8 + 31) / 32 * 32;
  float value = 0;
  std::memcpy(&value, bytes.data() + data + 4, 4);
  EXPECT_EQ(value, card_.vectors[1].direction.values[1]);
  std::memcpy(&value, bytes.data() + data + 32, 4);
  EXPECT_EQ(value, card_.vectors[2].direction.values[0]);
  EXPECT_EQ(bytes.size(), data + 64);

  card_.vectors[1].point.site = tap::Site::kMlpOut;
  EXPECT_FALSE(write_control_vector(card_, path).has_value());
  card_.vectors.resize(1);
  EXPECT_FALSE(write_control_vector(card_, path).has_value());
}

TEST_F(VectorFiles, TheCardSaysHowTheVectorsWereMade) {
  const std::string text = card_markdown(card_);
  EXPECT_NE(text.find("# joy"), std::string::npos);
  EXPECT_NE(text.find("| 2 | "), std::string::npos) << text;
  EXPECT_NE(text.find("7.50 σ | 90.0 % | 75.0 % | 25.0 % |"), std::string::npos) << text;
}

TEST_F(VectorFiles, FilesOfOthersAreRefusedWithTheirName) {
  const std::string path = (folder_ / "other.safetensors").string();
  EXPECT_EQ(read_vectors_safetensors(path).error().code, ErrorCode::kNotFound);
  std::ofstream(path) << "not at all";
  EXPECT_EQ(read_vectors_safetensors(path).error().code, ErrorCode::kCorruptFile);
  card_.vectors.clear();
  ASSERT_TRUE(write_vectors_safetensors(card_, path).has_value());
  EXPECT_TRUE(read_vectors_safetensors(path)->vectors.empty());
}

}  // namespace
}  // namespace rudder::steer
