// The tokens of tokenizer_config.json, which join the `added_tokens` of tokenizer.json as in
// transformers: those of `added_tokens_decoder` come by id, or change how those that are there are
// found; names (`bos_token`, `image_token`, ...) and lists of special tokens add what is missing.
// Called by the loader alone.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/added_tokens.h"
#include "rudder/text/token_model.h"

namespace rudder::text {

// Added tokens by content. One that the vocabulary lacks gets the next id, as the reference numbers
// them.
class AddedTokens {
 public:
  explicit AddedTokens(const TokenModel& model) : model_(model), next_id_(model.count()) {}

  const AddedToken* find(std::string_view content) const;
  // The id that a token of this content has, or would get.
  int32_t id_of(std::string_view content) const;
  // Adds it under that id, or changes the one of its content; special ones stay so.
  void put(AddedToken token);
  std::vector<AddedToken>& list() { return list_; }

 private:
  const TokenModel& model_;
  int32_t next_id_;
  std::vector<AddedToken> list_;
  std::unordered_map<std::string, size_t> index_;
};

// All but the id of an object that says how a token is found.
Result<AddedToken> read_token_flags(const boost::json::value& node, const std::string& path);

// `config` and `decoder_path`: of merge_token_files (side_files.h).
Result<void> add_config_tokens(const boost::json::object& config, const std::string& decoder_path,
                               AddedTokens& tokens);

}  // namespace rudder::text
