// Perplexity of a scored text, and how far one model's distributions are from another's on it.
// Pure.
#pragma once

#include <cstdint>

#include "eval/scored_text.h"

namespace rudder::apps {

// A mean and its standard error, of independent samples: deviation / sqrt(count).
struct Estimate {
  double value = 0;
  double error = 0;
};

// exp(-mean log-probability) of the scored tokens; the error is that of the mean times the value.
Estimate perplexity_of(const ScoredText& text);

// KL(reference || other) in nats a token. What both runs tell of a token's distribution is the
// probabilities of some tokens: the likeliest of each, and the text's own. Those that both tell are
// cells of their own, all others one cell, whose probability is the rest in either run.
struct TextDivergence {
  // Of the cells. By the data processing inequality no more than KL of the whole vocabulary.
  Estimate kl;
  double median = 0;
  double percentile_99 = 0;
  double most = 0;
  // The mean, with the cell of all others taken apart as the named cells are: their divergence
  // among themselves holds for the others as well. An estimate of KL of the whole vocabulary, no
  // bound.
  double kl_with_rest = 0;
  double rest = 0;        // mean probability, in the reference, of the cell of all others
  Estimate first_choice;  // share of places where both hold the same token for the likeliest
  Estimate perplexity;
  Estimate reference_perplexity;
  Estimate perplexity_ratio;  // of the other to the reference; the error is of paired differences
  int64_t num_tokens = 0;
};

// Both of the same tokens at the same positions, with a likeliest token each.
TextDivergence divergence_of(const ScoredText& reference, const ScoredText& other);

}  // namespace rudder::apps
