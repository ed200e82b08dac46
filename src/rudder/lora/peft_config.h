// PeftConfig: adapter_config.json of a LoRA adapter, as Hugging Face peft writes it. What changes
// the model in another way than by low-rank sums is refused by its key. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/weights/name_pattern.h"

namespace rudder::lora {

inline constexpr int64_t kMaxFileRank = 4096;

class PeftConfig {
 public:
  // Errors (kCorruptFile, kUnsupported) name the file, as `where` spells it, and the key.
  static Result<PeftConfig> parse(std::string_view text, const std::string& where);

  // Of the module with that path ("model.layers.0.self_attn.q_proj"): the first pattern that it
  // fits, else what all have. Source: peft, tuners/lora/model.py, _create_and_replace.
  Result<int64_t> rank_of(std::string_view module) const;
  // Of B (A x): alpha / rank, with rsLoRA alpha / sqrt(rank) (arXiv 2312.03732).
  Result<float> scale_of(std::string_view module) const;

  bool has_magnitudes() const { return has_magnitudes_; }  // DoRA: every module has some

  // Keys that say nothing about serving.
  const std::vector<std::string>& ignored_keys() const { return ignored_; }

 private:
  template <typename T>
  using Patterns = std::vector<std::pair<weights::NamePattern, T>>;

  int64_t rank_ = 0;
  double alpha_ = 0;
  bool by_root_ = false;
  bool has_magnitudes_ = false;
  Patterns<int64_t> ranks_;
  Patterns<double> alphas_;
  std::vector<std::string> ignored_;
};

}  // namespace rudder::lora
