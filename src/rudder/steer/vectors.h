// Reads vectors as clients and files write them: lists of numbers, or packed bytes with a dtype and
// a shape. It checks every element; the result is f32. Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "rudder/base/result.h"
#include "rudder/steer/op_spec.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer {

// Rows of one width in one buffer.
struct Rows {
  std::shared_ptr<const float[]> buffer;
  int64_t count = 0;
  int32_t width = 0;
  bool is_list = false;  // it was one vector, not a list of vectors

  Row row(int64_t index) const { return {buffer, index * width, width}; }
};

// [f, …], or [[f, …], …] with rows of one length. Errors at "path[i]" or "path[i][j]".
Result<Rows> read_lists(const boost::json::array& lists, const std::string& path);

// {"dtype", "shape": [width] or [n, width], "data": base64, …}; the caller looks at the other keys.
// An Error at "path.data" names the row and the element of a number that is not finite or too
// large.
Result<Rows> read_packed(const boost::json::object& packed, const std::string& path);

// Of numbers that are compared with a projection; see kMaxMagnitude.
inline constexpr double kMaxThreshold = kMaxMagnitude * kMaxMagnitude;

// A boolean, number or string field is checked by its reader; these are for the two numbers that
// all of them share. `where` is the field.
Result<double> read_number(const boost::json::value& value, const std::string& where,
                           double max_magnitude = kMaxMagnitude);
Result<int32_t> read_int(const boost::json::value& value, const std::string& where);

// Of the values of a file: f32, f16, bf16 or f64.
bool is_vector_dtype(tensor::DType dtype);
// They, in memory of any alignment, as f32: those of f64 rounded to the nearest.
std::shared_ptr<const float[]> widen(std::span<const std::byte> bytes, tensor::DType dtype);

// Place of the first element that is not finite or larger than kMaxMagnitude.
std::optional<size_t> first_bad(std::span<const float> values);

}  // namespace rudder::steer
