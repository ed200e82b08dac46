// The image of a dictionary that ops read on the device (tap/dictionary_image.h). Any thread.
#pragma once

#include <memory>

#include "rudder/steer/content_hash.h"
#include "rudder/steer/features/dictionary.h"
#include "rudder/tap/dictionary_image.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer {

// Made at its first use, and kept with the dictionary. Encoder and decoder are kF32, or kBF16
// rounded to nearest. The key covers all numbers as they lie there, so one dictionary in two dtypes
// has two keys. Of several writes it has the first.
std::shared_ptr<const tap::DictionaryImage> image_of(const Dictionary& dictionary,
                                                     const HashSecret& secret, tensor::DType dtype);

}  // namespace rudder::steer
