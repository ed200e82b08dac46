#include "rudder/weights/gguf.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "rudder/weights/byte_cursor.h"

namespace rudder::weights {
namespace {

constexpr uint64_t kMaxGgufName = 65'535;
constexpr uint32_t kMaxGgufRank = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr std::string_view kAlignmentKey = "general.alignment";
// What a value and a tensor take in a file at least: a key, a type, a byte; a name, an extent.
constexpr uint64_t kLeastValueBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Bytes of the types by number; 0 for strings and arrays.
constexpr std::array<uint64_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

template <typename T>
T item(const GgufValue& value, uint64_t index) {
  return ByteCursor(value.bytes, index * sizeof(T)).take<T>();
}

bool is_integer(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kBool &&
         type != GgufType::kString && type != GgufType::kArray;
}

// False for a u64 beyond an i64.
bool integer_item(const GgufValue& value, uint64_t index, int64_t& out) {
  switch (value.type) {
    case GgufType::kU8:
      out = item<uint8_t>(value, index);
      return true;
    case GgufType::kI8: {
      const int64_t byte = item<uint8_t>(value, index);
      out = byte < 128 ? byte : byte - 256;
      return true;
    }
    case GgufType::kU16:
      out = item<uint16_t>(value, index);
      return true;
    case GgufType::kI16:
      out = item<int16_t>(value, index);
      return true;
    case GgufType::kU32:
      out = item<uint32_t>(value, index);
      return true;
    case GgufType::kI32:
      out = item<int32_t>(value, index);
      return true;
    case GgufType::kI64:
      out = item<int64_t>(value, index);
      return true;
    default:
      out = static_cast<int64_t>(item<uint64_t>(value, index));
      return out >= 0;
  }
}

bool number_item(const GgufValue& value, uint64_t index, double& out) {
  if (value.type == GgufType::kF32) {
    out = static_cast<double>(item<float>(value, index));
  } else if (value.type == GgufType::kF64) {
    out = item<double>(value, index);
  } else if (value.type == GgufType::kBool) {
    out = item<uint8_t>(value, index);
  } else if (int64_t whole = 0; is_integer(value.type) && integer_item(value, index, whole)) {
    out = static_cast<double>(whole);
  } else {
    return false;
  }
  return std::isfinite(out);
}

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file), cursor_(bytes) {}

  Result<void> parse(std::map<std::string_view, GgufValue>& values,
                     std::vector<GgufTensor>& tensors) {
    if (cursor_.take_text(4) != "GGUF") return corrupt("this is no GGUF file");
    const auto version = cursor_.take<uint32_t>();
    const auto num_tensors = cursor_.take<uint64_t>();
    const auto num_values = cursor_.take<uint64_t>();
    if (cursor_.failed()) return corrupt("the header is cut off");
    if (version == uint32_t{2} << 24 || version == uint32_t{3} << 24) {
      return fail(ErrorCode::kUnsupported, "a big-endian GGUF file is not read", file_);
    }
    if (version != 2 && version != 3) {
      return fail(ErrorCode::kUnsupported, fmt::format("GGUF version {}, not 2 or 3", version),
                  file_);
    }
    if (num_values > cursor_.left() / kLeastValueBytes ||
        num_tensors > cursor_.left() / kLeastTensorBytes) {
      return corrupt(fmt::format("{} values and {} tensors do not fit into the file", num_values,
                                 num_tensors));
    }
    for (uint64_t i = 0; i < num_values; ++i) RUDDER_TRY_VOID(read_value(i, values));
    RUDDER_TRY_VOID(read_alignment(values));
    for (uint64_t i = 0; i < num_tensors; ++i) RUDDER_TRY_VOID(read_tensor(i, tensors));
    return place_data(tensors);
  }

 private:
  tl::unexpected<Error> corrupt(std::string message) const {
    return fail(ErrorCode::kCorruptFile, std::move(message), file_);
  }
  tl::unexpected<Error> corrupt(std::string message, std::string_view what,
                                std::string_view name) const {
    return fail(ErrorCode::kCorruptFile, std::move(message),
                fmt::format("{}: {} '{}'", file_, what, name));
  }

  // Empty: it is cut off, too long or has no character.
  std::string_view take_name() {
    const auto length = cursor_.take<uint64_t>();
    if (length > kMaxGgufName) return {};
    return cursor_.take_text(length);
  }

  // False where the file ends before it.
  bool take_items(GgufValue& value) {
    const size_t begin = cursor_.at();
    if (value.type == GgufType::kString) {
      for (uint64_t i = 0; i < value.count && !cursor_.failed(); ++i) {
        cursor_.take_bytes(cursor_.take<uint64_t>());
      }
    } else {
      uint64_t length = 0;
      if (__builtin_mul_overflow(value.count, kTypeBytes[static_cast<size_t>(value.type)],
                                 &length)) {
        return false;
      }
      cursor_.take_bytes(length);
    }
    if (cursor_.failed()) return false;
    value.bytes = bytes_.subspan(begin, cursor_.at() - begin);
    return true;
  }

