// The part of the conformance suite that steers and captures: it makes random programs and capture
// sets, and computes their effect on a token. See ops_conformance.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance.h"
#include "rudder/testing/reference_taps.h"
#include "rudder/testing/tap_table.h"

namespace rudder::testing {

class OpsTaps : public OpsConformance {
 protected:
  using Row = std::vector<double>;

  // The points of the tests' residual_norm and gated_act.
  static constexpr tap::Point kBranch = {0, tap::Site::kMlpOut};
  static constexpr tap::Point kPost = {0, tap::Site::kResidPost};
  static constexpr tap::Point kPre = {1, tap::Site::kResidPre};
  static constexpr tap::Point kNormed = {1, tap::Site::kAttnIn};
  static constexpr tap::Point kNeurons = {1, tap::Site::kMlpAct};
  static constexpr tap::Point kPoints[] = {kBranch, kPost, kPre, kNormed, kNeurons};

  static constexpr int32_t kSlots = 4;
  static constexpr int32_t kSampled = 3;  // the latch that random ops fill; others are only read
  static constexpr int64_t kGuard = 64;   // elements of the ring before and behind the records
  static constexpr int32_t kRead = 2;     // the latch that controls read
  static constexpr int kNumCombinations = 9 * 6 * 3;  // of op, gate and schedule

  // Programs and capture sets on the device, and tokens that use them.
  struct Scene {
    tap::Geometry geometry;
    std::vector<tap::Program> programs;
    std::vector<tap::CaptureSet> sets;
    std::vector<TapToken> tokens;
    ops::TapTable table;
    ops::TapBatch batch;

    ops::Taps at(tap::Point point) const { return {&table, &batch, point.index()}; }
  };
  // Random programs at every point (or no more than a plain add at those of the residual), three
  // capture sets, and tokens that use them in any order; every fourth token has neither. In place:
  // taps point into the scene. `combination` counts the ops on.
  void make_scene(Scene& scene, int64_t width, int64_t num_tokens, int64_t num_programs,
                  int& combination);
  bool only_adds_ = false;  // of scenes that are made
  // The scene's programs, sets and tokens as they are, on the device.
  void put_scene(Scene& scene, int64_t ring_elements);
  // Samples and readings of the latches that are read; slot 2 has none.
  void fill_latches(const ops::TapTable& table);

  // Two layers whose rows have this width at every point.
  static tap::Geometry geometry_of(int64_t width);
  // Appends a vector to a program's; returns its offset.
  static int32_t add_vector(const Row& row, std::vector<float>& vectors);
  // A residual norm with taps at all its points, of round's shape, against the reference.
  void check_residual_norm(int round, int& combination);
  // One op with every field drawn; its discontinuities lie where rounding does not reach.
  tap::TapOp random_op(int combination, int64_t width, tap::Point point,
                       std::vector<float>& vectors);

  // Applies a token's taps to h at a point; captured rows go to captured_.
  // `tolerance` is that of h before, and becomes that of h after.
  Row tapped(const Scene& scene, size_t token, tap::Point point, Row h, ReferenceLatches& latches,
             double& tolerance);
  ReferenceLatches latches_of(int32_t slot) const;

  void expect_row(const Row& got, const Row& expected, double tolerance, const std::string& what);
  // The ring has what tapped() captured, and nothing before and behind.
  void expect_captured(const Scene& scene, const std::string& what);
  // The latches are as they were, but for the samples that tapped() took of each token.
  void expect_latches(const Scene& scene, const std::vector<ReferenceLatches>& expected,
                      const std::string& what);

  static double most(const Row& row);  // the largest magnitude
  static Row row_of(const Matrix& x, int64_t r) { return x.slice(r, 1, 0, x.cols).values; }

 private:
  double uniform(double low, double high);
  Row unit_row(int64_t width, const Row& other);
  void choose_some(tap::TapOp& op, const Row& v1, std::vector<float>& vectors);
  void set_constants(tap::TapOp& op, tap::Point point);
  void set_feature(tap::TapOp& op, int64_t width, std::vector<float>& vectors);
  tap::Program random_program(int64_t width, int64_t most, int& combination);

  struct Captured {
    int64_t at = 0;  // in the ring
    Row row;
    double tolerance = 0;
  };
  std::vector<Captured> captured_;
  std::vector<int64_t> latches_;
};

}  // namespace rudder::testing
