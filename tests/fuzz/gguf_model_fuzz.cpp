// The metadata of a GGUF file that is accepted become a config that is read, or refused by one of
// its keys, and a tokenizer that turns a text into tokens of its list.
#include <span>
#include <string>
#include <vector>

#include "require.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/gguf/gguf_config.h"
#include "rudder/model/gguf/gguf_tokenizer.h"
#include "rudder/text/tokenizer.h"
#include "rudder/weights/hf_config.h"

namespace rudder::fuzz {
namespace {

using weights::GgufFile;

constexpr std::initializer_list<ErrorCode> kRefusals = {
    ErrorCode::kCorruptFile, ErrorCode::kUnsupported, ErrorCode::kInvalidArgument};

void require_config(const GgufFile& file) {
  const auto name = file.text("general.architecture");
  if (!name) return;
  const auto architecture = model::find_gguf_architecture(*name);
  if (!architecture) return require_error(architecture.error(), kRefusals);
  std::vector<const weights::GgufTensor*> tensors;
  for (const weights::GgufTensor& tensor : file.tensors()) {
    tensors.push_back(&tensor);
    RUDDER_CHECK(!model::tensor_name_of(**architecture, tensor.name).empty());
  }
  const auto text = model::gguf_config({file, tensors}, **architecture);
  if (!text) return require_error(text.error(), kRefusals, "file");
  const auto config = weights::HfConfig::parse(*text, "config.json");
  RUDDER_CHECK(config.has_value(), "{}", config.error().to_string());
  const auto spec = model::read_config(*config);
  if (!spec) require_error(spec.error(), kRefusals, "config.json");
}

void require_tokenizer(const GgufFile& file) {
  const auto files = model::gguf_tokenizer(file);
  if (!files) return require_error(files.error(), kRefusals, "file");
  const auto tokenizer = text::Tokenizer::from_json(files->tokenizer, files->config);
  if (!tokenizer) return require_error(tokenizer.error(), kRefusals);
  const auto ids = (*tokenizer)->encode("It's 2026,  \n naïve 日本", {});
  if (!ids) return require_error(ids.error(), kRefusals);
  for (const int32_t id : *ids) RUDDER_CHECK(id >= 0 && id < (*tokenizer)->vocab_size(), "{}", id);
}

}  // namespace

void fuzz_gguf_model(std::string_view input) {
  const CpuBound bound(10);
  const auto file = GgufFile::parse(std::as_bytes(std::span(input)), "file");
  if (!file) return;
  require_config(*file);
  require_tokenizer(*file);
}

}  // namespace rudder::fuzz
