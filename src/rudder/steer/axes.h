// Rows that are made of others: rounded from doubles, or orthonormal axes. Pure functions.
#pragma once

#include <span>
#include <vector>

#include "rudder/steer/op_spec.h"

namespace rudder::steer {

// Each rounded to f32.
Row to_row(std::span<const double> values);

// Orthonormal axes that span `rows` in their order, by Gram-Schmidt done twice. Fewer than there
// are rows when some lie in the span of others or have no direction.
std::vector<Row> orthonormal(const std::vector<Row>& rows);

}  // namespace rudder::steer
