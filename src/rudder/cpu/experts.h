// Experts: the ops of mixtures of experts for every CPU backend, on rows in f32. An expert's weight
// is one of the backend's own, and the rows that chose it go through the backend's own product
// together. HostOps owns the one object, and its thread calls it.
#pragma once

#include <vector>

#include "rudder/ops/ops.h"

namespace rudder::cpu {

class Experts final : public ops::ExpertOps, public ops::RouterTapOps {
 public:
  explicit Experts(ops::Ops& backend) : backend_(backend) {}  // outlives it

  Result<ops::LinearWeight> make_experts(std::span<const ops::LinearPart> parts,
                                         int64_t experts) override;
  void route(const ops::RouteArgs& args) override { route_tapped({args, {}, {}}); }
  void route_tapped(const ops::RouteTappedArgs& args) override;
  void expert_linear(const ops::ExpertLinearArgs& args) override;
  void combine_experts(const ops::CombineExpertsArgs& args) override;
  ops::RouterTapOps* router_taps() override { return this; }

 private:
  // Of one expert in one call: its rows side by side, and where its results go.
  struct Rows {
    std::vector<float> in;
    std::vector<float> out;
    std::vector<float> activated;  // of `out`
  };

  ops::Ops& backend_;
  Rows rows_;                    // grows to the largest call and is kept
  std::vector<int64_t> begins_;  // [experts + 1] of expert e in pairs_
  std::vector<int64_t> pairs_;   // [T * k] by expert, then by row of `out`
  std::vector<float> sum_;       // [hidden] of one token
};

}  // namespace rudder::cpu
