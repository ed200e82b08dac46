#include "rudder/server/steering/tap_fields.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/steer/parse.h"
#include "rudder/steer/plan.h"

namespace rudder::server {

namespace json = boost::json;

Result<void> TapFields::read_steering(FieldReader& reader, const json::object& body,
                                      const TapServices& services) {
  for (const std::string_view name : steer::steering_fields()) {
    if (reader.raw(name) == nullptr || services.steering != nullptr) continue;
    return fail(ErrorCode::kUnsupported,
                std::string(name) + " needs a server that was started with --enable-steering",
                std::string(name));
  }
  if (services.steering != nullptr) {
    RUDDER_TRY(steering_, services.steering->resolve(body));
  }
  return {};
}

Result<TapFields> TapFields::read_around(
    FieldReader& reader, const json::object& body, const TapServices& services,
    std::shared_ptr<const steer::capture::CaptureSpec> capture) {
  reader.refuse("capture", "is not supported by this endpoint");
  TapFields fields;
  RUDDER_TRY_VOID(fields.read_steering(reader, body, services));
  fields.capture_ = std::move(capture);
  return fields;
}

Result<TapFields> TapFields::read(FieldReader& reader, const json::object& body,
                                  const TapServices& services) {
  TapFields fields;
  RUDDER_TRY_VOID(fields.read_steering(reader, body, services));
  const json::value* capture = reader.raw("capture");
  reader.boolean("capture_wait", &fields.capture_wait_);
  if (services.captures != nullptr) {
    RUDDER_TRY(fields.capture_, services.captures->spec(capture));
  } else if (capture != nullptr) {
    return fail(ErrorCode::kUnsupported,
                "capture needs a server that was started with --capture-memory-mb", "capture");
  }
  return fields;
}

bool TapFields::needs_roles() const {
  return steering_ != nullptr &&
         std::ranges::any_of(steering_->selectors(), &steer::Selector::roles);
}

Result<void> TapFields::apply(const PromptText& prompt, bool has_roles,
                              engine::RequestParams* params) const {
  const auto prompt_len = static_cast<int32_t>(params->prompt.size());
  tap::SequenceTaps taps;
  if (steering_ != nullptr) {
    RUDDER_TRY(taps, steer::make_taps(*steering_, {.prompt_len = prompt_len,
                                                   .has_roles = has_roles,
                                                   .roles = prompt.roles}));
  }
  if (capture_ != nullptr) {
    RUDDER_TRY_VOID(steer::capture::Dispatcher::apply(*capture_, prompt_len, taps));
  }
  if (taps.segments.empty() && taps.capture == nullptr) return {};
  params->taps = std::make_shared<const tap::SequenceTaps>(std::move(taps));
  params->capture = capture_;
  params->capture_wait = capture_wait_;
  using steer::capture::Ask;
  params->capture_results =
      capture_ != nullptr && !std::ranges::all_of(capture_->asks, &Ask::by_operator);
  return {};
}

}  // namespace rudder::server
