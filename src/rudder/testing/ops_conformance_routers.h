// The part of the conformance suite that steers routers and captures what they choose. See
// ops_conformance_taps.h.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance_taps.h"

namespace rudder::testing {

struct TappedRouter {
  std::string name;
  ReferenceRouter router;
  int64_t experts = 32;
  bool corrects = false;
};

class OpsRouters : public OpsTaps {
 protected:
  static constexpr tap::Point kLogits = {0, tap::Site::kRouterLogits};
  static constexpr tap::Point kChosen = {0, tap::Site::kRoutedExperts};

  // Programs, captures and untapped tokens of a router, against fp64.
  void check_router(const TappedRouter& of);
  // One layer of experts, `programs` and one capture set of `points`.
  void make_layer(Scene& scene, const tap::Routing& routing, std::vector<tap::Program> programs,
                  std::vector<tap::CapturePoint> points);
  // The token's row at a point of the capture set.
  template <typename T>
  std::vector<T> captured_row(const Scene& scene, size_t token, size_t point, int64_t width,
                              tensor::DType dtype) {
    std::vector<int64_t> offsets;
    record_elements(scene.sets[0], scene.geometry, &offsets);
    const int64_t at = scene.tokens[token].capture_begin * tap::kCaptureAlign + offsets[point];
    const auto bytes = at * static_cast<int64_t>(tensor::dtype_bytes(act_));
    return device_.values<T>(
        {static_cast<std::byte*>(scene.table.ring.data) + bytes, dtype, {width}});
  }

 private:
  tap::TapOp bias(int64_t experts, std::vector<float>& vectors);
  tap::TapOp map(const TappedRouter& of, std::vector<float>& vectors);
  std::vector<tap::Program> programs_of(const TappedRouter& of);
  std::vector<ReferenceChoice> choices_of(const TappedRouter& of, const tap::Program* program,
                                          const Row& h, const std::vector<double>& added,
                                          int32_t n);
  Row drawn(int64_t count);
};

}  // namespace rudder::testing
