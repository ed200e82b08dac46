// Writes a safetensors file: the caller declares all tensors first, then writes their bytes in any
// order and from any thread. Used by make_model and by capture consumers. The file gets its name
// only in finish(), when it is complete; until then it is a temporary file in the same folder,
// which the destructor removes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/weights/safetensors.h"

namespace rudder::weights {

struct TensorDecl {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  TensorShape shape;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

// The header with its length and padding: data begins at a multiple of 64 bytes, tensors in the
// order of their declaration. Names, sizes and the length limit are checked.
Result<std::vector<std::byte>> make_safetensors_header(std::span<const TensorDecl> tensors,
                                                       const Metadata& metadata);

class SafetensorsWriter {
 public:
  static Result<std::unique_ptr<SafetensorsWriter>> create(const std::string& path,
                                                           std::span<const TensorDecl> tensors,
                                                           const Metadata& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // `offset` is in bytes of tensor number `tensor`. Any thread.
  Result<void> write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  // Renames the file into place; `durable` forces data and name to the disk first. Bytes that were
  // never written are zero. Once, after every write returned.
  Result<void> finish(bool durable);

 private:
  SafetensorsWriter(std::string path, std::string temporary)
      : path_(std::move(path)), temporary_(std::move(temporary)) {}

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;  // of each tensor in the file: begin, end
};

// Writes a small file as finish() does.
Result<void> write_file_atomically(const std::string& path, std::string_view text, bool durable);

}  // namespace rudder::weights
