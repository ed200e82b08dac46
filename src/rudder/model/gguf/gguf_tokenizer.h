// The tokenizer of a GGUF file as the small files of a Hugging Face folder, so that text/ reads one
// kind of tokenizer. Load time, one thread.
#pragma once

#include <string>

#include "rudder/base/result.h"
#include "rudder/weights/gguf.h"

namespace rudder::model {

struct GgufTokenizerFiles {
  std::string tokenizer;          // tokenizer.json
  std::string config;             // tokenizer_config.json, with the chat template
  std::string generation_config;  // generation_config.json: the ends of a sequence
  std::string tools_template;     // additional_chat_templates/tool_use.jinja; may be empty
};

// "gpt2" (BPE of bytes, merges in the file, pieces by "tokenizer.ggml.pre") and "llama" (BPE of
// SentencePiece: the pair whose token has the largest score is merged first, what no token spells
// is its bytes) are read. Errors name the file and the key: kUnsupported for another model or a
// `pre` whose pattern is not known, kCorruptFile for lists of different lengths, a token that is
// there twice or is no UTF-8, an id beyond the list, an unknown type of token.
Result<GgufTokenizerFiles> gguf_tokenizer(const weights::GgufFile& metadata);

}  // namespace rudder::model
