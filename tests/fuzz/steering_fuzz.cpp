// The steering fields of a request, or of a module: what is accepted steers points of the model,
// and means the same when the body is written and read again.
#include <boost/json.hpp>

#include "rudder/base/json.h"
#include "steer_model.h"

namespace rudder::fuzz {
namespace {

using steer::ParsedSteering;

Result<ParsedSteering> parse_as(bool admin, const boost::json::object& body,
                                const steer::Model& model) {
  static constexpr std::string_view kOthers[] = {"name", "replace"};
  return admin ? steer::parse_admin_steering(body, kOthers, model, fuzz_names())
               : steer::parse_steering(body, model, fuzz_names());
}

std::vector<steer::OpSpec> with_named(const ParsedSteering& parsed) {
  std::vector<steer::OpSpec> ops;
  for (const steer::NamedRef& named : parsed.named) {
    const auto appended = steer::append_scaled(named, ops);
    if (!appended) require_error(appended.error(), {ErrorCode::kInvalidArgument});
  }
  ops.insert(ops.end(), parsed.ops.begin(), parsed.ops.end());
  return ops;
}

}  // namespace

void fuzz_steering(std::string_view input) {
  const auto value = parse_json(input, "body");
  if (!value || !value->is_object()) return;
  const steer::Model model = fuzz_model();
  for (const bool admin : {false, true}) {
    const auto parsed = parse_as(admin, value->get_object(), model);
    if (!parsed) {
      require_error(parsed.error(), {ErrorCode::kInvalidArgument, ErrorCode::kNotFound});
      RUDDER_CHECK(!parsed.error().where.empty(), "{}", parsed.error().to_string());
      continue;
    }
    require_ops(parsed->ops, model);
    RUDDER_CHECK(parsed->named.size() <= steer::kMaxNamed);
    const auto body = parse_json(to_json_text(*value), "again");
    const auto again = parse_as(admin, body->get_object(), model);
    RUDDER_CHECK(again.has_value(), "{}", again.error().to_string());
    RUDDER_CHECK(keys_of(with_named(*again), model) == keys_of(with_named(*parsed), model),
                 "the body means something else when it is read again");
  }
}

}  // namespace rudder::fuzz
