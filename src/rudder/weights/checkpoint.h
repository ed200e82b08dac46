// Checkpoint: a model in the Hugging Face layout, as named files and named tensors. Files come from
// a folder (mapped) or from memory (the model embedded in the binary). Immutable after open;
// tensors point into its memory, so it must outlive them. Any thread may read.
//
// The index is checked, not trusted: it may name only files of the same folder, and it must list
// exactly the tensors that each file holds. A tensor whose data is not aligned in its file is
// copied at open.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tensor/view.h"
#include "rudder/weights/packed_tensor.h"

namespace rudder::weights {

struct TensorInfo {
  std::string name;
  tensor::View view;  // read only, into the checkpoint's memory; F32 without data where packed
  std::string file;
  std::optional<PackedTensor> packed = {};
};

struct MemoryFile {
  std::string name;  // "config.json"
  std::span<const std::byte> bytes;
};

class Checkpoint {
 public:
  // Reads the headers of every safetensors file (index or single) and checks them; tensor data is
  // mapped, not read. Where neither `model.safetensors` nor its index is there, `other` is the file
  // of weights.
  static Result<std::shared_ptr<const Checkpoint>> open_folder(const std::string& folder,
                                                               std::string_view other = {});
  // The files must outlive the checkpoint.
  static Result<std::shared_ptr<const Checkpoint>> open_memory(std::vector<MemoryFile> files);
  // `base` with another text for one file, or with a file more.
  static std::shared_ptr<const Checkpoint> with_text(std::shared_ptr<const Checkpoint> base,
                                                     std::string file, std::string text);
  virtual ~Checkpoint() = default;

  virtual std::string name() const = 0;  // the folder's last part
  // Text of a small file (config.json, 1_Pooling/config.json); kNotFound when there is none.
  virtual Result<std::string> read_text(std::string_view file) const = 0;
  virtual bool has_file(std::string_view file) const = 0;

  virtual const std::vector<TensorInfo>& tensors() const = 0;  // sorted by name
  virtual const TensorInfo* find(std::string_view tensor) const = 0;
  virtual int64_t tensor_bytes() const = 0;
  // Asks the kernel to read ahead the tensor's pages.
  virtual void prefetch(const TensorInfo& tensor) const = 0;
  // What was read of mapped files so far no longer counts as memory of this process; it is read
  // from the files again where it is asked for again.
  virtual void release_pages() const = 0;
  // After loading: no mapped file was changed or replaced meanwhile.
  virtual Result<void> check_unchanged() const = 0;
};

}  // namespace rudder::weights
