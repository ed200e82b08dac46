#include "rudder/steer/capture/consumers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/settings.h"
#include "rudder/steer/capture/filesystem_consumer.h"
#include "rudder/steer/capture/kept_consumer.h"
#include "rudder/steer/capture/logging_consumer.h"
#include "rudder/steer/capture/plugin_consumer.h"
#include "rudder/steer/capture/response_consumer.h"
#include "rudder/steer/capture/routed_experts_consumer.h"

namespace rudder::steer::capture {
namespace {

constexpr int64_t kKeptBytes = int64_t{256} << 20;  // unless the flag says

}  // namespace

Result<ConsumerFlag> ConsumerFlag::parse(std::string_view text, const std::string& flag) {
  ConsumerFlag parsed;
  const size_t name_end = text.find(':');
  parsed.name_ = std::string(text.substr(0, name_end));
  parsed.where_ = fmt::format("{} {}", flag, parsed.name_);
  if (parsed.name_.empty()) {
    return fail(ErrorCode::kInvalidArgument, "needs a name", flag);
  }
  if (name_end == std::string_view::npos) return parsed;
  std::string_view rest = text.substr(name_end + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return parsed.bad(std::string(pair), "options are written key=value");
    }
    const bool is_new =
        parsed.options_
            .emplace(std::string(pair.substr(0, equals)), std::string(pair.substr(equals + 1)))
            .second;
    if (!is_new) return parsed.bad(std::string(pair.substr(0, equals)), "is given twice");
  }
  return parsed;
}

tl::unexpected<Error> ConsumerFlag::bad(const std::string& key, std::string message) const {
  return fail(ErrorCode::kInvalidArgument, std::move(message), fmt::format("{}: {}", where_, key));
}

std::string ConsumerFlag::text(const std::string& key, std::string fallback) {
  const auto found = options_.find(key);
  if (found == options_.end()) return fallback;
  std::string value = std::move(found->second);
  options_.erase(found);
  return value;
}

Result<bool> ConsumerFlag::boolean(const std::string& key, bool fallback) {
  const std::string value = text(key, fallback ? "true" : "false");
  if (value != "true" && value != "false") return bad(key, "must be true or false");
  return value == "true";
}

Result<int64_t> ConsumerFlag::integer(const std::string& key, int64_t fallback, int64_t low,
                                      int64_t high) {
  if (!options_.contains(key)) return fallback;
  const Result<int64_t> value = parse_human_integer(text(key, ""));
  if (!value) return bad(key, value.error().message);
  if (*value < low || *value > high) {
    return bad(key, fmt::format("must be from {} to {}", low, high));
  }
  return *value;
}

Result<void> ConsumerFlag::finish() const {
  if (options_.empty()) return {};
  return bad(options_.begin()->first, "unknown option");
}

Result<MadeConsumers> make_consumers(const CaptureSettings& settings, const tap::Geometry& geometry,
                                     const VectorLookup& lookup,
                                     const DictionaryLookup& dictionaries,
                                     const std::shared_ptr<tap::Lens>& lens,
                                     const std::shared_ptr<features::FeatureReader>& features) {
  MadeConsumers made;
  std::vector<std::shared_ptr<Consumer>>& consumers = made.consumers;
  const auto budget = std::make_shared<AnswerBudget>(settings.max_response_bytes);
  consumers.push_back(
      make_response_consumer(geometry, lookup, dictionaries, lens, features, budget));
  if (!geometry.routing.empty()) {
    consumers.push_back(make_routed_experts_consumer(geometry, budget));
  }
  for (const std::string& text : settings.consumers) {
    RUDDER_TRY(ConsumerFlag flag, ConsumerFlag::parse(text, "capture-consumer"));
    if (flag.name() == "filesystem") {
      RUDDER_TRY(FilesystemSettings filesystem, FilesystemSettings::parse(flag));
      RUDDER_TRY(std::shared_ptr<Consumer> consumer, make_filesystem_consumer(filesystem));
      consumers.push_back(std::move(consumer));
    } else if (flag.name() == "logging") {
      RUDDER_TRY_VOID(flag.finish());
      consumers.push_back(make_logging_consumer());
    } else if (flag.name() == "kept") {
      RUDDER_TRY(const int64_t bytes, flag.integer("bytes", kKeptBytes, 1, INT64_MAX));
      RUDDER_TRY_VOID(flag.finish());
      made.kept = std::make_shared<KeptRows>(bytes);
      consumers.push_back(make_kept_consumer(made.kept));
    } else {
      return fail(
          ErrorCode::kInvalidArgument,
          "unknown consumer: filesystem, kept and logging are known, response is always there",
          flag.where());
    }
  }
  for (const std::string& text : settings.plugins) {
    RUDDER_TRY(std::shared_ptr<Consumer> consumer, load_plugin(text, geometry));
    consumers.push_back(std::move(consumer));
  }
  return made;
}

}  // namespace rudder::steer::capture
