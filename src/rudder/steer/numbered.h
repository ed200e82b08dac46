// Fields that name some of a row of numbered things: layers of a model, heads of a layer. They all
// take the same forms. Any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::steer {

struct Numbered {
  std::string_view noun;  // "layer"
  int32_t count = 0;
  std::string of;  // "a model with 12 layers": how errors go on behind "layer 14 of"
  // Refuses a number from 0 to below count; of its Error the message is used.
  std::function<Result<void>(int32_t)> check = [](int32_t) { return Result<void>(); };
};

// The numbers that `value` means, in its order, none twice:
//   4                                   one; below 0 they count from the end: -1 is the last
//   "4,8-12,-1"                         numbers and ranges, both ends in
//   [4, "8-12", -1]                     a list of such
//   {"layers": [4], "ranges": [[8, 12]]}  the same in numbers alone; the first key is the noun's
// kInvalidArgument at the part that is wrong. "all" is left to the caller.
Result<std::vector<int32_t>> read_numbers(const boost::json::value& value, const Numbered& things,
                                          const std::string& path);

// One of them as a number (4.0 is one too), or as text ("4", "-1").
Result<int32_t> read_number_of(const boost::json::value& value, const Numbered& things,
                               const std::string& path);
Result<int32_t> read_number_of(std::string_view text, const Numbered& things,
                               const std::string& path);

}  // namespace rudder::steer
