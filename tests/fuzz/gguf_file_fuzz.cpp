// A GGUF file that is accepted has tensors that lie in its data in order, each of whole blocks, and
// values that can be read as what they are and as nothing else.
#include <span>
#include <vector>

#include "require.h"
#include "rudder/weights/gguf.h"

namespace rudder::fuzz {
namespace {

using weights::GgufFile;
using weights::GgufTensor;
using weights::GgufType;
using weights::GgufValue;

template <typename T>
bool is_read(const GgufFile& file, std::string_view key, const Result<T>& result) {
  if (!result) {
    require_error(result.error(), {ErrorCode::kCorruptFile}, file.file());
    RUDDER_CHECK(result.error().where == file.where(key), "{}", result.error().where);
  }
  return result.has_value();
}

void require_value(const GgufFile& file, std::string_view key, const GgufValue& value) {
  const bool is_text = value.type == GgufType::kString;
  RUDDER_CHECK(is_read(file, key, file.text(key)) == (is_text && !value.is_array));
  RUDDER_CHECK(is_read(file, key, file.texts(key)) == (is_text && value.is_array));
  RUDDER_CHECK(is_read(file, key, file.boolean(key)) ==
               (value.type == GgufType::kBool && !value.is_array));
  const bool is_integer = is_read(file, key, file.integer(key, INT64_MIN, INT64_MAX));
  RUDDER_CHECK(!is_integer || !(is_text || value.is_array));
  const bool is_number = is_read(file, key, file.number(key));
  RUDDER_CHECK(!is_integer || is_number);
  if (const auto numbers = file.numbers(key)) RUDDER_CHECK(numbers->size() == value.count);
}

}  // namespace

void fuzz_gguf_file(std::string_view input) {
  const auto file = GgufFile::parse(std::as_bytes(std::span(input)), "file");
  if (!file) {
    return require_error(file.error(), {ErrorCode::kCorruptFile, ErrorCode::kUnsupported}, "file");
  }
  for (const auto& [key, value] : file->values()) require_value(*file, key, value);
  const std::byte* end = std::as_bytes(std::span(input)).data();
  for (const GgufTensor& tensor : file->tensors()) {
    RUDDER_CHECK(tensor.bytes.data() >= end && tensor.bytes.size() % tensor.type->bytes == 0, "{}",
                 tensor.name);
    end = tensor.bytes.data() + tensor.bytes.size();
    if (tensor.type->expand == nullptr || tensor.bytes.empty()) continue;
    std::vector<float> values(tensor.type->values);  // of its last block
    tensor.type->expand(end - tensor.type->bytes, 1, values.data());
  }
  RUDDER_CHECK(end <= std::as_bytes(std::span(input)).data() + input.size());
}

}  // namespace rudder::fuzz
