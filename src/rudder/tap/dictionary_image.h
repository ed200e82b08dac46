// DictionaryImage: a dictionary of features as the device has it, for ops that need all of its
// features (OpKind::kEncode): a head, then numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/tap/content_key.h"
#include "rudder/tap/dictionary_head.h"

namespace rudder::tap {

// Immutable once shared. Of f32 it shares the memory of the dictionary that it was made of.
struct DictionaryImage {
  // Of bf16 a float is the bits of two numbers: floats are copied, never computed with.
  struct Part {
    std::shared_ptr<const float[]> values;
    int64_t count = 0;
  };
  ContentKey key;           // of all that it does
  std::vector<Part> parts;  // one behind another, the head first

  int64_t num_floats() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.count;
    return sum;
  }
};

}  // namespace rudder::tap
