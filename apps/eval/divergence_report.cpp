#include "eval/divergence_report.h"

#include <fmt/format.h>

#include <boost/json.hpp>

namespace rudder::apps {

std::string divergence_text(const TextDivergence& found) {
  return fmt::format(
      "tokens              {}\n"
      "perplexity          {:.4f} +- {:.4f}, reference {:.4f}\n"
      "change              {:+.2f} % +- {:.2f} %\n"
      "KL, nats a token    {:.3e} +- {:.1e} (median {:.2e}, 99th percentile {:.2e}, most {:.2e})\n"
      "with the rest       {:.3e}: {:.2f} % of the probability is of tokens that not both runs "
      "tell\n"
      "same first choice   {:.2f} % +- {:.2f} %\n",
      found.num_tokens, found.perplexity.value, found.perplexity.error,
      found.reference_perplexity.value, 100 * (found.perplexity_ratio.value - 1),
      100 * found.perplexity_ratio.error, found.kl.value, found.kl.error, found.median,
      found.percentile_99, found.most, found.kl_with_rest, 100 * found.rest,
      100 * found.first_choice.value, 100 * found.first_choice.error);
}

boost::json::object divergence_json(const TextDivergence& found) {
  return {{"num_tokens", found.num_tokens},
          {"perplexity", found.perplexity.value},
          {"perplexity_error", found.perplexity.error},
          {"reference_perplexity", found.reference_perplexity.value},
          {"perplexity_ratio", found.perplexity_ratio.value},
          {"perplexity_ratio_error", found.perplexity_ratio.error},
          {"kl", found.kl.value},
          {"kl_error", found.kl.error},
          {"kl_median", found.median},
          {"kl_p99", found.percentile_99},
          {"kl_max", found.most},
          {"kl_with_rest", found.kl_with_rest},
          {"rest", found.rest},
          {"first_choice", found.first_choice.value},
          {"first_choice_error", found.first_choice.error}};
}

}  // namespace rudder::apps
