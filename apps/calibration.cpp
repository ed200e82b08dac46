#include "calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "eval/score_text.h"
#include "local_client.h"
#include "rudder/base/progress.h"
#include "rudder/base/thread_pool.h"
#include "rudder/steer/capture/dispatcher.h"
#include "vectors/activations.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

constexpr int kWindow = 128;  // tokens
constexpr int kWindows = 8;
constexpr int kEach = 4;  // of so many rows one counts: those beside each other are alike

using RowsByLayer = std::map<int32_t, std::vector<float>>;  // [n, width]

// kWindows evenly over the text, or as many as it has.
Result<std::vector<std::vector<int32_t>>> calibration_windows(const ModelSession& session,
                                                              const std::string& text_file) {
  const WindowSettings rolling = {.kind = WindowKind::kRolling, .window = kWindow};
  RUDDER_TRY(const ScoredText text, encode_text_file(session.files, text_file, rolling, false));
  const auto num_tokens = static_cast<int>(text.tokens.size());
  if (num_tokens < kWindow) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("has {} tokens; at least {} are needed", num_tokens, kWindow),
                text_file);
  }
  const int count = std::min(kWindows, num_tokens / kWindow);
  std::vector<std::vector<int32_t>> windows;
  for (int i = 0; i < count; ++i) {
    const int begin = count == 1 ? 0 : (num_tokens - kWindow) / (count - 1) * i;
    std::vector<int32_t>& window = windows.emplace_back();
    if (text.prefix >= 0) window.push_back(text.prefix);
    window.insert(window.end(), text.tokens.begin() + begin, text.tokens.begin() + begin + kWindow);
  }
  return windows;
}

// Adds the rows of one window. The first ones are left out: models put there what no later token
// has.
Result<void> add_rows(const steer::capture::CaptureResults& results, RowsByLayer& rows) {
  for (const steer::capture::ConsumerResult& result : results) {
    if (result.consumer != "response") continue;
    if (result.status != steer::capture::Status::kOk || !result.values) {
      return fail(ErrorCode::kInternal, result.error, "capture");
    }
    for (const steer::capture::ResultRows& of_site : result.values->rows) {
      const std::vector<float> values = of_site.to_floats();
      const auto width = static_cast<size_t>(of_site.width);
      std::map<int32_t, int> seen;
      for (size_t i = 0; i < of_site.layers.size(); ++i) {
        if (++seen[of_site.layers[i]] % kEach != 0) continue;
        const auto row = std::span(values).subspan(i * width, width);
        std::vector<float>& all = rows[of_site.layers[i]];
        all.insert(all.end(), row.begin(), row.end());
      }
    }
  }
  return {};
}

Result<RowsByLayer> rows_at(ModelSession& session, tap::Site site,
                            const std::vector<int32_t>& layers,
                            const std::vector<std::vector<int32_t>>& windows) {
  const json::value field = {
      {"response",
       {{"sites", json::object{{tap::site_name(site), json::value_from(layers)}}},
        {"positions", "all_prompt"},
        {"values", {"rows"}}}}};
  RUDDER_TRY(const auto spec, session.engine->captures()->spec(&field));
  RowsByLayer rows;
  LocalClient client(*session.engine);
  for (const std::vector<int32_t>& window : windows) {
    engine::RequestParams params;
    params.prompt = window;
    params.max_tokens = 1;
    RUDDER_TRY(const auto lease, add_capture(*session.engine, *spec, {}, params));
    RUDDER_TRY(const LocalAnswer answer, client.ask(std::move(params)));
    if (answer.error) return tl::unexpected<Error>(*answer.error);
    RUDDER_TRY_VOID(add_rows(answer.captures, rows));
  }
  return rows;
}

}  // namespace

Result<Calibration> calibrate(const std::string& model, SessionSettings settings,
                              const model::QuantiseScheme& scheme, const std::string& text_file) {
  settings.exec.capture_memory_mb = std::max<int64_t>(settings.exec.capture_memory_mb, 64);
  RUDDER_TRY(ModelSession session, open_session(model, settings));
  RUDDER_TRY(const auto windows, calibration_windows(session, text_file));
  RUDDER_TRY(const ModelFiles files, open_model_files(model, settings.load));
  const weights::Checkpoint& checkpoint = *files.checkpoint;  // a session gives its own back
  RUDDER_TRY(const std::vector<model::ScaledProducts> groups, model::scaled_products(checkpoint));
  if (groups.empty()) {
    return fail(ErrorCode::kUnsupported, "no product of this model has scales of channels",
                "calibration");
  }
  Calibration found;
  double plain = 0;
  ThreadPool pool(0);
  Progress progress("calibrate", false);
  using tap::Site;
  for (const Site site : {Site::kAttnIn, Site::kAttnZ, Site::kMlpIn, Site::kMlpAct}) {
    std::vector<int32_t> layers;
    for (const model::ScaledProducts& group : groups) {
      if (group.point.site == site) layers.push_back(group.point.layer);
    }
    if (layers.empty()) continue;
    RUDDER_TRY(const RowsByLayer rows, rows_at(session, site, layers, windows));
    for (const model::ScaledProducts& group : groups) {
      if (group.point.site != site) continue;
      const model::FoundScales best = model::find_scales(
          checkpoint, scheme, group, rows.at(group.point.layer), pool, found.scales);
      found.num_scaled += best.exponent > 0 ? 1 : 0;
      found.error += best.error;
      plain += best.plain;
      progress.update(++found.num_groups, static_cast<int64_t>(groups.size()));
    }
  }
  if (plain > 0) found.error /= plain;
  return found;
}

}  // namespace rudder::apps