  Result<void> read_value(uint64_t index, std::map<std::string_view, GgufValue>& values) {
    const std::string_view key = take_name();
    const auto type = cursor_.take<uint32_t>();
    if (cursor_.failed() || key.empty()) {
      return corrupt(fmt::format("the key of value {} is cut off, empty or too long", index));
    }
    GgufValue value;
    value.type = static_cast<GgufType>(type);
    if (type >= kTypeBytes.size())
      return corrupt(fmt::format("a value of type {}", type), "key", key);
    if (value.type == GgufType::kArray) {
      const auto item_type = cursor_.take<uint32_t>();
      value.type = static_cast<GgufType>(item_type);
      value.is_array = true;
      value.count = cursor_.take<uint64_t>();
      if (cursor_.failed()) return corrupt("the metadata is cut off", "key", key);
      if (item_type >= kTypeBytes.size() || value.type == GgufType::kArray) {
        return corrupt(fmt::format("an array of type {}", item_type), "key", key);
      }
    }
    if (!take_items(value)) {
      return corrupt(value.is_array ? fmt::format("an array of {} items is cut off", value.count)
                                    : "the metadata is cut off",
                     "key", key);
    }
    if (value.type == GgufType::kBool) {
      for (const std::byte one : value.bytes) {
        if (std::to_integer<uint8_t>(one) > 1) {
          return corrupt(fmt::format("a bool of {}", std::to_integer<int>(one)), "key", key);
        }
      }
    }
    if (!values.emplace(key, value).second) return corrupt("it is there twice", "key", key);
    return {};
  }

  Result<void> read_alignment(const std::map<std::string_view, GgufValue>& values) {
    const auto found = values.find(kAlignmentKey);
    if (found == values.end()) return {};
    const GgufValue& value = found->second;
    if (value.is_array || value.type != GgufType::kU32) {
      return corrupt("the alignment is no 32-bit number", "key", kAlignmentKey);
    }
    alignment_ = item<uint32_t>(value, 0);
    if (alignment_ == 0 || (alignment_ & (alignment_ - 1)) != 0 || alignment_ > kMaxAlignment) {
      return corrupt(fmt::format("an alignment of {}", alignment_), "key", kAlignmentKey);
    }
    return {};
  }

  Result<void> read_tensor(uint64_t index, std::vector<GgufTensor>& tensors) {
    GgufTensor tensor;
    tensor.name = take_name();
    const auto rank = cursor_.take<uint32_t>();
    if (cursor_.failed() || tensor.name.empty()) {
      return corrupt(fmt::format("the name of tensor {} is cut off, empty or too long", index));
    }
    if (!names_.insert(tensor.name).second) {
      return corrupt("it is there twice", "tensor", tensor.name);
    }
    if (rank == 0 || rank > kMaxGgufRank) {
      return corrupt(fmt::format("it has {} dimensions, not 1 to {}", rank, kMaxGgufRank), "tensor",
                     tensor.name);
    }
    tensor.shape.rank = static_cast<uint8_t>(rank);
    for (uint32_t dim = 0; dim < rank; ++dim) {
      tensor.shape.dims[rank - 1 - dim] = cursor_.take<uint64_t>();
    }
    const auto type = cursor_.take<uint32_t>();
    offsets_.push_back(cursor_.take<uint64_t>());
    if (cursor_.failed()) return corrupt("the table of tensors is cut off", "tensor", tensor.name);
    tensor.type = find_block_type(type);
    if (tensor.type == nullptr) {
      return fail(ErrorCode::kUnsupported, fmt::format("the tensor type {} is not known", type),
                  fmt::format("{}: tensor '{}'", file_, tensor.name));
    }
    tensors.push_back(tensor);
    return {};
  }

  Result<uint64_t> bytes_of(const GgufTensor& tensor) const {
    TensorShape blocks = tensor.shape;
    uint64_t& row = blocks.dims[blocks.rank - 1U];
    if (row % tensor.type->values != 0) {
      return corrupt(fmt::format("a row of {} is not whole blocks of {} of {}", row,
                                 tensor.type->values, tensor.type->name),
                     "tensor", tensor.name);
    }
    row /= tensor.type->values;
    uint64_t values = 0;
    uint64_t bytes = 0;
    if (!checked_tensor_bytes(tensor.shape, sizeof(float), values) || values > INT64_MAX ||
        !checked_tensor_bytes(blocks, tensor.type->bytes, bytes)) {
      return corrupt(fmt::format("its size {} overflows; its data lies outside of the file",
                                 tensor.shape.to_string()),
                     "tensor", tensor.name);
    }
    return bytes;
  }

