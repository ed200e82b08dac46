#include "rudder/steer/features/dictionary_image.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "rudder/base/siphash.h"

namespace rudder::steer {
namespace {

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

  tap::DictionaryImage::Part take(const tap::DictionaryHead& head) {
    std::memcpy(own_.data(), &head, sizeof(head));
    auto values = std::make_shared_for_overwrite<float[]>(own_.size());
    std::ranges::copy(own_, values.get());
    return {std::move(values), std::ssize(own_)};
  }

 private:
  static constexpr auto kAlign = static_cast<size_t>(tap::kVectorAlign);
  std::vector<float> own_;
};

tap::DictionaryImage make_image(const Dictionary& dictionary) {
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
  ImageBuilder own;
  tap::DictionaryHead head{.d_in = dictionary.d_in,
                           .d_out = dictionary.d_out,
                           .num_features = dictionary.num_features,
                           .k = dictionary.activation == Activation::kTopK ? dictionary.k : 0,
                           .norm = dictionary.norm};
  head.writes_elsewhere = dictionary.is_autoencoder() ? 0 : 1;
  head.scale = own.begin_of(scale);
  head.bias = own.begin_of(bias);
  head.gate = own.begin_of(gate);
  const auto width = static_cast<size_t>(dictionary.d_out);
  head.output_bias = own.begin_of(std::span(dictionary.output_bias).first(width));
  if (!dictionary.skip.empty()) head.skip = own.begin_of(dictionary.skip);
  const int64_t encoder = int64_t{dictionary.num_features} * dictionary.d_in;
  head.encoder = static_cast<int32_t>(own.size());
  head.decoder = static_cast<int32_t>(own.size() + encoder);
  tap::DictionaryImage image;
  image.parts.push_back(own.take(head));
  image.parts.push_back({dictionary.encoder, encoder});
  image.parts.push_back({dictionary.decoder, int64_t{dictionary.num_features} * dictionary.d_out});
  return image;
}

}  // namespace

std::shared_ptr<const tap::DictionaryImage> image_of(const Dictionary& dictionary,
                                                     const HashSecret& secret) {
  const std::lock_guard lock(dictionary.image.mutex);
  if (dictionary.image.made != nullptr) return dictionary.image.made;
  tap::DictionaryImage image = make_image(dictionary);
  const VectorHash vectors(secret);
  SipHash128 hash(secret);
  hash.update(uint64_t{image.parts.size()});
  for (const auto& [values, count] : image.parts) {
    for (const uint64_t word : vectors.digest({values.get(), static_cast<size_t>(count)})) {
      hash.update(word);
    }
  }
  const Digest digest = hash.finish();
  image.key = {digest[0], digest[1]};
  dictionary.image.made = std::make_shared<const tap::DictionaryImage>(std::move(image));
  return dictionary.image.made;
}

}  // namespace rudder::steer
