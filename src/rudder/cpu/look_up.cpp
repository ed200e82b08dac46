// HostDraftOps::look_up: the reference of prompt lookup on a device. It searches, where the host's
// own form (draft/ngram_index.h) keeps an index.
#include <algorithm>
#include <span>

#include "rudder/base/check.h"
#include "rudder/cpu/draft_ops.h"

namespace rudder::cpu {
namespace {

// Where the last earlier occurrence of the longest n-gram at the end goes on; -1: there is none.
int64_t find_ngram(std::span<const int32_t> tokens, int32_t min_n, int32_t max_n) {
  const auto len = std::ssize(tokens);
  int64_t best = -1;
  int64_t best_n = min_n - 1;
  for (int64_t from = len - 1; from > best_n && best_n < max_n; --from) {
    const int64_t most = std::min<int64_t>(max_n, from);
    int64_t n = 0;
    while (n < most &&
           tokens[static_cast<size_t>(from - 1 - n)] == tokens[static_cast<size_t>(len - 1 - n)]) {
      ++n;
    }
    if (n <= best_n) continue;
    best_n = n;
    best = from;
  }
  return best;
}

// Of the rows [begin, end), which are a sequence's.
void look_up_sequence(const ops::LookUpArgs& args, int64_t begin, int64_t end) {
  const auto* rows = static_cast<const ops::SampleRow*>(args.rows.data);
  const auto* sampled = static_cast<const ops::SampledToken*>(args.sampled.data);
  const int64_t slot = rows[begin].slot;
  const int64_t max_len = args.state.history.shape[1];
  int32_t* const history = args.state.history.as<int32_t>() + slot * max_len;
  int64_t len = 0;
  bool has_ended = false;
  for (int64_t r = begin; r < end; ++r) {
    if (sampled[r].end == ops::SampleEnd::kRejected) continue;
    has_ended = has_ended || sampled[r].end != ops::SampleEnd::kNone;
    if (sampled[r].token < 0) continue;
    RUDDER_CHECK(rows[r].position < max_len, "position {} of {}", rows[r].position, max_len);
    history[rows[r].position] = sampled[r].token;
    len = rows[r].position + 1;
  }
  const int64_t most = args.state.guess.shape[1];
  int32_t* const guess = args.state.guess.as<int32_t>() + slot * most;
  std::fill_n(guess, most, -1);
  const int64_t count =
      std::min({int64_t{rows[begin].num_guess}, most, rows[begin].max_len - len - 1});
  if (has_ended || count <= 0) return;
  const std::span<const int32_t> tokens(history, static_cast<size_t>(len));
  const int64_t from = find_ngram(tokens, args.min_n, args.max_n);
  for (int64_t i = 0; from >= 0 && i < count; ++i) {
    guess[i] = from + i < len ? history[from + i] : guess[from + i - len];
  }
}

}  // namespace

void HostDraftOps::look_up(const ops::LookUpArgs& args) {
  const auto* rows = static_cast<const ops::SampleRow*>(args.rows.data);
  const int64_t num_rows = args.rows.num_rows();
  const int64_t padding = args.state.carry.shape[0] - 1;
  RUDDER_CHECK(1 <= args.min_n && args.min_n <= args.max_n && args.max_n <= ops::kMaxNgram);
  for (int64_t begin = 0; begin < num_rows;) {
    int64_t end = begin + 1;
    while (end < num_rows && rows[end].slot == rows[begin].slot) ++end;
    if (rows[begin].slot != padding) look_up_sequence(args, begin, end);
    begin = end;
  }
}

}  // namespace rudder::cpu
