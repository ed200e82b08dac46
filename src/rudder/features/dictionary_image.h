// The image of a dictionary that ops read on the device (tap/dictionary_image.h). Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/features/dictionary.h"
#include "rudder/tap/content_hash.h"
#include "rudder/tap/dictionary_head.h"
#include "rudder/tap/dictionary_image.h"
#include "rudder/tensor/dtype.h"

namespace rudder::features {

// Made at its first use, and kept with the dictionary. Encoder and decoder are kF32, or kBF16
// rounded to nearest. The key covers all numbers as they lie there, so one dictionary in two dtypes
// has two keys. Of several writes it has the first.
std::shared_ptr<const tap::DictionaryImage> image_of(const Dictionary& dictionary,
                                                     const tap::HashSecret& secret,
                                                     tensor::DType dtype);

// The part of an image that features are read by, without a decoder.
struct EncoderImage {
  tap::DictionaryHead head;
  // From the head to where the encoder begins: [num_features, d_in] in the dtype, which lies in the
  // dictionary and is too large to copy.
  std::vector<float> begin;
};
EncoderImage encoder_image(const Dictionary& dictionary, tensor::DType dtype);
// Of all of it.
int64_t encoder_image_floats(const Dictionary& dictionary, tensor::DType dtype);

}  // namespace rudder::features
