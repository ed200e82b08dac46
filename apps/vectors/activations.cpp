#include "vectors/activations.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "local_client.h"
#include "rudder/base/progress.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/layers.h"

namespace rudder::apps {
namespace json = boost::json;

Result<std::vector<int32_t>> parse_layers(std::string_view text, tap::Site site,
                                          const tap::Geometry& geometry) {
  RUDDER_TRY(std::vector<int32_t> layers,
             steer::read_layers(json::value(text), site, geometry, "layers"));
  std::ranges::sort(layers);
  return layers;
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

Result<std::shared_ptr<const tap::SequenceTaps>> add_capture(
    engine::Engine& engine, const steer::capture::CaptureSpec& spec, tap::SequenceTaps taps,
    engine::RequestParams& params) {
  const auto prompt_len = static_cast<int32_t>(params.prompt.size());
  RUDDER_TRY_VOID(steer::capture::Dispatcher::apply(spec, prompt_len, taps));
  RUDDER_TRY(auto kept, engine.programs().keep(std::move(taps)));
  params.taps = tap::spec_of(*kept);
  params.capture = spec.id;
  return kept;
}

Result<std::vector<std::vector<float>>> mean_rows(const steer::capture::CaptureResults& results,
                                                  tap::Site site, size_t num_layers) {
  std::vector<std::vector<float>> rows(num_layers);
  for (const steer::capture::ConsumerResult& result : results) {
    if (result.consumer != "response") continue;
    if (result.status != steer::capture::Status::kOk) {
      return fail(ErrorCode::kInternal, result.error, "capture");
    }
    if (!result.values || result.values->means.empty()) return rows;
    // The request's layers, in order, of one site.
    const steer::capture::ResultRows& means = result.values->means.front();
    const auto width = static_cast<size_t>(means.width);
    if (means.key != tap::site_name(site) || means.layers.size() != num_layers) {
      return fail(ErrorCode::kInternal, "the engine gave other rows than those asked for",
                  "capture");
    }
    const std::vector<float> values = means.to_floats();
    for (size_t i = 0; i < num_layers; ++i) {
      const auto row = std::span(values).subspan(i * width, width);
      rows[i].assign(row.begin(), row.end());
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
      RUDDER_TRY(const auto lease, add_capture(*session.engine, *spec, {}, params));
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
