#include "logit_distance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace rudder::golden {

Distance distance(std::span<const float> expected, std::span<const float> actual, size_t vocab,
                  size_t uncounted) {
  const auto log_sum = [](std::span<const float> logits) {
    double total = 0;
    for (const float v : logits) total += std::exp(static_cast<double>(v));
    return std::log(total);
  };
  const auto best = [](std::span<const float> logits) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  };
  const size_t num_rows = expected.size() / vocab;
  Distance out;
  std::vector<double> kls(num_rows);
  for (size_t row = 0; row < num_rows; ++row) {
    const auto e = expected.subspan(row * vocab, vocab);
    const auto a = actual.subspan(row * vocab, vocab);
    const double e_sum = log_sum(e);
    const double a_sum = log_sum(a);
    for (size_t i = 0; i < vocab; ++i) {
      kls[row] += std::exp(e[i] - e_sum) * ((e[i] - e_sum) - (a[i] - a_sum));
    }
    out.agreement += best(e) == best(a) ? 1 : 0;
  }
  std::ranges::sort(kls);
  kls.resize(num_rows - std::min(num_rows, uncounted));
  out.mean_kl = std::accumulate(kls.begin(), kls.end(), 0.0) / static_cast<double>(kls.size());
  out.agreement /= static_cast<double>(num_rows);
  return out;
}

}  // namespace rudder::golden
