// The image of a dictionary that ops read on the device (tap/dictionary_image.h). Any thread.
#pragma once

#include <memory>

#include "rudder/steer/content_hash.h"
#include "rudder/steer/features/dictionary.h"
#include "rudder/tap/dictionary_image.h"

namespace rudder::steer {

// Made at its first use, and kept with the dictionary. Its key covers all numbers. Of several
// writes it has the first.
std::shared_ptr<const tap::DictionaryImage> image_of(const Dictionary& dictionary,
                                                     const HashSecret& secret);

}  // namespace rudder::steer
