#include "token_files.h"

namespace rudder::apps {

Result<std::string> optional_text(const weights::Checkpoint& checkpoint, std::string_view file) {
  if (!checkpoint.has_file(file)) return std::string();
  return checkpoint.read_text(file);
}

Result<text::TokenFiles> read_token_files(const weights::Checkpoint& checkpoint) {
  text::TokenFiles files;
  RUDDER_TRY(files.config, optional_text(checkpoint, "tokenizer_config.json"));
  RUDDER_TRY(files.special_tokens, optional_text(checkpoint, text::kSpecialTokensFile));
  RUDDER_TRY(files.added_tokens, optional_text(checkpoint, text::kAddedTokensFile));
  return files;
}

}  // namespace rudder::apps
