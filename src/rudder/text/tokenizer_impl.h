// The parts of a Tokenizer, put together by tokenizer_load.cpp and run by tokenizer.cpp. Private to
// these two files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rudder/text/added_tokens.h"
#include "rudder/text/decode_pipeline.h"
#include "rudder/text/normalizer.h"
#include "rudder/text/pre_tokenizer.h"
#include "rudder/text/token_model.h"
#include "rudder/text/tokenizer.h"

namespace rudder::text {

struct Tokenizer::Impl {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenModel model;
  TokenSearch raw_tokens;         // added tokens that are searched before normalisation
  TokenSearch normalized_tokens;  // and after it
  DecodePipeline decode;
  std::vector<int32_t> prefix, suffix;  // what the post-processor puts around a text
  TokenTable tokens;                    // every token as the file spells it
  StringIndex index;                    // and back
  std::vector<bool> special;            // by id
  std::optional<int32_t> bos, eos;

  Result<void> encode_text(std::string_view text, bool at_origin, const EncodeOptions& options,
                           std::vector<int32_t>& out) const;
};

}  // namespace rudder::text
