// HostDraftOps: the ops of what guesses, for every CPU backend, on rows in f32. It keeps nothing;
// HostOps owns the one object, and its thread calls it.
#pragma once

#include "rudder/ops/facets.h"

namespace rudder::cpu {

class HostDraftOps final : public ops::DraftOps {
 public:
  void place_rows(const ops::PlaceRowsArgs& args) override;
  void spread_logits(const ops::SpreadLogitsArgs& args) override;
  void residual_act(const ops::ResidualActArgs& args) override;
  void look_up(const ops::LookUpArgs& args) override;
  void place_tails(const ops::PlaceTailsArgs& args) override;
  void keep_guess(const ops::KeepGuessArgs& args) override;
};

}  // namespace rudder::cpu
