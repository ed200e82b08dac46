// Lowering: converts the ops of requests and modules into the few forms that the device has, with
// all constants computed in fp64. Config calls it when it is built; pure functions.
//
//   patch              kPatch
//   ablate, K axes     K kAxis, a = 0, b = 0, axes orthonormalised
//   mean_ablate        kAxis, a = 0, b = mean . v
//   orthogonal         kAxis, a = c
//   clamp, cap, set    kAxis, a = 1, lo, hi
//   swap               kSwap
//   rotate to          kRotate, a = cos, b = sin
//   rotate by          two kAxis with a = -1: the reflections whose product the rotation is
//   add*               kAdd, kAddNorm, kAddRenorm
//   experts            kExperts
//   feature            kFeature, of transcoders one that reads and one for each write; kAdd for an
//                      add that depends on nothing; kEncoded where all features are needed
//
// v is normalised where the form says so. A window of a schedule becomes a window of the selector;
// a ramp is constant over the prompt, so the op is split at the prompt's end. A gate on a prompt's
// score adds one kScore for each different score, a control one kSense for each different reading.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/op_spec.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

// Its vectors are rows here and offsets in a program.
struct LoweredOp {
  tap::Point point;
  Group group = Group::kAdd;
  int32_t selector = 0;  // into Lowered.selectors
  tap::TapOp op;
  double scale = 1;    // s, in full precision
  bool folds = false;  // a plain add, without gate and schedule: neighbours can be summed
  Row v1;
  Row v2;
  Row gate;
  // Of a clamp at the point where its dictionary reads. `full`: the row is reconstructed.
  std::shared_ptr<const features::Dictionary> dictionary = {};
  int32_t feature = 0;  // FeatureClamp::kNoFeature: none
  bool full = false;
  bool encodes = false;  // it is kEncoded, of a kEncode that the program is given
  // Of what is written for a clamp: whose feature, and which of the specs asks for it. Of several
  // of one feature at a token those of the last specs count (config.cpp).
  const features::Dictionary* clamped = nullptr;  // null: of no clamp
  int32_t clamped_feature = 0;
  int32_t spec = 0;
  bool changes_nothing = false;  // it is there to count instead of earlier ones
};

struct Lowered {
  std::vector<LoweredOp> ops;  // by point, group, order of the specs
  std::vector<Selector> selectors;
  uint64_t scheduled = 0;           // bit i: an op of selectors[i] changes from token to token
  bool needs_whole_prompt = false;  // as in tap::SequenceTaps
  bool is_controlled = false;
};
inline constexpr size_t kMaxSelectors = 64;

// Errors: see Config::build.
Result<Lowered> lower(const tap::Geometry& geometry, const std::vector<OpSpec>& specs);

}  // namespace rudder::steer
