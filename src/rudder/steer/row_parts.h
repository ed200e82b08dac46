// Ops on parts of a row: on heads of attn_z, on a stream of a residual that has several. Parsers
// make them; values are immutable once made; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "rudder/steer/op_spec.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

// Parts of a row, side by side in this order: heads of a layer, a stream of the residual. Empty:
// all of them, in their own order.
using PartList = std::vector<int32_t>;

// An op on some parts works on the row of these side by side; on the device it is an op on the
// whole row, with vectors that are 0 at other parts. Rows that are made of the same vector and
// parts are one row.
class PartRows {
 public:
  // Elements of the parts side by side; of all of them where `parts` is empty.
  static int32_t width(const PartList& parts, const tap::RowParts& whole);

  // `row` is of the parts side by side or, where it `is_whole`, of all that the row has, of which
  // the others are dropped.
  Row spread(const Row& row, bool is_whole, const PartList& parts, const tap::RowParts& whole);
  // 1 at the parts, 0 elsewhere; empty where the parts are all.
  Row mask(const PartList& parts, const tap::RowParts& whole);

 private:
  // What a row is made of: a vector (null: ones), parts, and the count and size of all.
  using Key = std::tuple<const float*, PartList, int32_t, int32_t>;
  std::map<Key, Row> made_;
};

}  // namespace rudder::steer
