// The tokenizer of a Hugging Face folder as the metadata of a GGUF file: the other way round than
// gguf_tokenizer.h. Load time, one thread.
#pragma once

#include <string>

#include "rudder/base/result.h"
#include "rudder/weights/checkpoint.h"
#include "rudder/weights/gguf_writer.h"

namespace rudder::model {

// `vocab_size`: rows of the embedding; tokens beyond those of the tokenizer are unused ones.
// kUnsupported, with the file and the field, for what GGUF has no key for.
Result<void> add_tokenizer(const weights::Checkpoint& checkpoint, int64_t vocab_size,
                           weights::GgufWriter& out);

// Whether tokenizer.json, as a GGUF file says it, has the same tokens, merges and added tokens as
// the original. kUnsupported, with the field that differs.
Result<void> check_tokenizer_said(const std::string& original, const std::string& said);

}  // namespace rudder::model
