// A packed vector, or bare base64: what is decoded is encoded as the same text, and a vector is the
// same packed and as lists.
#include <boost/json.hpp>
#include <cmath>
#include <vector>

#include "require.h"
#include "rudder/base/json.h"
#include "rudder/steer/base64.h"
#include "rudder/steer/capture/base64.h"
#include "rudder/steer/vectors.h"

namespace rudder::fuzz {
namespace {

void require_base64(std::string_view text) {
  const auto size = steer::base64_bytes(text);
  if (!size) return;
  std::vector<std::byte> bytes(*size);
  if (!steer::decode_base64(text, bytes)) return;
  std::string again;
  steer::capture::append_base64(again, bytes);
  RUDDER_CHECK(again == text, "{} is read, {} is written", text, again);
}

boost::json::array lists_of(const steer::Rows& rows) {
  boost::json::array lists;
  for (int64_t i = 0; i < rows.count; ++i) {
    boost::json::array list;
    for (const float value : rows.row(i).values()) list.emplace_back(value);
    lists.push_back(std::move(list));
  }
  return lists;
}

}  // namespace

void fuzz_packed_vector(std::string_view input) {
  require_base64(input);
  const auto value = parse_json(input, "vector");
  if (!value || !value->is_object()) return;
  const boost::json::object& packed = value->get_object();
  if (const auto* data = packed.if_contains("data"); data != nullptr && data->is_string()) {
    require_base64(data->get_string());
  }
  const auto rows = steer::read_packed(packed, "v");
  if (!rows) return require_error(rows.error(), {ErrorCode::kInvalidArgument}, "v");
  RUDDER_CHECK(rows->count > 0 && rows->width > 0, "{} x {}", rows->count, rows->width);
  for (int64_t i = 0; i < rows->count; ++i) {
    for (const float element : rows->row(i).values()) RUDDER_CHECK(std::isfinite(element));
  }
  const auto listed = steer::read_lists(lists_of(*rows), "v");
  RUDDER_CHECK(listed.has_value(), "{}", listed.error().to_string());
  RUDDER_CHECK(listed->count == rows->count && listed->width == rows->width);
  for (int64_t i = 0; i < rows->count; ++i) {
    RUDDER_CHECK(std::ranges::equal(listed->row(i).values(), rows->row(i).values()));
  }
}

}  // namespace rudder::fuzz
