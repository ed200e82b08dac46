// How a dictionary lies on the device, in both dtypes.
#include "rudder/features/dictionary_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "rudder/steer/features/test_dictionary.h"

namespace rudder::steer {
namespace {

using tensor::DType;

constexpr tap::HashSecret kImageSecret = {3, 4};
using Words = std::array<int32_t, tap::kDictionaryHeadFloats>;

// All of an image, one part behind another.
std::vector<float> floats_of(const tap::DictionaryImage& image) {
  std::vector<float> floats;
  for (const auto& [values, count] : image.parts) {
    floats.insert(floats.end(), values.get(), values.get() + count);
  }
  return floats;
}

tap::DictionaryHead head_at(const std::vector<float>& floats) {
  std::array<float, tap::kDictionaryHeadFloats> words;
  std::copy_n(floats.begin(), words.size(), words.begin());
  return std::bit_cast<tap::DictionaryHead>(words);
}

// Number i of the bf16 that begin at a float.
float bf16_at(const std::vector<float>& floats, int32_t begin, size_t i) {
  const auto pair = std::bit_cast<uint32_t>(floats[static_cast<size_t>(begin) + i / 2]);
  return tensor::to_float(tensor::BF16{static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16)});
}

TEST(DictionaryImage, OfF32SharesTheDictionarysMemory) {
  const features::Dictionary dictionary = random_dictionary({.width = 6, .num_features = 11}, 1);
  const auto image = features::image_of(dictionary, kImageSecret, DType::kF32);
  EXPECT_EQ(image, features::image_of(dictionary, kImageSecret, DType::kF32));
  ASSERT_EQ(image->parts.size(), 3u);
  EXPECT_EQ(image->parts[1].values, dictionary.encoder);
  EXPECT_EQ(image->parts[2].values, dictionary.decoder);
  EXPECT_EQ(head_at(floats_of(*image)).is_bf16, 0);
}

// Odd numbers of odd rows too: two numbers share a float.
TEST(DictionaryImage, OfBf16HasRoundedRowsInHalfTheMemory) {
  for (const auto& [width, count] : {std::pair(64, 200), std::pair(7, 3), std::pair(1, 1)}) {
    const features::Dictionary dictionary =
        random_dictionary({.width = width, .num_features = count}, 2);
    const auto image = features::image_of(dictionary, kImageSecret, DType::kBF16);
    const auto whole = features::image_of(dictionary, kImageSecret, DType::kF32);
    EXPECT_EQ(image, features::image_of(dictionary, kImageSecret, DType::kBF16));
    EXPECT_NE(image->key, whole->key);
    const auto size = static_cast<size_t>(width * count);
    EXPECT_EQ(image->parts[0].count, whole->parts[0].count);
    for (const size_t part : {1u, 2u}) {
      EXPECT_EQ(image->parts[part].count % tap::kVectorAlign, 0);
      EXPECT_LT(image->parts[part].count, static_cast<int64_t>(size / 2) + 1 + tap::kVectorAlign);
    }
    const std::vector<float> floats = floats_of(*image);
    const tap::DictionaryHead head = head_at(floats);
    EXPECT_EQ(head.is_bf16, 1);
    for (size_t i = 0; i < size; ++i) {
      const auto rounded = [](float value) { return tensor::to_float(tensor::to_bf16(value)); };
      EXPECT_EQ(bf16_at(floats, head.encoder, i), rounded(dictionary.encoder[i])) << i;
      EXPECT_EQ(bf16_at(floats, head.decoder, i), rounded(dictionary.decoder[i])) << i;
    }
    for (size_t j = 0; j < static_cast<size_t>(count); ++j) {
      double sum = 0;
      for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
        sum += double{bf16_at(floats, head.encoder, j * static_cast<size_t>(width) + i)};
      }
      EXPECT_EQ(floats[static_cast<size_t>(head.encoder_sum) + j], static_cast<float>(sum)) << j;
    }
  }
}

// What features are read by has the numbers of the whole image, without a decoder.
TEST(DictionaryImage, AnEncoderAloneHasTheNumbersOfFeatures) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const features::Dictionary dictionary =
        random_dictionary({.width = 7,
                           .num_features = 19,
                           .activation = features::Activation::kGated,
                           .norm = tap::FeatureNorm::kLayerNorm,
                           .subtracts_bias = true},
                          4);
    const std::vector<float> whole =
        floats_of(*features::image_of(dictionary, kImageSecret, dtype));
    const tap::DictionaryHead of_whole = head_at(whole);
    const features::EncoderImage alone = features::encoder_image(dictionary, dtype);
    const tap::DictionaryHead& head = alone.head;
    EXPECT_EQ(std::bit_cast<Words>(head_at(alone.begin)), std::bit_cast<Words>(head));
    EXPECT_EQ(head.d_in, 7);
    EXPECT_EQ(head.num_features, 19);
    EXPECT_EQ(head.norm, of_whole.norm);
    EXPECT_EQ(head.is_bf16, of_whole.is_bf16);
    EXPECT_EQ(head.encoder, std::ssize(alone.begin));
    for (const auto& [begin, expected] :
         {std::pair(head.scale, of_whole.scale), std::pair(head.bias, of_whole.bias),
          std::pair(head.gate, of_whole.gate), std::pair(head.encoder_sum, of_whole.encoder_sum)}) {
      EXPECT_TRUE(std::equal(alone.begin.begin() + begin, alone.begin.begin() + begin + 19,
                             whole.begin() + expected));
    }
    const int64_t numbers = dtype == DType::kBF16 ? 67 : 133;  // floats that 7 times 19 take
    EXPECT_EQ(
        features::encoder_image_floats(dictionary, dtype),
        head.encoder + (numbers + tap::kVectorAlign - 1) / tap::kVectorAlign * tap::kVectorAlign);
  }
}

}  // namespace
}  // namespace rudder::steer
