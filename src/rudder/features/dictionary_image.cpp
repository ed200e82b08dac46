#include "rudder/features/dictionary_image.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/base/siphash.h"

namespace rudder::features {
namespace {

using Part = tap::DictionaryImage::Part;
using tensor::DType;

// The numbers as bf16, up to where a vector may begin.
Part rounded(const float* values, int64_t count) {
  const int64_t floats = (tap::dictionary_floats(true, count) + tap::kVectorAlign - 1) /
                         tap::kVectorAlign * tap::kVectorAlign;
  auto bits = std::make_shared_for_overwrite<float[]>(static_cast<size_t>(floats));
  const auto number = [&](int64_t i) -> uint32_t {
    return i < count ? tensor::to_bf16(values[i]).bits : 0;
  };
  for (int64_t i = 0; i < floats; ++i) {
    const uint32_t pair = number(2 * i) | number(2 * i + 1) << 16;
    std::memcpy(bits.get() + i, &pair, sizeof(pair));
  }
  return {std::move(bits), floats};
}

Part part_of(const std::shared_ptr<const float[]>& values, int64_t count, DType dtype) {
  return dtype == DType::kBF16 ? rounded(values.get(), count) : Part{values, count};
}

// Of each encoder row, as the image has it.
std::vector<float> sums_of(const Dictionary& dictionary, DType dtype) {
  std::vector<float> sums(static_cast<size_t>(dictionary.num_features));
  for (int32_t j = 0; j < dictionary.num_features; ++j) {
    double sum = 0;
    for (const float value : dictionary.encoder_row(j).values()) {
      sum += dtype == DType::kBF16 ? tensor::to_float(tensor::to_bf16(value)) : value;
    }
    sums[static_cast<size_t>(j)] = static_cast<float>(sum);
  }
  return sums;
}

class ImageBuilder {
 public:
  ImageBuilder() { own_.resize(tap::kDictionaryHeadFloats); }

  int32_t begin_of(std::span<const float> values) {
    const auto begin = static_cast<int32_t>(own_.size());
    own_.insert(own_.end(), values.begin(), values.end());
    own_.resize((own_.size() + kAlign - 1) / kAlign * kAlign);
    return begin;
  }
  int64_t size() const { return std::ssize(own_); }
  static constexpr int64_t size_of(int64_t count) {
    constexpr int64_t kUnit = tap::kVectorAlign;
    return (count + kUnit - 1) / kUnit * kUnit;
  }

  std::vector<float> take_floats(const tap::DictionaryHead& head) {
    std::memcpy(own_.data(), &head, sizeof(head));
    return std::move(own_);
  }

  Part take(const tap::DictionaryHead& head) {
    std::memcpy(own_.data(), &head, sizeof(head));
    auto values = std::make_shared_for_overwrite<float[]>(own_.size());
    std::ranges::copy(own_, values.get());
    return {std::move(values), std::ssize(own_)};
  }

 private:
  static constexpr auto kAlign = static_cast<size_t>(tap::kVectorAlign);
  std::vector<float> own_;
};

// Of the head all that reading needs but the encoder, and the numbers of features.
tap::DictionaryHead begin_head(const Dictionary& dictionary, ImageBuilder& own) {
  const auto count = static_cast<size_t>(dictionary.num_features);
  std::vector<float> scale(count);
  std::vector<float> bias(count);
  std::vector<float> gate(count);
  for (size_t j = 0; j < count; ++j) {
    const FeatureForm form = dictionary.form(static_cast<int32_t>(j));
    scale[j] = static_cast<float>(form.scale);
    bias[j] = static_cast<float>(form.bias);
    gate[j] = static_cast<float>(form.gate);
  }
  tap::DictionaryHead head{.d_in = dictionary.d_in,
                           .d_out = dictionary.d_out,
                           .num_features = dictionary.num_features,
                           .k = dictionary.activation == Activation::kTopK ? dictionary.k : 0,
                           .norm = dictionary.norm};
  head.writes_elsewhere = dictionary.is_autoencoder() ? 0 : 1;
  head.scale = own.begin_of(scale);
  head.bias = own.begin_of(bias);
  head.gate = own.begin_of(gate);
  return head;
}

tap::DictionaryImage make_image(const Dictionary& dictionary, DType dtype) {
  ImageBuilder own;
  tap::DictionaryHead head = begin_head(dictionary, own);
  const auto width = static_cast<size_t>(dictionary.d_out);
  head.output_bias = own.begin_of(std::span(dictionary.output_bias).first(width));
  if (!dictionary.skip.empty()) head.skip = own.begin_of(dictionary.skip);
  head.encoder_sum = own.begin_of(sums_of(dictionary, dtype));
  head.is_bf16 = dtype == DType::kBF16 ? 1 : 0;
  const int64_t features = dictionary.num_features;
  Part encoder = part_of(dictionary.encoder, features * dictionary.d_in, dtype);
  Part decoder = part_of(dictionary.decoder, features * dictionary.d_out, dtype);
  head.encoder = static_cast<int32_t>(own.size());
  head.decoder = static_cast<int32_t>(own.size() + encoder.count);
  tap::DictionaryImage image;
  image.parts.push_back(own.take(head));
  image.parts.push_back(std::move(encoder));
  image.parts.push_back(std::move(decoder));
  return image;
}

}  // namespace

std::shared_ptr<const tap::DictionaryImage> image_of(const Dictionary& dictionary,
                                                     const tap::HashSecret& secret, DType dtype) {
  RUDDER_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "a dictionary as {}",
               tensor::dtype_name(dtype));
  const std::lock_guard lock(dictionary.image.mutex);
  std::shared_ptr<const tap::DictionaryImage>& made =
      dtype == DType::kBF16 ? dictionary.image.bf16 : dictionary.image.f32;
  if (made != nullptr) return made;
  tap::DictionaryImage image = make_image(dictionary, dtype);
  const tap::VectorHash vectors(secret);
  SipHash128 hash(secret);
  hash.update(uint64_t{image.parts.size()});
  for (const auto& [values, count] : image.parts) {
    for (const uint64_t word : vectors.digest({values.get(), static_cast<size_t>(count)})) {
      hash.update(word);
    }
  }
  const tap::Digest digest = hash.finish();
  image.key = {digest[0], digest[1]};
  made = std::make_shared<const tap::DictionaryImage>(std::move(image));
  return made;
}

EncoderImage encoder_image(const Dictionary& dictionary, DType dtype) {
  ImageBuilder own;
  EncoderImage image;
  image.head = begin_head(dictionary, own);
  image.head.encoder_sum = own.begin_of(sums_of(dictionary, dtype));
  image.head.is_bf16 = dtype == DType::kBF16 ? 1 : 0;
  image.head.encoder = static_cast<int32_t>(own.size());
  image.begin = own.take_floats(image.head);
  return image;
}

int64_t encoder_image_floats(const Dictionary& dictionary, DType dtype) {
  const int64_t features = dictionary.num_features;
  constexpr int64_t kNumbers = 4;  // of a feature: scale, bias, gate, sum
  return tap::kDictionaryHeadFloats + kNumbers * ImageBuilder::size_of(features) +
         ImageBuilder::size_of(
             tap::dictionary_floats(dtype == DType::kBF16, features * dictionary.d_in));
}

}  // namespace rudder::features
