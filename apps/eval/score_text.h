// Scores a text with a model in this process: how likely each token was behind those before it.
// Main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "eval/scored_text.h"
#include "model_session.h"
#include "rudder/base/result.h"

namespace rudder::apps {

// The text of a file as tokens; with `parse_special` spellings of special tokens in it are these
// tokens (text::EncodeOptions). Windows of kRolling
// begin with the prefix that the model's texts have (BOS, else EOS); the tokens of the other kinds
// have what the tokenizer itself writes in front. kInvalidArgument: it is no UTF-8.
Result<ScoredText> encode_text_file(const ModelFiles& files, const std::string& path,
                                    const WindowSettings& windows, bool parse_special);

// Fills in the scores, with as many of the likeliest tokens, or as the engine tells at most. Shows
// its progress. kInvalidArgument with the field: a window does not fit the model's context.
Result<void> score_text(ModelSession& session, int32_t top, const std::string& label,
                        ScoredText* text);

}  // namespace rudder::apps
