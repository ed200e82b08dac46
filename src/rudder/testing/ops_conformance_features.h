// The part of the conformance suite that reads features of rows, as a reader does outside of any
// step. See ops_conformance.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/ops/feature_args.h"
#include "rudder/testing/ops_conformance_encode.h"

namespace rudder::testing {

class OpsFeatures : public OpsEncode {
 protected:
  // A dictionary on the device, and what is asked of it.
  struct Asked {
    tensor::View image;
    tap::DictionaryHead head;
    std::vector<int32_t> listed;
    int32_t top = 0;
  };
  struct Told {
    std::vector<float> values;         // [rows, listed]
    std::vector<ops::TopFeature> top;  // [rows, top]
  };

  Asked asked_of(const Image& image, std::vector<int32_t> listed, int32_t top);
  std::vector<int32_t> some_features(const Image& image, int64_t count);
  Told read_rows(const Asked& asked, const tensor::View& x);
  // What is told of row `r`, where all its features are `exact`.
  static void check_told(const Asked& asked, const Told& told, const std::vector<double>& exact,
                         size_t r, const std::string& what);
  // Of random rows; counts those that no rounding decides about.
  void check_image(const Image& image, int64_t rows, int32_t num_listed, int32_t top, int& checked);
};

}  // namespace rudder::testing
