#include "features/prompt_features.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <mutex>
#include <optional>
#include <utility>

#include "local_client.h"
#include "rudder/base/progress.h"
#include "rudder/base/thread_pool.h"
#include "vectors/activations.h"

namespace rudder::apps {
namespace {

namespace json = boost::json;

constexpr size_t kPromptsAtOnce = 64;  // bounds the rows in memory

Result<void> encode_some(ModelSession& session, const features::Dictionary& dictionary,
                         std::span<const std::vector<int32_t>> prompts, size_t first,
                         ThreadPool& threads, const TakeFeatures& take) {
  RUDDER_TRY(const auto spec, rows_spec(session, dictionary));
  std::vector<LocalAnswer> answers(prompts.size());
  {
    LocalClient client(*session.engine);
    for (size_t i = 0; i < prompts.size(); ++i) {
      engine::RequestParams params;
      params.prompt = prompts[i];
      params.max_tokens = 1;
      RUDDER_TRY(const auto lease, add_capture(*session.engine, *spec, {}, params));
      const auto finish = [&answers, i](LocalAnswer&& answer) { answers[i] = std::move(answer); };
      RUDDER_TRY_VOID(client.submit(std::move(params), finish));
    }
  }
  std::vector<std::vector<float>> rows;
  for (const LocalAnswer& answer : answers) {
    if (answer.error) return tl::unexpected<Error>(*answer.error);
    RUDDER_TRY(rows.emplace_back(), token_rows(answer.captures, dictionary));
  }
  threads.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    const auto width = static_cast<size_t>(dictionary.d_in);
    std::vector<float> features(static_cast<size_t>(dictionary.num_features));
    for (size_t token = 0; token < rows[i].size() / width; ++token) {
      features::encode(dictionary, std::span(rows[i]).subspan(token * width, width), features);
      take(first + i, token, features);
    }
  });
  return {};
}

}  // namespace

SessionSettings feature_session_settings() {
  SessionSettings settings;
  settings.log_level = "warn";
  settings.exec.enable_steering = true;
  settings.exec.capture_memory_mb = 64;
  return settings;
}

Result<std::shared_ptr<const features::Dictionary>> session_dictionary(const ModelSession& session,
                                                                       int32_t layer) {
  if (session.engine->captures() == nullptr || session.steering == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "needs --enable-steering and --capture-memory-mb");
  }
  const auto sets = session.steering->library().dictionaries();
  if (sets.size() != 1) {
    return fail(ErrorCode::kInvalidArgument, "give one, NAME=PATH or NAME=PATH@SITE", "dictionary");
  }
  const features::DictionarySet& set = *sets.front();
  if (layer < 0 && set.layers.size() == 1) return set.layers.front();
  const auto* found = layer < 0 ? nullptr : set.at_layer(layer);
  if (found != nullptr) return *found;
  std::vector<int32_t> layers;
  layers.reserve(set.layers.size());
  for (const auto& dictionary : set.layers) layers.push_back(dictionary->read.layer);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("one of the dictionary's layers is needed: {}", fmt::join(layers, ", ")),
              "layer");
}

Result<std::shared_ptr<const steer::capture::CaptureSpec>> rows_spec(
    const ModelSession& session, const features::Dictionary& dictionary) {
  const json::value field = {{"response",
                              {{"sites", json::object{{tap::site_name(dictionary.read.site),
                                                       json::array{dictionary.read.layer}}}},
                               {"positions", "all_prompt"},
                               {"dtype", "float32"}}}};
  return session.engine->captures()->spec(&field);
}

Result<std::vector<float>> token_rows(const steer::capture::CaptureResults& results,
                                      const features::Dictionary& dictionary) {
  for (const steer::capture::ConsumerResult& result : results) {
    if (result.consumer != "response") continue;
    if (result.status != steer::capture::Status::kOk) {
      return fail(ErrorCode::kInternal, result.error, "capture");
    }
    if (!result.values || result.values->rows.empty()) break;
    const steer::capture::ResultRows& rows = result.values->rows.front();
    if (rows.width == dictionary.d_in) return rows.to_floats();
    return fail(ErrorCode::kInternal, "the engine gave rows of another width", "capture");
  }
  return fail(ErrorCode::kInternal, "the engine gave no captures", "capture");
}

Result<void> encode_prompts(ModelSession& session, const features::Dictionary& dictionary,
                            const std::vector<std::vector<int32_t>>& prompts,
                            const std::string& label, const TakeFeatures& take) {
  Progress progress(label, false);
  ThreadPool threads;
  for (size_t first = 0; first < prompts.size(); first += kPromptsAtOnce) {
    const size_t count = std::min(kPromptsAtOnce, prompts.size() - first);
    RUDDER_TRY_VOID(encode_some(session, dictionary, std::span(prompts).subspan(first, count),
                                first, threads, take));
    progress.update(static_cast<int64_t>(first + count), static_cast<int64_t>(prompts.size()));
  }
  return {};
}

}  // namespace rudder::apps
