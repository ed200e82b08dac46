// HloText: writes one StableHLO module as text, op by op; a Value is a result with its type. Shapes
// are static. It checks what it writes as far as shapes go: a wrong shape is a bug of ours.
// Ops: github.com/openxla/stablehlo, docs/spec.md. Pure; one thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::pjrt {

enum class Elt : uint8_t { kF32, kBF16, kI8, kI32, kBool };

struct Type {
  Elt elt = Elt::kF32;
  std::vector<int64_t> dims;

  std::string text() const;  // "tensor<2x3xf32>"
  int64_t numel() const;
  bool operator==(const Type&) const = default;
};

struct Value {
  std::string name;
  Type type;

  int64_t dim(size_t axis) const { return type.dims[axis]; }
};

class HloText {
 public:
  using Dims = std::vector<int64_t>;

  // `output` >= 0: it is donated, and the result of that number lies in its memory.
  Value argument(const Type& type, int output = -1);
  // The module, whose results these are.
  std::string finish(std::span<const Value> results) const;

  // One number in every element.
  Value constant(double number, const Type& type);
  // Counts along an axis, i32.
  Value iota(const Dims& dims, int64_t axis);

  Value unary(std::string_view op, const Value& x);  // "rsqrt", "exponential", "tanh", ...
  // "add", "multiply", ...; both of one type.
  Value binary(std::string_view op, const Value& a, const Value& b);
  Value scale(const Value& x, double by);
  Value convert(const Value& x, Elt elt);
  // Axis i of x is axis axes[i] of the result, along the others it repeats.
  Value broadcast(const Value& x, const Dims& dims, const Dims& axes);
  Value reshape(const Value& x, const Dims& dims);
  Value transpose(const Value& x, const Dims& order);
  // [begin, end) of one axis.
  Value slice(const Value& x, int64_t axis, int64_t begin, int64_t end);
  Value concat(const Value& a, const Value& b, int64_t axis);
  Value compare(std::string_view how, const Value& a, const Value& b);  // "LE", "GT", ...
  Value is_finite(const Value& x);
  Value select(const Value& where, const Value& yes, const Value& no);
  // Over one axis, which goes; "add" or "maximum".
  Value reduce(std::string_view op, const Value& x, int64_t axis);
  // f32: sums over the contracted axes, of the batch axes, then a's others, then b's.
  Value dot(const Value& a, const Value& b, const Dims& batch_a, const Dims& batch_b,
            const Dims& over_a, const Dims& over_b);
  // [ids..., the row]: rows of `table` along its first axis by ids i32.
  Value take(const Value& table, const Value& ids);
  // `table` with rows[i] at [at[i, 0], at[i, 1]] of its first two axes; nothing where that is out
  // of them. at [n, 2] i32, rows [n, ...].
  Value put(const Value& table, const Value& at, const Value& rows);

 private:
  // Adds the line "%n = `op` : type" and gives %n.
  Value add(std::string_view op, const Type& type);

  std::string arguments_;
  std::string lines_;
  int num_arguments_ = 0;
  int num_values_ = 0;
};

}  // namespace rudder::pjrt
