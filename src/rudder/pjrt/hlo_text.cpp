#include "rudder/pjrt/hlo_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::pjrt {
namespace {

std::string_view elt_text(Elt elt) {
  switch (elt) {
    case Elt::kF32:
      return "f32";
    case Elt::kBF16:
      return "bf16";
    case Elt::kI8:
      return "i8";
    case Elt::kI32:
      return "i32";
    case Elt::kBool:
      return "i1";
  }
  RUDDER_CHECK(false, "element {}", static_cast<int>(elt));
}

std::string list(const std::vector<int64_t>& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

bool holds(const std::vector<int64_t>& list, int64_t value) {
  return std::ranges::find(list, value) != list.end();
}

}  // namespace

std::string Type::text() const {
  std::string out = "tensor<";
  for (const int64_t dim : dims) out += fmt::format("{}x", dim);
  return out.append(elt_text(elt)).append(">");
}

int64_t Type::numel() const {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

Value HloText::argument(const Type& type, int output) {
  Value value{fmt::format("%a{}", num_arguments_), type};
  if (num_arguments_++ > 0) arguments_ += ", ";
  arguments_ += fmt::format("{}: {}", value.name, type.text());
  if (output >= 0) arguments_ += fmt::format(" {{tf.aliasing_output = {} : i32}}", output);
  return value;
}

std::string HloText::finish(std::span<const Value> results) const {
  std::vector<std::string> names;
  std::vector<std::string> types;
  for (const Value& result : results) {
    names.push_back(result.name);
    types.push_back(result.type.text());
  }
  const std::string type_list = fmt::format("{}", fmt::join(types, ", "));
  return fmt::format(
      "module @rudder attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32}} "
      "{{\n"
      "  func.func public @main({}) -> ({}) {{\n{}    return {} : {}\n  }}\n}}\n",
      arguments_, type_list, lines_, fmt::join(names, ", "), type_list);
}

Value HloText::add(std::string_view op, const Type& type) {
  Value value{fmt::format("%{}", num_values_++), type};
  lines_ += fmt::format("    {} = {}\n", value.name, op);
  return value;
}

Value HloText::constant(double number, const Type& type) {
  const bool is_whole = type.elt == Elt::kI32 || type.elt == Elt::kI8;
  const std::string text =
      is_whole ? fmt::format("{}", static_cast<int64_t>(number)) : fmt::format("{:.9e}", number);
  return add(fmt::format("stablehlo.constant dense<{}> : {}", text, type.text()), type);
}

Value HloText::iota(const Dims& dims, int64_t axis) {
  const Type type{Elt::kI32, dims};
  return add(fmt::format("stablehlo.iota dim = {} : {}", axis, type.text()), type);
}

Value HloText::unary(std::string_view op, const Value& x) {
  return add(fmt::format("stablehlo.{} {} : {}", op, x.name, x.type.text()), x.type);
}

Value HloText::binary(std::string_view op, const Value& a, const Value& b) {
  RUDDER_CHECK(a.type == b.type, "{} of {} and {}", op, a.type.text(), b.type.text());
  return add(fmt::format("stablehlo.{} {}, {} : {}", op, a.name, b.name, a.type.text()), a.type);
}

Value HloText::scale(const Value& x, double by) {
  if (by == 1) return x;
  return binary("multiply", x, constant(by, x.type));
}

Value HloText::convert(const Value& x, Elt elt) {
  if (x.type.elt == elt) return x;
  const Type type{elt, x.type.dims};
  return add(fmt::format("stablehlo.convert {} : ({}) -> {}", x.name, x.type.text(), type.text()),
             type);
}

Value HloText::broadcast(const Value& x, const Dims& dims, const Dims& axes) {
  const Type type{x.type.elt, dims};
  RUDDER_CHECK(axes.size() == x.type.dims.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    RUDDER_CHECK(x.dim(i) == 1 || x.dim(i) == dims[static_cast<size_t>(axes[i])], "{} to {}",
                 x.type.text(), type.text());
  }
  return add(fmt::format("stablehlo.broadcast_in_dim {}, dims = {} : ({}) -> {}", x.name,
                         list(axes), x.type.text(), type.text()),
             type);
}

Value HloText::reshape(const Value& x, const Dims& dims) {
  const Type type{x.type.elt, dims};
  RUDDER_CHECK(type.numel() == x.type.numel(), "{} as {}", x.type.text(), type.text());
  if (type == x.type) return x;
  return add(fmt::format("stablehlo.reshape {} : ({}) -> {}", x.name, x.type.text(), type.text()),
             type);
}

Value HloText::transpose(const Value& x, const Dims& order) {
  Type type{x.type.elt, {}};
  for (const int64_t axis : order) type.dims.push_back(x.dim(static_cast<size_t>(axis)));
  return add(fmt::format("stablehlo.transpose {}, dims = {} : ({}) -> {}", x.name, list(order),
                         x.type.text(), type.text()),
             type);
}

Value HloText::slice(const Value& x, int64_t axis, int64_t begin, int64_t end) {
  Type type = x.type;
  std::vector<std::string> ranges;
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const bool is_cut = static_cast<int64_t>(i) == axis;
    RUDDER_CHECK(!is_cut || (begin >= 0 && begin < end && end <= type.dims[i]));
    ranges.push_back(is_cut ? fmt::format("{}:{}", begin, end) : fmt::format("0:{}", type.dims[i]));
    if (is_cut) type.dims[i] = end - begin;
  }
  if (type == x.type) return x;
  return add(fmt::format("stablehlo.slice {} [{}] : ({}) -> {}", x.name, fmt::join(ranges, ", "),
                         x.type.text(), type.text()),
             type);
}

Value HloText::concat(const Value& a, const Value& b, int64_t axis) {
  Type type = a.type;
  type.dims[static_cast<size_t>(axis)] += b.dim(static_cast<size_t>(axis));
  return add(fmt::format("stablehlo.concatenate {}, {}, dim = {} : ({}, {}) -> {}", a.name, b.name,
                         axis, a.type.text(), b.type.text(), type.text()),
             type);
}

Value HloText::compare(std::string_view how, const Value& a, const Value& b) {
  RUDDER_CHECK(a.type == b.type);
  const Type type{Elt::kBool, a.type.dims};
  return add(fmt::format("stablehlo.compare {}, {}, {} : ({}, {}) -> {}", how, a.name, b.name,
                         a.type.text(), b.type.text(), type.text()),
             type);
}

Value HloText::is_finite(const Value& x) {
  const Type type{Elt::kBool, x.type.dims};
  return add(fmt::format("stablehlo.is_finite {} : ({}) -> {}", x.name, x.type.text(), type.text()),
             type);
}

Value HloText::select(const Value& where, const Value& yes, const Value& no) {
  RUDDER_CHECK(yes.type == no.type && where.type.dims == yes.type.dims);
  return add(fmt::format("stablehlo.select {}, {}, {} : {}, {}", where.name, yes.name, no.name,
                         where.type.text(), yes.type.text()),
             yes.type);
}

Value HloText::reduce(std::string_view op, const Value& x, int64_t axis) {
  const Type scalar{x.type.elt, {}};
  Type type = x.type;
  type.dims.erase(type.dims.begin() + axis);
  // The lowest float, and no infinity, which stands in no decimal text.
  const double lowest = x.type.elt == Elt::kI32 ? INT32_MIN : -3.40282346e38;
  const Value start = constant(op == "maximum" ? lowest : 0, scalar);
  return add(fmt::format("stablehlo.reduce({} init: {}) applies stablehlo.{} across dimensions = "
                         "[{}] : ({}, {}) -> {}",
                         x.name, start.name, op, axis, x.type.text(), scalar.text(), type.text()),
             type);
}

Value HloText::dot(const Value& a, const Value& b, const Dims& batch_a, const Dims& batch_b,
                   const Dims& over_a, const Dims& over_b) {
  RUDDER_CHECK(a.type.elt == b.type.elt);
  Type type{Elt::kF32, {}};
  for (size_t i = 0; i < batch_a.size(); ++i) {
    const int64_t dim = a.dim(static_cast<size_t>(batch_a[i]));
    RUDDER_CHECK(dim == b.dim(static_cast<size_t>(batch_b[i])));
    type.dims.push_back(dim);
  }
  for (size_t i = 0; i < over_a.size(); ++i) {
    RUDDER_CHECK(a.dim(static_cast<size_t>(over_a[i])) == b.dim(static_cast<size_t>(over_b[i])),
                 "{} times {}", a.type.text(), b.type.text());
  }
  const auto add_others = [&](const Value& x, const Dims& batch, const Dims& over) {
    for (size_t i = 0; i < x.type.dims.size(); ++i) {
      const auto axis = static_cast<int64_t>(i);
      if (!holds(batch, axis) && !holds(over, axis)) type.dims.push_back(x.type.dims[i]);
    }
  };
  add_others(a, batch_a, over_a);
  add_others(b, batch_b, over_b);
  const std::string batching =
      batch_a.empty() ? "" : fmt::format("batching_dims = {} x {}, ", list(batch_a), list(batch_b));
  // Without it some compilers multiply f32 with fewer bits.
  const std::string_view precision =
      a.type.elt == Elt::kF32 ? ", precision = [HIGHEST, HIGHEST]" : "";
  return add(
      fmt::format("stablehlo.dot_general {}, {}, {}contracting_dims = {} x {}{} : ({}, {}) -> {}",
                  a.name, b.name, batching, list(over_a), list(over_b), precision, a.type.text(),
                  b.type.text(), type.text()),
      type);
}

Value HloText::take(const Value& table, const Value& ids) {
  Dims index = ids.type.dims;
  const auto rank = static_cast<int64_t>(index.size());
  index.push_back(1);
  const Value at = reshape(ids, index);
  Type type{table.type.elt, ids.type.dims};
  Dims sizes = {1};
  Dims offsets;
  for (size_t i = 1; i < table.type.dims.size(); ++i) {
    offsets.push_back(rank + static_cast<int64_t>(i) - 1);
    sizes.push_back(table.dim(i));
    type.dims.push_back(table.dim(i));
  }
  return add(fmt::format("\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<"
                         "offset_dims = {}, collapsed_slice_dims = [0], start_index_map = [0], "
                         "index_vector_dim = {}>, indices_are_sorted = false, slice_sizes = "
                         "array<i64: {}>}}> : ({}, {}) -> {}",
                         table.name, at.name, list(offsets), rank, fmt::join(sizes, ", "),
                         table.type.text(), at.type.text(), type.text()),
             type);
}

Value HloText::put(const Value& table, const Value& at, const Value& rows) {
  RUDDER_CHECK(rows.type.elt == table.type.elt && at.dim(0) == rows.dim(0) && at.dim(1) == 2);
  Dims window;
  for (size_t i = 1; i < rows.type.dims.size(); ++i) {
    RUDDER_CHECK(rows.dim(i) == table.dim(i + 1));
    window.push_back(static_cast<int64_t>(i));
  }
  const std::string number = Type{table.type.elt, {}}.text();
  // Slots are different ones but where they are out of the table, which writes nothing.
  return add(
      fmt::format("\"stablehlo.scatter\"({}, {}, {}) <{{indices_are_sorted = false, "
                  "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {}, "
                  "inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], "
                  "index_vector_dim = 1>, unique_indices = true}}> ({{\n"
                  "    ^bb0(%old: {}, %new: {}):\n      stablehlo.return %new : {}\n    }}) : "
                  "({}, {}, {}) -> {}",
                  table.name, at.name, rows.name, list(window), number, number, number,
                  table.type.text(), at.type.text(), rows.type.text(), table.type.text()),
      table.type);
}

}  // namespace rudder::pjrt
