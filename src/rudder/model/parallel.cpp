#include "rudder/model/parallel.h"

#include <algorithm>

#include "rudder/model/branch.h"
#include "rudder/model/tensors.h"

namespace rudder::model {

void list_tensors(const Parallel& mixer, int64_t hidden, const Parallel::Names& names,
                  Parallel::Weights* weights, LayerTensors& out) {
  list_tensors(mixer.attention, hidden, names.attention,
               target_in(weights, &Parallel::Weights::attention), out);
  list_tensors(mixer.space, hidden, names.space, target_in(weights, &Parallel::Weights::space),
               out);
}

std::array<int64_t, 9> scratch_widths(const Parallel& mixer) {
  const auto of_attention = scratch_widths(mixer.attention);
  const auto of_space = scratch_widths(mixer.space);
  std::array<int64_t, 9> widths = {};
  const auto behind = std::ranges::copy(of_attention, widths.begin()).out;
  std::ranges::fill(std::ranges::copy(of_space, behind).out, widths.end(), mixer.hidden);
  return widths;
}

Mixed mix(const Parallel& mixer, const Parallel::Weights& weights, const Operand& in,
          const LayerStep& step) {
  const Scratch scratch(step.scratch, step.max_tokens, scratch_widths(mixer));
  Mixed mixed = mix(mixer.attention, weights.attention, in, step);
  int64_t first = 0;  // of the state space's scratch memory
  for (const int64_t width : scratch_widths(mixer.attention)) {
    first += piece_elements(step.max_tokens, width);
  }
  const ops::View rest = step.scratch.rows(first, step.scratch.num_rows() - first);
  const Mixed read =
      mix(mixer.space, weights.space, step.products.as_taken(weights.space.in, in, scratch[7]),
          step.with_scratch(rest));
  mixed.added = step.products.project(
      weights.space.out, step.products.operand_of(weights.space.out, read.out, read.free),
      scratch[7]);
  mixed.added_rows = scratch[8];
  return mixed;
}

}  // namespace rudder::model
