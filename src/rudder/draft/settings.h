// Settings of speculation, by vLLM's names: the plain flags, and --speculative-config, which has
// the same as a JSON object. make_proposer() makes what they ask for. Read by apps/ on the main
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/draft/suffix_proposer.h"
#include "rudder/sched/proposer.h"
#include "rudder/step/draft_method.h"
#include "rudder/step/draft_tree.h"

namespace rudder::draft {

// Drafts of a sequence in one step at most.
inline constexpr int32_t kMaxSpeculativeTokens = 128;

using Method = step::DraftMethod;

// Whether the executor guesses, from a folder of weights other than the model's.
inline bool has_model(Method method) {
  return method >= Method::kDraftModel && method != Method::kMtp;
}

// Those methods by their names.
std::span<const std::pair<std::string_view, Method>> folder_methods();

// What is asked for, every field in range.
struct Speculation {
  Method method = Method::kNone;
  int32_t num_speculative_tokens = 0;  // drafts of a sequence in one step at most; 0 for kNone
  int32_t prompt_lookup_min = 0;       // kNgram alone
  int32_t prompt_lookup_max = 0;
  bool on_device = false;      // kNgram alone: the executor looks up (step::DraftCaps::look_up)
  SuffixSettings suffix;       // kSuffix alone
  step::RankedTree tree = {};  // of models and heads; empty: chains
  std::string tree_key = {};   // what asks for trees of the host
  std::string model = {};      // has_model() alone: the folder of the model or heads that guess
  int64_t max_bytes = 0;       // of what a proposer remembers

  // Whether the host makes trees, where steps take them.
  bool has_host_trees() const { return method == Method::kSuffix && suffix.makes_trees; }
};

struct SpeculativeSettings {
  std::string config;  // JSON
  std::string method = "none";
  std::string model;              // the folder of what guesses
  int32_t num_tokens = 0;         // 0: the method's own default
  int32_t prompt_lookup_min = 0;  // 0: not set
  int32_t prompt_lookup_max = 0;
  int64_t memory_mb = 256;

  void declare(SettingsTable& table);

  // kInvalidArgument, where = the flag, or the key of --speculative-config: a method or a key that
  // is not known, a number out of range, a key of another method, a plain flag beside the JSON.
  Result<Speculation> resolve() const;
};

// Null for kNone, and where the executor guesses.
std::unique_ptr<sched::DraftProposer> make_proposer(const Speculation& speculation);

}  // namespace rudder::draft
