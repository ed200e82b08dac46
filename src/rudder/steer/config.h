// Config: the resolved steering of a request, a module or the server: ops in the order in which
// they run, lowered to the device's forms, with all constants computed. The server's threads build
// it; it is immutable, and any thread reads it. It makes programs at their first use and keeps
// them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/lower.h"
#include "rudder/steer/op_spec.h"
#include "rudder/steer/selector.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/norm_gain.h"
#include "rudder/tap/sequence_taps.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

// What steering needs to know of the model that is served.
struct Model {
  tap::Geometry geometry;
  tap::Limits limits;
  // Of content keys: who lacks it cannot make two programs with one key. Random, one a process.
  std::array<uint64_t, 2> hash_secret = {};
  // As the device has encoder and decoder of whole dictionaries.
  tensor::DType dictionary_dtype = tensor::DType::kF32;
  // Of the norm in front of the MLP, by layer. Empty: nobody knows them.
  std::vector<tap::NormGain> mlp_gains = {};
};

struct KeyedProgram {
  tap::ContentKey key;                          // {0, 0} when there is no program
  std::shared_ptr<const tap::Program> program;  // null: none
};

class Config {
 public:
  // `specs` in order: global before named before inline. Plain adds of one point that run one after
  // another are summed in fp64 and rounded once, so that tiers cost one add. What changes nothing
  // (a zero vector, scale 0) is left out.
  // kInvalidArgument with the spec's `where`: a vector without direction, too many ops at a point,
  // too many different selectors, more latches than a slot has, a gate that the op cannot take.
  static Result<std::shared_ptr<const Config>> build(std::shared_ptr<const Model> model,
                                                     std::vector<OpSpec> specs);

  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }
  const std::vector<OpSpec>& specs() const { return specs_; }
  bool empty() const { return lowered_.ops.empty(); }
  bool needs_whole_prompt() const { return lowered_.needs_whole_prompt; }
  bool is_controlled() const { return lowered_.is_controlled; }

  // Ops are chosen by selector: bit i of `active` stands for selectors()[i].
  const std::vector<Selector>& selectors() const { return lowered_.selectors; }
  KeyedProgram program(uint64_t active) const;
  // Some op of that choice changes its strength from token to token.
  bool is_scheduled(uint64_t active) const { return (active & lowered_.scheduled) != 0; }

 private:
  Config(std::shared_ptr<const Model> model, std::vector<OpSpec> specs, Lowered lowered)
      : model_(std::move(model)), specs_(std::move(specs)), lowered_(std::move(lowered)) {}

  const std::shared_ptr<const Model> model_;
  const std::vector<OpSpec> specs_;
  const Lowered lowered_;

  mutable std::mutex mutex_;
  mutable std::vector<std::pair<uint64_t, KeyedProgram>> programs_;  // made so far
};

}  // namespace rudder::steer
