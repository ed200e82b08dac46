// special_tokens_map.json and added_tokens.json, which older versions of transformers wrote beside
// tokenizer_config.json, as transformers reads them today: where the config has
// `added_tokens_decoder`, which says everything that they say, not at all; else names of the map go
// before those of the config, and the tokens of added_tokens.json stand by their ids beside those
// of tokenizer.json. Called by the loaders of tokenizers and templates.
#pragma once

#include <array>
#include <boost/json/fwd.hpp>
#include <filesystem>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

namespace rudder::text {

// Names of tokens that every tokenizer may have; templates have them as variables.
inline constexpr std::array<std::string_view, 7> kTokenNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

inline constexpr std::string_view kTokensById = "added_tokens_decoder";
inline constexpr std::string_view kSpecialTokensFile = "special_tokens_map.json";
inline constexpr std::string_view kAddedTokensFile = "added_tokens.json";

// The texts of a model's folder that name tokens beside its tokenizer.json. Each may be empty.
struct TokenFiles {
  std::string config = {};          // tokenizer_config.json
  std::string special_tokens = {};  // special_tokens_map.json
  std::string added_tokens = {};    // added_tokens.json
};

// A file's text as an object; {} where it is empty. Errors name the file.
Result<boost::json::object> parse_object_file(std::string_view text, std::string_view name);

// Those of a folder that are there.
Result<TokenFiles> read_token_files(const std::filesystem::path& directory);

// The config with what the other files add to it, as if it had been in the config from the first.
// `added`: the `added_tokens` of tokenizer.json, or null. `decoder_path`, where it is not null: the
// file, with what leads there, which `added_tokens_decoder` comes from.
Result<boost::json::object> merge_token_files(const TokenFiles& files,
                                              const boost::json::value& added,
                                              std::string* decoder_path = nullptr);

}  // namespace rudder::text
