#include "rudder/steer/vectors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "rudder/steer/base64.h"
#include "rudder/steer/invalid_field.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxWidth = 1 << 24;
constexpr int64_t kMaxElements = int64_t{1} << 30;

struct PackedType {
  std::string_view name;
  tensor::DType dtype;
};
constexpr std::array<PackedType, 3> kPackedTypes = {{{"float32", tensor::DType::kF32},
                                                     {"float16", tensor::DType::kF16},
                                                     {"bfloat16", tensor::DType::kBF16}}};

Result<void> read_list(const json::array& list, std::span<float> out, const std::string& path) {
  for (size_t i = 0; i < list.size(); ++i) {
    const json::value& value = list[i];
    const double number = value.is_double()  ? value.get_double()
                          : value.is_int64() ? static_cast<double>(value.get_int64())
                                             : std::numeric_limits<double>::quiet_NaN();
    // Also what read_number would take; it makes the error.
    if (!(std::abs(number) <= kMaxMagnitude)) {
      RUDDER_TRY_VOID(read_number(value, fmt::format("{}[{}]", path, i)));
    }
    out[i] = static_cast<float>(number);
  }
  return {};
}

// The shape of `packed`: rows and width, whose product is in range.
Result<Rows> read_shape(const json::object& packed, const std::string& path) {
  const std::string where = path + ".shape";
  const json::value* value = packed.if_contains("shape");
  const json::array* dims = value == nullptr ? nullptr : value->if_array();
  if (dims == nullptr || dims->empty() || dims->size() > 2) {
    return invalid_field("a list of one or two numbers is needed: [width] or [rows, width]", where);
  }
  Rows rows;
  rows.is_list = dims->size() == 1;
  rows.count = 1;
  for (size_t i = 0; i < dims->size(); ++i) {
    RUDDER_TRY(const int32_t extent, read_int((*dims)[i], fmt::format("{}[{}]", where, i)));
    const bool is_width = i + 1 == dims->size();
    if (extent < 1 || (is_width && extent > kMaxWidth)) {
      return invalid_field(fmt::format("an extent of {}", extent), fmt::format("{}[{}]", where, i));
    }
    if (is_width) {
      rows.width = extent;
    } else {
      rows.count = extent;
    }
  }
  if (rows.count * rows.width > kMaxElements) {
    return invalid_field(fmt::format("{} x {} elements", rows.count, rows.width), where);
  }
  return rows;
}

// In-place widening: the narrow values lie in the second half of the buffer, and each is read
// before the write that reaches it.
template <typename Widen>
void widen_upper_half(float* buffer, size_t count, Widen widen_one) {
  const auto* bytes = reinterpret_cast<const std::byte*>(buffer) + count * sizeof(uint16_t);
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + i * sizeof(bits), sizeof(bits));
    buffer[i] = widen_one(bits);
  }
}

float widen_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// The exponent is moved to its place in f32 and corrected by a multiplication, which is exact for
// subnormal values too. Infinities and NaN become NaN: both are refused.
float widen_f16(uint16_t bits) {
  const float magnitude = std::bit_cast<float>(uint32_t{bits & 0x7fffU} << 13) * 0x1p112f;
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const bool finite = (bits & 0x7c00) != 0x7c00;
  return finite ? std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign)
                : std::numeric_limits<float>::quiet_NaN();
}

void widen_in_place(float* buffer, size_t count, tensor::DType dtype) {
  if (dtype == tensor::DType::kF16) widen_upper_half(buffer, count, widen_f16);
  if (dtype == tensor::DType::kBF16) widen_upper_half(buffer, count, widen_bf16);
}

// What does not fit becomes infinite, which is refused.
void narrow(std::span<const std::byte> doubles, float* out) {
  constexpr double kMax = std::numeric_limits<float>::max();
  for (size_t at = 0; at < doubles.size(); at += sizeof(double), ++out) {
    double wide = 0;
    std::memcpy(&wide, doubles.data() + at, sizeof(wide));
    *out =
        std::abs(wide) > kMax ? std::numeric_limits<float>::infinity() : static_cast<float>(wide);
  }
}

// Where the bytes of `count` values go before they are widened.
std::span<std::byte> raw_place(float* buffer, size_t count, tensor::DType dtype) {
  const size_t raw = count * tensor::dtype_bytes(dtype);
  return {reinterpret_cast<std::byte*>(buffer) + count * sizeof(float) - raw, raw};
}

}  // namespace

Result<double> read_number(const json::value& value, const std::string& where,
                           double max_magnitude) {
  boost::system::error_code error;
  const auto number = value.is_number() ? value.to_number<double>(error) : 0.0;
  if (!value.is_number() || error) return invalid_field("a number is needed", where);
  if (!std::isfinite(number)) return invalid_field("the number is not finite", where);
  if (std::abs(number) > max_magnitude) {
    return invalid_field(
        fmt::format("{} is too large: at most {} in magnitude", number, max_magnitude), where);
  }
  return number;
}

Result<int32_t> read_int(const json::value& value, const std::string& where) {
  if (!value.is_int64() || value.get_int64() < std::numeric_limits<int32_t>::min() ||
      value.get_int64() >= std::numeric_limits<int32_t>::max()) {
    return invalid_field("a whole number of 32 bits is needed", where);
  }
  return static_cast<int32_t>(value.get_int64());
}

