// Reads vLLM's speculative_token_tree: a string with a list of tuples, as
// "[(0,), (1,), (0, 0), (0, 1)]". A tuple is a draft: (a, b) is the a-th likeliest first token and
// behind it the b-th likeliest second one, from 0 on.
#pragma once

#include <string_view>

#include "rudder/base/result.h"
#include "rudder/step/draft_tree.h"

namespace rudder::draft {

// The drafts in the order of their depth, then of their ranks. kInvalidArgument: text that is no
// such list, no draft or more than kMaxTreeDrafts, one that is there twice, has a rank that is too
// large, or does not follow one that is there.
Result<step::RankedTree> read_token_tree(std::string_view text);

}  // namespace rudder::draft
