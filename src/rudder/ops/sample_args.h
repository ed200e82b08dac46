// Parameters of the sample macro-op. The formulas and their order are in step/sampling.h.
#pragma once

#include <cstdint>

#include "rudder/ops/sample_row.h"
#include "rudder/ops/slot_args.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// Samples each row, then keeps what the next step needs: carry and its position, ended,
// output_count. A row of a slot that has ended is kMasked and changes nothing. Rows chained by
// `draft` are sampled in order, each after what the one before it left in the slot; kRejected ones
// are not sampled and change nothing, whatever their logits are. Of the rows of a tree those on the
// path of the tokens that are sampled are sampled so, from the first on; the others are kRejected.
// kNumerical (NaN or +Inf in the row, or nothing above -Inf, also after mask and bans) ends the
// sequence without a token.
struct SampleArgs {
  tensor::View logits;  // [R, vocab] f32; may be overwritten
  tensor::View rows;    // [R, sizeof(SampleRow)] u8
  tensor::View lists;   // [.] i32
  // [M, ceil(vocab / 32)] i32; optional: bit t % 32 of word t / 32 is 0 where token t gets -Inf.
  tensor::View masks = {};
  SlotState state;
  tensor::View sampled;  // [R, 4] i32 out: SampledToken
  tensor::View top;      // [R, max_logprobs, 2] i32 out: TopLogprob, num_logprobs of each row
  // Facts about the rows, from which a backend chooses its kernels; a captured step keeps those of
  // its capture.
  bool all_greedy = false;   // temperature 0 in every row
  bool any_logprobs = true;  // num_logprobs >= 0 in some row
  bool any_changed = true;   // bias, bans or penalties in some row
  bool any_masked = true;    // mask_row >= 0 in some row
  bool any_drafts = true;    // draft >= 0 or parent_up > 0 in some row
};

}  // namespace rudder::ops
