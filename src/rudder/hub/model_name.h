// What a person writes where a model is wanted: a folder, or the name of a repository of the hub
// (org/name, and org/name:QUANT for a GGUF file of it). Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::hub {

struct ModelName {
  std::string repository;  // "Qwen/Qwen3-8B"
  std::string quant;       // "Q4_K_M" of org/name:Q4_K_M; empty: the repository's own weights

  bool operator==(const ModelName&) const = default;
};

// Whether `text` can only be a path: it begins as one, or is no name of a repository. What is
// neither for sure (org/name) is a folder where there is one; the caller looks.
bool is_path_only(std::string_view text);

// kInvalidArgument says what a name looks like.
Result<ModelName> parse_model_name(std::string_view text);

// A branch, a tag, refs/pr/N or a commit; it becomes part of an address and of a path.
Result<void> check_revision(std::string_view revision);

// Forty hexadecimal digits: it names one state for ever.
bool is_commit(std::string_view revision);

}  // namespace rudder::hub
