#include "rudder/server/steering/tap_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/server/steering/tap_names.h"
#include "rudder/steer/capture/routed_experts_consumer.h"
#include "rudder/steer/parse.h"
#include "rudder/steer/segments.h"

namespace rudder::server {

namespace json = boost::json;

namespace {

std::vector<int32_t> special_positions(const std::vector<int32_t>& prompt,
                                       const text::Tokenizer& tokenizer) {
  std::vector<int32_t> positions;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (tokenizer.is_special(prompt[i])) positions.push_back(static_cast<int32_t>(i));
  }
  return positions;
}

}  // namespace

Result<void> TapFields::read_steering(FieldReader& reader, const json::object& body,
                                      const TapServices& services) {
  programs_ = services.programs;
  RUDDER_TRY_VOID(refuse_misplaced_taps(body));
  for (const std::string_view name : steer::steering_fields()) {
    if (reader.raw(name) == nullptr || services.steering != nullptr) continue;
    return fail(ErrorCode::kUnsupported,
                std::string(name) + " needs a server that was started with --enable-steering",
                std::string(name));
  }
  if (services.steering != nullptr) {
    const steer::capture::KeptView kept = {
        .rows = services.captures == nullptr ? nullptr : services.captures->kept(),
        .tenant = services.tenant};
    RUDDER_TRY(steering_, services.steering->resolve(body, kept));
  }
  return {};
}

Result<void> TapFields::read_pair(FieldReader& reader, const json::object& body,
                                  const TapServices& services) {
  reader.boolean("steering_pair", &is_pair_);
  if (!is_pair_) return {};
  if (!steer::has_steering_fields(body)) {
    return field_error(ErrorCode::kInvalidArgument,
                       "needs steering: without it both answers are the same", "steering_pair");
  }
  plain_ = services.steering->global();
  return {};
}

TapFields TapFields::plain() const {
  TapFields fields = *this;
  fields.steering_ = plain_;
  return fields;
}

// What the engine is to read of the request's rows.
Result<std::optional<steer::capture::StopWhen>> TapFields::read_stop(FieldReader& reader,
                                                                     const TapServices& services) {
  const json::value* stop = reader.raw("stop_when");
  if (stop == nullptr) return std::optional<steer::capture::StopWhen>();
  if (services.steering == nullptr || services.captures == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "stop_when needs a server that was started with --enable-steering and "
                "--capture-memory-mb",
                "stop_when");
  }
  RUDDER_TRY(steer::capture::StopWhen read, services.steering->stop_when(*stop, "stop_when"));
  return std::optional(std::move(read));
}

namespace {

// Where a client cannot have the experts of its tokens: why.
Result<void> check_experts(const tap::Geometry& geometry, const std::string& field) {
  Result<void> none = field_error(ErrorCode::kInvalidArgument,
                                  "no layer of this model is a mixture of experts", field);
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    if (!geometry.has_experts(layer)) continue;
    const Result<void> tapped = geometry.check({layer, tap::Site::kRoutedExperts});
    if (tapped) return {};
    none = field_error(ErrorCode::kUnsupported, tapped.error().message, field);
  }
  return none;
}

// `capture` as it is, or with the consumer routed_experts where `return_routed_experts` asks for
// it: from `routed_experts_prompt_start` on, as vLLM calls it.
Result<std::optional<json::value>> read_capture(FieldReader& reader, const TapServices& services) {
  constexpr std::string_view kField = "return_routed_experts";
  const json::value* const capture = reader.raw("capture");
  std::optional<json::value> read;
  if (capture != nullptr) read = *capture;
  bool returns_experts = false;
  reader.boolean(kField, &returns_experts);
  std::optional<int64_t> start;
  reader.integer("routed_experts_prompt_start", 0, tap::kNoEnd - 1, &start);
  RUDDER_TRY_VOID(reader.result());
  if (!returns_experts) {
    if (!start) return read;
    return field_error(ErrorCode::kInvalidArgument, "goes with return_routed_experts: true",
                       "routed_experts_prompt_start");
  }
  if (services.captures == nullptr) {
    return field_error(ErrorCode::kUnsupported,
                       "needs a server that was started with --capture-memory-mb",
                       std::string(kField));
  }
  if (reader.limits() != nullptr) {
    RUDDER_TRY_VOID(check_experts(reader.limits()->geometry, std::string(kField)));
  }
  if (!read) read = json::object();
  json::object* const consumers = read->if_object();
  if (consumers == nullptr) return read;  // refused as a capture
  const auto name = json::string_view(steer::capture::kRoutedExpertsConsumer);
  if (consumers->contains(name)) {
    return field_error(ErrorCode::kInvalidArgument, "capture asks for the same already",
                       std::string(kField));
  }
  (*consumers)[name] = {{"positions", {{"from", start.value_or(0)}}}};
  return read;
}

}  // namespace

