// Tokenizer: a Hugging Face `tokenizer.json` as text -> token ids -> text, with the ids and the
// bytes that the reference implementation gives. BPE, byte-level (GPT-2, Llama 3, Qwen) and
// SentencePiece style (Llama 2, Mistral, Gemma, Phi 3), and Unigram. A component that is not
// supported is refused at load by its name, never ignored. Called by the tokenise pool (encode) and
// the engine thread (StreamDecoder). Immutable after load and shared: every member is safe from any
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/side_files.h"

namespace rudder::text {

struct EncodeOptions {
  // Run the post-processor: BOS, EOS or whatever template the file declares around the text.
  bool add_special_tokens = true;
  // Recognise special tokens written in the text ("<|im_start|>"). False: their spelling is encoded
  // as ordinary text, which is what untrusted text wants. Added tokens that are not special are
  // recognised either way.
  bool parse_special = true;
  // Encoding ends where there are so many ids, in the middle of the text if need be: who would
  // refuse a longer one need not wait for the whole of it. There may be some more than these.
  size_t max_ids = SIZE_MAX;
};

class DecodePipeline;  // decode_pipeline.h: the file's decoder, compiled for streaming

class Tokenizer {
 public:
  // `tokenizer_config_json` may be empty; it names tokens and may add some (config_tokens.h).
  // Errors: kCorruptFile (not the format), kUnsupported (names the component), both with `where` =
  // the JSON path inside the file.
  static Result<std::shared_ptr<const Tokenizer>> from_json(
      std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});
  static Result<std::shared_ptr<const Tokenizer>> from_files(std::string_view tokenizer_json,
                                                             const TokenFiles& files);
  // Reads tokenizer.json and, where they are there, the files beside it in `directory`.
  static Result<std::shared_ptr<const Tokenizer>> from_directory(
      const std::filesystem::path& directory);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // kInvalidArgument if `utf8` is not valid UTF-8 (with the byte offset) or a file's regex needs
  // more than its match limit. A character that the vocabulary cannot spell becomes the unknown
  // token, or nothing if there is none, as in the reference. O(n log n) in the bytes, whatever they
  // are.
  Result<std::vector<int32_t>> encode(std::string_view utf8,
                                      const EncodeOptions& options = {}) const;

  // Ids outside the vocabulary are skipped, as the reference does. Bytes that are not UTF-8 become
  // U+FFFD. Always valid UTF-8.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // One past the largest id, added tokens included. The model's embedding may have more rows.
  int32_t vocab_size() const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // As the file spells it ("Ġthe", "<0x0A>"); empty if there is no such id.
  std::string_view id_to_token(int32_t id) const;
  // The bytes that the token stands for inside a text (" the", "\n"), not always whole UTF-8
  // characters; empty if there is no such id. For `bytes` in logprobs and for grammar masks.
  std::string_view token_bytes(int32_t id) const;
  // Special tokens are those that decode(skip_special) leaves out.
  bool is_special(int32_t id) const;

  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

  const DecodePipeline& decode_pipeline() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace rudder::text