std::optional<size_t> first_bad(std::span<const float> values) {
  // As integers, magnitudes are ordered, and NaN and infinity come last.
  constexpr uint32_t kLimit = std::bit_cast<uint32_t>(static_cast<float>(kMaxMagnitude));
  const auto magnitude = [](float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffU; };
  constexpr size_t kBlock = 64;
  size_t begin = 0;
  for (; begin + kBlock <= values.size(); begin += kBlock) {
    uint32_t over = 0;  // the sign bit is set by a value beyond the limit
    for (size_t i = 0; i < kBlock; ++i) over |= kLimit - magnitude(values[begin + i]);
    if ((over >> 31) != 0) break;
  }
  for (size_t i = begin; i < values.size(); ++i) {
    if (magnitude(values[i]) > kLimit) return i;
  }
  return std::nullopt;
}

bool is_vector_dtype(tensor::DType dtype) {
  return dtype == tensor::DType::kF64 ||
         std::ranges::find(kPackedTypes, dtype, &PackedType::dtype) != kPackedTypes.end();
}

std::shared_ptr<const float[]> widen(std::span<const std::byte> bytes, tensor::DType dtype) {
  const size_t count = bytes.size() / tensor::dtype_bytes(dtype);
  auto buffer = std::make_shared_for_overwrite<float[]>(count);
  if (dtype == tensor::DType::kF64) {
    narrow(bytes, buffer.get());
    return buffer;
  }
  std::ranges::copy(bytes, raw_place(buffer.get(), count, dtype).begin());
  widen_in_place(buffer.get(), count, dtype);
  return buffer;
}

Result<Rows> read_lists(const json::array& lists, const std::string& path) {
  if (lists.empty()) return invalid_field("the vector is empty", path);
  Rows rows;
  rows.is_list = !lists[0].is_array();
  rows.count = rows.is_list ? 1 : static_cast<int64_t>(lists.size());
  const size_t width = rows.is_list ? lists.size() : lists[0].get_array().size();
  if (width == 0) return invalid_field("the vector is empty", path + "[0]");
  if (static_cast<int64_t>(width) > kMaxWidth) {
    return invalid_field(fmt::format("a vector of {} elements", width), path);
  }
  rows.width = static_cast<int32_t>(width);
  auto buffer = std::make_shared_for_overwrite<float[]>(static_cast<size_t>(rows.count) * width);
  if (rows.is_list) {
    RUDDER_TRY_VOID(read_list(lists, {buffer.get(), width}, path));
  } else {
    for (size_t i = 0; i < lists.size(); ++i) {
      const std::string where = fmt::format("{}[{}]", path, i);
      const json::array* list = lists[i].if_array();
      if (list == nullptr) return invalid_field("a list of numbers is needed", where);
      if (list->size() != width) {
        return invalid_field(
            fmt::format("{} elements, the first vector has {}", list->size(), width), where);
      }
      RUDDER_TRY_VOID(read_list(*list, {buffer.get() + i * width, width}, where));
    }
  }
  rows.buffer = std::move(buffer);
  return rows;
}

Result<Rows> read_packed(const json::object& packed, const std::string& path) {
  const json::value* name = packed.if_contains("dtype");
  const json::string* dtype_name = name == nullptr ? nullptr : name->if_string();
  const auto* type = std::ranges::find(
      kPackedTypes, dtype_name == nullptr ? std::string_view() : std::string_view(*dtype_name),
      &PackedType::name);
  if (type == kPackedTypes.end()) {
    return invalid_field("one of \"float32\", \"float16\", \"bfloat16\" is needed",
                         path + ".dtype");
  }
  RUDDER_TRY(Rows rows, read_shape(packed, path));
  const std::string where = path + ".data";
  const json::value* value = packed.if_contains("data");
  const json::string* data = value == nullptr ? nullptr : value->if_string();
  if (data == nullptr) return invalid_field("a base64 string is needed", where);
  const std::string_view text(data->data(), data->size());
  const auto count = static_cast<size_t>(rows.count * rows.width);
  const size_t needed = count * tensor::dtype_bytes(type->dtype);
  const std::optional<size_t> bytes = base64_bytes(text);
  if (!bytes) return invalid_field("base64 has whole groups of four characters", where);
  if (*bytes != needed) {
    return invalid_field(fmt::format("{} bytes, the shape needs {}", *bytes, needed), where);
  }
  auto buffer = std::make_shared_for_overwrite<float[]>(count);
  if (!decode_base64(text, raw_place(buffer.get(), count, type->dtype))) {
    return invalid_field("this is no base64", where);
  }
  widen_in_place(buffer.get(), count, type->dtype);
  if (const auto bad = first_bad({buffer.get(), count})) {
    const auto width = static_cast<size_t>(rows.width);
    return invalid_field(fmt::format("element {} of row {} is {}: finite numbers of at most {} in "
                                     "magnitude are needed",
                                     *bad % width, *bad / width,
                                     buffer[static_cast<std::ptrdiff_t>(*bad)], kMaxMagnitude),
                         where);
  }
  rows.buffer = std::move(buffer);
  return rows;
}

}  // namespace rudder::steer
