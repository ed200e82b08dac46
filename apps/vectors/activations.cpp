#include "vectors/activations.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <mutex>
#include <optional>
#include <utility>

#include "local_client.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/vectors.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

Result<int32_t> parse_layer(std::string_view text) {
  int32_t layer = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  if (error == std::errc{} && end == text.data() + text.size() && layer >= 0) return layer;
  return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is no layer: 4 or 8-12", text),
              "layers");
}

}  // namespace

Result<std::vector<int32_t>> parse_layers(std::string_view text, tap::Site site,
                                          const tap::Geometry& geometry) {
  std::vector<int32_t> layers;
  if (text == "all") {
    for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
      if (geometry.has({layer, site})) layers.push_back(layer);
    }
    if (!layers.empty()) return layers;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("this model has no {}", tap::site_name(site)), "site");
  }
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const size_t dash = part.find('-');
    RUDDER_TRY(const int32_t first, parse_layer(part.substr(0, dash)));
    int32_t last = first;
    if (dash != std::string_view::npos) {
      RUDDER_TRY(last, parse_layer(part.substr(dash + 1)));
    }
    last = std::min(last, geometry.num_layers);  // one that is not there is named below
    for (int32_t layer = first; layer <= std::max(first, last); ++layer) {
      const Result<void> known = geometry.check({layer, site});
      if (!known) return fail(ErrorCode::kInvalidArgument, known.error().message, "layers");
      layers.push_back(layer);
    }
  }
  std::ranges::sort(layers);
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  if (!layers.empty()) return layers;
  return fail(ErrorCode::kInvalidArgument, "names no layer", "layers");
}

Result<std::shared_ptr<const steer::capture::CaptureSpec>> mean_spec(
    const ModelSession& session, tap::Site site, const std::vector<int32_t>& layers,
    std::string_view positions, std::string_view point) {
  const json::value field = {
      {"response",
       {{"sites", json::object{{tap::site_name(site), json::value_from(layers)}}},
        {"positions", positions},
        {"point", point},
        {"values", {"means"}}}}};
  return session.engine->captures()->spec(&field);
}

Result<void> add_capture(const std::shared_ptr<const steer::capture::CaptureSpec>& spec,
                         engine::RequestParams& params) {
  tap::SequenceTaps taps;
  if (params.taps != nullptr) taps = *params.taps;
  RUDDER_TRY_VOID(
      steer::capture::Dispatcher::apply(*spec, static_cast<int32_t>(params.prompt.size()), taps));
  params.taps = std::make_shared<const tap::SequenceTaps>(std::move(taps));
  params.capture = spec;
  return {};
}

Result<std::vector<std::vector<float>>> mean_rows(const steer::capture::CaptureResults& results,
                                                  tap::Site site, size_t num_layers) {
  std::vector<std::vector<float>> rows(num_layers);
  for (const steer::capture::ConsumerResult& result : results) {
    if (result.consumer != "response") continue;
    if (result.status != steer::capture::Status::kOk) {
      return fail(ErrorCode::kInternal, result.error, "capture");
    }
    RUDDER_TRY(const json::value payload, parse_json(result.payload, "payload"));
    const json::value* means = payload.as_object().if_contains("means");
    if (means == nullptr) return rows;
    const json::object& pack = means->at(tap::site_name(site)).as_object();
    RUDDER_TRY(const steer::Rows read, steer::read_packed(pack, "means"));
    for (size_t i = 0; i < num_layers; ++i) {
      const steer::Row row = read.row(static_cast<int64_t>(i));
      rows[i].assign(row.values().begin(), row.values().end());
    }
    return rows;
  }
  return fail(ErrorCode::kInternal, "the engine gave no captures", "capture");
}

Result<std::vector<steer::RowSet>> rows_of_prompts(ModelSession& session,
                                                   const std::vector<std::vector<int32_t>>& prompts,
                                                   tap::Site site,
                                                   const std::vector<int32_t>& layers, bool mean,
                                                   const std::string& label) {
  RUDDER_TRY(const auto spec,
             mean_spec(session, site, layers, mean ? "all_prompt" : "last_prompt"));
  Progress progress(label, false);
  std::mutex mutex;
  std::vector<steer::capture::CaptureResults> results(prompts.size());
  std::optional<Error> error;
  int64_t done = 0;
  {
    LocalClient client(*session.engine);
    for (size_t i = 0; i < prompts.size(); ++i) {
      engine::RequestParams params;
      params.prompt = prompts[i];
      params.max_tokens = 1;
      RUDDER_TRY_VOID(add_capture(spec, params));
      const auto finish = [&, i](LocalAnswer&& answer) {
        std::lock_guard lock(mutex);
        results[i] = std::move(answer.captures);
        if (answer.error) error = answer.error;
        progress.update(++done, static_cast<int64_t>(prompts.size()));
      };
      RUDDER_TRY_VOID(client.submit(std::move(params), finish));
    }
  }
  if (error) return tl::unexpected<Error>(*error);
  std::vector<steer::RowSet> sets(layers.size());
  for (const steer::capture::CaptureResults& result : results) {
    RUDDER_TRY(const auto rows, mean_rows(result, site, layers.size()));
    for (size_t i = 0; i < rows.size(); ++i) {
      sets[i].width = static_cast<int32_t>(rows[i].size());
      sets[i].values.insert(sets[i].values.end(), rows[i].begin(), rows[i].end());
    }
  }
  return sets;
}

}  // namespace rudder::apps