Result<TapFields> TapFields::read_around(
    FieldReader& reader, const json::object& body, const TapServices& services,
    std::shared_ptr<const steer::capture::CaptureSpec> capture) {
  for (const std::string_view name :
       {"capture", "return_routed_experts", "routed_experts_prompt_start", "steering_pair",
        "stop_when"}) {
    reader.refuse(name, "is not supported by this endpoint");
  }
  TapFields fields;
  RUDDER_TRY_VOID(fields.read_steering(reader, body, services));
  fields.capture_ = std::move(capture);
  return fields;
}

Result<TapFields> TapFields::read(FieldReader& reader, const json::object& body,
                                  const TapServices& services) {
  TapFields fields;
  RUDDER_TRY_VOID(fields.read_steering(reader, body, services));
  RUDDER_TRY_VOID(fields.read_pair(reader, body, services));
  RUDDER_TRY(std::optional<steer::capture::StopWhen> stop, read_stop(reader, services));
  RUDDER_TRY(const std::optional<json::value> capture, read_capture(reader, services));
  reader.boolean("capture_wait", &fields.capture_wait_);
  if (services.captures != nullptr) {
    RUDDER_TRY(fields.capture_,
               services.captures->spec(capture ? &*capture : nullptr, std::move(stop)));
  } else if (capture) {
    return fail(ErrorCode::kUnsupported,
                "capture needs a server that was started with --capture-memory-mb", "capture");
  }
  return fields;
}

bool TapFields::needs_roles() const {
  return steering_ != nullptr &&
         std::ranges::any_of(steering_->selectors(), &steer::Selector::roles);
}

bool TapFields::tells_thoughts() const {
  return steering_ != nullptr && std::ranges::any_of(steering_->selectors(), steer::tells_thoughts);
}

steer::PromptShape shape_of(const std::vector<int32_t>& prompt, const text::Tokenizer& tokenizer) {
  steer::PromptShape shape;
  shape.prompt_len = static_cast<int32_t>(prompt.size());
  shape.tokens = prompt;
  shape.special_at = special_positions(prompt, tokenizer);
  return shape;
}

Result<TapsLease> apply_taps(const steer::Config* steering,
                             std::shared_ptr<const steer::capture::CaptureSpec> capture,
                             const steer::PromptShape& shape, steer::ProgramTable& programs,
                             engine::RequestParams* params) {
  tap::SequenceTaps taps;
  if (steering != nullptr) {
    RUDDER_TRY(taps, steer::make_taps(*steering, shape));
  }
  if (capture != nullptr) {
    RUDDER_TRY_VOID(steer::capture::Dispatcher::apply(*capture, shape.prompt_len, taps));
  }
  TapsLease lease;
  if (taps.segments.empty() && taps.capture == nullptr) return lease;
  RUDDER_TRY(lease.taps, programs.keep(std::move(taps)));
  params->taps = tap::spec_of(*lease.taps);
  if (capture != nullptr) {
    params->capture = capture->id;
    using steer::capture::Ask;
    params->capture_delivery.results = !std::ranges::all_of(capture->asks, &Ask::by_operator);
  }
  lease.capture = std::move(capture);
  return lease;
}

Result<TapsLease> TapFields::apply(const PromptText& prompt, const text::Tokenizer& tokenizer,
                                   bool has_roles,
                                   const std::optional<steer::ThoughtMarks>& thoughts,
                                   engine::RequestParams* params) const {
  if (steering_ == nullptr && capture_ == nullptr) return TapsLease{};
  steer::PromptShape shape;
  shape.prompt_len = static_cast<int32_t>(params->prompt.size());
  if (steering_ != nullptr) shape = shape_of(params->prompt, tokenizer);
  shape.has_roles = has_roles;
  shape.roles = prompt.roles;
  shape.thoughts = thoughts;
  RUDDER_TRY(TapsLease lease, apply_taps(steering_.get(), capture_, shape, *programs_, params));
  if (lease.taps == nullptr) return lease;
  params->capture_delivery.wait = capture_wait_;
  if (capture_ == nullptr) params->capture_delivery.results = false;
  return lease;
}

}  // namespace rudder::server
