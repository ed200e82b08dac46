// GGUF (https://github.com/ggml-org/ggml, docs/gguf.md), as far as control vectors need it: header,
// metadata, tensor table, data.
#include <fmt/format.h>

#include <array>
#include <map>

#include "rudder/steer/file_tensor.h"

namespace rudder::steer {
namespace {

constexpr uint64_t kMaxEntries = 1 << 20;
constexpr uint64_t kMaxGgufName = 1 << 16;
constexpr uint32_t kMaxDims = 4;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;
constexpr uint64_t kDefaultAlignment = 32;

// Bytes of the metadata types by number; 0 for strings and arrays.
constexpr std::array<uint64_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

class GgufReader {
 public:
  GgufReader(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file), cursor_(bytes) {}

  Result<FileTensors> read() {
    if (cursor_.take_text(4) != "GGUF") return corrupt_file("this is no GGUF file", file_);
    const auto version = cursor_.take<uint32_t>();
    const auto num_tensors = cursor_.take<uint64_t>();
    const auto num_values = cursor_.take<uint64_t>();
    if (cursor_.failed()) return corrupt_file("the header is cut off", file_);
    if (version != 2 && version != 3) {
      return fail(ErrorCode::kUnsupported, fmt::format("GGUF version {}", version), file_);
    }
    if (num_tensors > kMaxEntries || num_values > kMaxEntries) {
      return corrupt_file(fmt::format("{} tensors, {} values", num_tensors, num_values), file_);
    }
    RUDDER_TRY_VOID(read_metadata(num_values));
    if (texts_["general.architecture"] != "controlvector") {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("a GGUF of architecture '{}': steering is a 'controlvector'",
                              texts_["general.architecture"]),
                  file_);
    }
    RUDDER_TRY_VOID(read_table(num_tensors));
    RUDDER_TRY_VOID(place_data());
    result_.model_hint = texts_["controlvector.model_hint"];
    return std::move(result_);
  }

 private:
  std::string_view take_string() {
    const auto length = cursor_.take<uint64_t>();
    return cursor_.take_text(length);
  }

  // Passes over a value of this type; texts and the alignment are kept.
  Result<void> read_value(uint32_t type, const std::string& key) {
    if (type == kString) {
      texts_[key] = take_string();
    } else if (type == kArray) {
      const auto element = cursor_.take<uint32_t>();
      const auto count = cursor_.take<uint64_t>();
      if (element >= kTypeBytes.size() || element == kArray) {
        return corrupt_file(fmt::format("an array of type {}", element), file_, key);
      }
      if (element == kString) {
        for (uint64_t i = 0; i < count && !cursor_.failed(); ++i) take_string();
      } else {
        uint64_t length = 0;
        if (__builtin_mul_overflow(count, kTypeBytes[element], &length)) {
          return corrupt_file(fmt::format("an array of {} elements", count), file_, key);
        }
        cursor_.take_bytes(length);
      }
    } else if (type >= kTypeBytes.size()) {
      return corrupt_file(fmt::format("a value of type {}", type), file_, key);
    } else if (key == "general.alignment") {
      if (kTypeBytes[type] != sizeof(uint32_t)) {
        return corrupt_file("the alignment is no 32-bit number", file_, key);
      }
      alignment_ = cursor_.take<uint32_t>();
    } else {
      cursor_.take_bytes(kTypeBytes[type]);
    }
    return {};
  }

  Result<void> read_metadata(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const std::string key(take_string());
      const auto type = cursor_.take<uint32_t>();
      if (cursor_.failed() || key.size() > kMaxGgufName) {
        return corrupt_file("the metadata is cut off", file_);
      }
      RUDDER_TRY_VOID(read_value(type, key));
      if (cursor_.failed()) return corrupt_file("the metadata is cut off", file_, key);
    }
    if (alignment_ == 0 || (alignment_ & (alignment_ - 1)) != 0 || alignment_ > (1U << 20)) {
      return corrupt_file(fmt::format("an alignment of {}", alignment_), file_);
    }
    return {};
  }

  Result<tensor::DType> tensor_type(uint32_t number, const std::string& name) const {
    switch (number) {
      case 0:
        return tensor::DType::kF32;
      case 1:
        return tensor::DType::kF16;
      case 28:
        return tensor::DType::kF64;
      case 30:
        return tensor::DType::kBF16;
      default:
        return fail(ErrorCode::kUnsupported,
                    fmt::format("tensor type {}: F64, F32, F16 or BF16 is needed", number),
                    file_ + ": " + name);
    }
  }

  Result<void> read_table(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      FileTensor tensor;
      tensor.name = take_string();
      const auto rank = cursor_.take<uint32_t>();
      if (cursor_.failed() || rank == 0 || rank > kMaxDims || tensor.name.size() > kMaxGgufName) {
        return corrupt_file("the table of tensors is cut off or broken", file_, tensor.name);
      }
      // The fastest dimension comes first.
      for (uint32_t dim = 0; dim < rank; ++dim) {
        tensor.shape.insert(tensor.shape.begin(), cursor_.take<uint64_t>());
      }
      const auto type = cursor_.take<uint32_t>();
      offsets_.push_back(cursor_.take<uint64_t>());
      if (cursor_.failed()) {
        return corrupt_file("the table of tensors is cut off", file_, tensor.name);
      }
      RUDDER_TRY(tensor.dtype, tensor_type(type, tensor.name));
      result_.tensors.push_back(std::move(tensor));
    }
    return {};
  }

  Result<void> place_data() {
    const uint64_t begin = (cursor_.at() + alignment_ - 1) / alignment_ * alignment_;
    if (begin > bytes_.size()) {
      if (result_.tensors.empty()) return {};
      return corrupt_file("the file ends before its data", file_);
    }
    const uint64_t size = bytes_.size() - begin;
    for (size_t i = 0; i < result_.tensors.size(); ++i) {
      FileTensor& tensor = result_.tensors[i];
      uint64_t length = 0;
      const bool counted = checked_bytes(tensor.shape, tensor::dtype_bytes(tensor.dtype), length);
      if (!counted || offsets_[i] % alignment_ != 0 || offsets_[i] > size ||
          length > size - offsets_[i]) {
        return corrupt_file("its data lies outside of the file", file_, tensor.name);
      }
      tensor.bytes = bytes_.subspan(begin + offsets_[i], length);
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  ByteCursor cursor_;
  uint64_t alignment_ = kDefaultAlignment;
  std::map<std::string, std::string> texts_;
  std::vector<uint64_t> offsets_;
  FileTensors result_;
};

}  // namespace

Result<FileTensors> read_gguf(std::span<const std::byte> bytes, const std::string& file) {
  return GgufReader(bytes, file).read();
}

}  // namespace rudder::steer
