// The field `heads`: which heads of attn_z an op or a capture is for. Values are immutable once
// made; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/op_spec.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

// Heads of one layer, side by side in this order. Empty: all of them, in their own order.
using HeadList = std::vector<int32_t>;

// The heads of each of `points`, in the forms of layers (numbered.h), "all" too. kInvalidArgument
// where a point is not at attn_z, or its layer does not have a head.
Result<std::vector<HeadList>> read_heads(const boost::json::value& value,
                                         std::span<const tap::Point> points,
                                         const tap::Geometry& geometry, const std::string& path);

// Rows of a layer's heads. An op on some heads works on the row of these side by side; on the
// device it is an op on the whole row, with vectors that are 0 at other heads. Rows that are made
// of the same vector and heads are one row.
class HeadRows {
 public:
  // Elements of the heads side by side; of all of them where `heads` is empty.
  static int32_t width(const HeadList& heads, const tap::Heads& layer);

  // `row` is of the heads side by side or, where it `is_whole`, of all of the layer's, of which the
  // others' part is dropped.
  Row spread(const Row& row, bool is_whole, const HeadList& heads, const tap::Heads& layer);
  // 1 at the heads, 0 elsewhere; empty where the heads are all.
  Row mask(const HeadList& heads, const tap::Heads& layer);

 private:
  // What a row is made of: a vector (null: ones), heads, and the layer's count and size of heads.
  using Key = std::tuple<const float*, HeadList, int32_t, int32_t>;
  std::map<Key, Row> made_;
};

}  // namespace rudder::steer