  Result<void> place_data(std::vector<GgufTensor>& tensors) {
    const uint64_t begin = (cursor_.at() + alignment_ - 1) / alignment_ * alignment_;
    if (begin > bytes_.size()) {
      if (tensors.empty()) return {};
      return corrupt("the file ends before its data", "tensor", tensors.front().name);
    }
    const uint64_t size = bytes_.size() - begin;
    uint64_t expected = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      GgufTensor& tensor = tensors[i];
      RUDDER_TRY(const uint64_t length, bytes_of(tensor));
      if (offsets_[i] > size || length > size - offsets_[i]) {
        return corrupt(fmt::format("its data lies outside of the file: {} bytes at {} of {}",
                                   length, offsets_[i], size),
                       "tensor", tensor.name);
      }
      if (offsets_[i] != expected) {
        return corrupt(fmt::format("its data begins at {}, not at {} behind the tensor before it",
                                   offsets_[i], expected),
                       "tensor", tensor.name);
      }
      tensor.bytes = bytes_.subspan(begin + offsets_[i], length);
      expected = (offsets_[i] + length + alignment_ - 1) / alignment_ * alignment_;
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  ByteCursor cursor_;
  uint64_t alignment_ = kDefaultAlignment;
  std::set<std::string_view> names_;
  std::vector<uint64_t> offsets_;
};

}  // namespace

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string file) {
  GgufFile out;
  out.file_ = std::move(file);
  RUDDER_TRY_VOID(GgufParser(bytes, out.file_).parse(out.values_, out.tensors_));
  return out;
}

std::string GgufFile::where(std::string_view key) const {
  return fmt::format("{}: key '{}'", file_, key);
}

std::string GgufFile::where_tensor(std::string_view name) const {
  return fmt::format("{}: tensor '{}'", file_, name);
}

tl::unexpected<Error> GgufFile::ill_typed(std::string_view key, std::string_view wanted) const {
  return fail(ErrorCode::kCorruptFile, fmt::format("'{}' is not {}", key, wanted), where(key));
}

Result<const GgufValue*> GgufFile::require(std::string_view key, bool is_array) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return fail(ErrorCode::kCorruptFile, fmt::format("'{}' is missing", key), where(key));
  }
  if (found->second.is_array != is_array)
    return ill_typed(key, is_array ? "an array" : "one value");
  return &found->second;
}

Result<int64_t> GgufFile::integer(std::string_view key, int64_t low, int64_t high) const {
  RUDDER_TRY(const GgufValue* const value, require(key, false));
  int64_t out = 0;
  if (!is_integer(value->type)) return ill_typed(key, "an integer");
  if (!integer_item(*value, 0, out) || out < low || out > high) {
    return ill_typed(key, fmt::format("an integer from {} to {}", low, high));
  }
  return out;
}

Result<double> GgufFile::number(std::string_view key) const {
  RUDDER_TRY(const GgufValue* const value, require(key, false));
  double out = 0;
  if (value->type == GgufType::kBool || !number_item(*value, 0, out)) {
    return ill_typed(key, "a finite number");
  }
  return out;
}

Result<bool> GgufFile::boolean(std::string_view key) const {
  RUDDER_TRY(const GgufValue* const value, require(key, false));
  if (value->type != GgufType::kBool) return ill_typed(key, "a bool");
  return item<uint8_t>(*value, 0) != 0;
}

Result<std::string_view> GgufFile::text(std::string_view key) const {
  RUDDER_TRY(const GgufValue* const value, require(key, false));
  if (value->type != GgufType::kString) return ill_typed(key, "a string");
  ByteCursor cursor(value->bytes);
  return cursor.take_text(cursor.take<uint64_t>());
}

Result<std::vector<std::string_view>> GgufFile::texts(std::string_view key) const {
  RUDDER_TRY(const GgufValue* const value, require(key, true));
  if (value->type != GgufType::kString) return ill_typed(key, "an array of strings");
  std::vector<std::string_view> out;
  out.reserve(value->count);  // each of them has eight bytes in the file
  ByteCursor cursor(value->bytes);
  for (uint64_t i = 0; i < value->count; ++i) {
    out.push_back(cursor.take_text(cursor.take<uint64_t>()));
  }
  return out;
}

Result<std::vector<double>> GgufFile::numbers(std::string_view key) const {
  RUDDER_TRY(const GgufValue* const value, require(key, true));
  std::vector<double> out;
  if (value->type == GgufType::kString) return ill_typed(key, "an array of numbers");
  out.resize(value->count);  // each of them has a byte in the file
  for (uint64_t i = 0; i < value->count; ++i) {
    if (!number_item(*value, i, out[i])) return ill_typed(key, "an array of finite numbers");
  }
  return out;
}

Result<int64_t> GgufFile::integer_or(std::string_view key, int64_t fallback, int64_t low,
                                     int64_t high) const {
  return has(key) ? integer(key, low, high) : fallback;
}

Result<bool> GgufFile::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? boolean(key) : fallback;
}

Result<std::string_view> GgufFile::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : fallback;
}

}  // namespace rudder::weights
