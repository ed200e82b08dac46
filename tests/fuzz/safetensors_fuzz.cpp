// A file that is accepted has tensors that cover its data in order, and what is written of them is
// read back as the same.
#include <vector>

#include "require.h"
#include "rudder/weights/safetensors.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::fuzz {
namespace {

using weights::Safetensors;
using weights::TensorEntry;

std::vector<TensorEntry> in_file_order(const Safetensors& file) {
  std::vector<TensorEntry> tensors = file.tensors;
  std::ranges::stable_sort(tensors, {},
                           [](const TensorEntry& t) { return std::pair(t.begin, t.end); });
  return tensors;
}

void require_cover(const Safetensors& file) {
  uint64_t end = 0;
  for (const TensorEntry& tensor : in_file_order(file)) {
    uint64_t bytes = 0;
    RUDDER_CHECK(weights::checked_tensor_bytes(tensor.shape, dtype_bytes(tensor.dtype), bytes));
    RUDDER_CHECK(tensor.begin == end && tensor.bytes() == bytes, "{}", tensor.name);
    RUDDER_CHECK(file.find(tensor.name) != nullptr, "{}", tensor.name);
    end = tensor.end;
  }
  RUDDER_CHECK(end == file.data.size());
}

void require_same(const Safetensors& a, const Safetensors& b) {
  RUDDER_CHECK(a.tensors.size() == b.tensors.size() && a.metadata == b.metadata);
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const TensorEntry& x = a.tensors[i];
    const TensorEntry& y = b.tensors[i];
    RUDDER_CHECK(x.name == y.name && x.dtype == y.dtype && x.shape == y.shape, "{}", x.name);
    RUDDER_CHECK(std::ranges::equal(a.bytes_of(x), b.bytes_of(y)), "{}", x.name);
  }
}

}  // namespace

void fuzz_safetensors(std::string_view input) {
  const auto file = weights::parse_safetensors(std::as_bytes(std::span(input)), "file");
  if (!file) return require_error(file.error(), {ErrorCode::kCorruptFile}, "file");
  require_cover(*file);

  std::vector<weights::TensorDecl> declared;
  for (const TensorEntry& tensor : in_file_order(*file)) {
    declared.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  auto bytes = weights::make_safetensors_header(declared, file->metadata);
  RUDDER_CHECK(bytes.has_value(), "{}", bytes.error().to_string());
  bytes->insert(bytes->end(), file->data.begin(), file->data.end());
  const auto again = weights::parse_safetensors(*bytes, "again");
  RUDDER_CHECK(again.has_value(), "{}", again.error().to_string());
  require_same(*file, *again);
}

}  // namespace rudder::fuzz
