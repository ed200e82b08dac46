// A dispatcher with the consumer `response`, a lens and a dictionary, and captures through it.
// Tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/steer/capture/base64.h"
#include "rudder/steer/capture/capture_fixture.h"
#include "rudder/steer/capture/logging_consumer.h"
#include "rudder/steer/capture/result_json.h"
#include "rudder/steer/features/test_dictionary.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer::capture {

inline std::string base64(std::string_view text) {
  std::string out;
  append_base64(out, std::as_bytes(std::span(text)));
  return out;
}

// The k-th token of a row is its index in a sort of the row's numbers.
class SortingLens final : public tap::Lens {
 public:
  Result<void> read(std::span<const float> rows, int32_t top,
                    std::vector<tap::LensToken>& out) override {
    constexpr size_t kWidth = 24;
    ++calls;
    if (!fault.empty()) return fail(ErrorCode::kInternal, fault);
    out.clear();
    for (size_t begin = 0; begin < rows.size(); begin += kWidth) {
      const auto row = rows.subspan(begin, kWidth);
      std::vector<int32_t> order(kWidth);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::ranges::greater{},
                               [&](int32_t i) { return row[static_cast<size_t>(i)]; });
      for (int32_t k = 0; k < top; ++k) {
        const int32_t token = order[static_cast<size_t>(k)];
        out.push_back({token, row[static_cast<size_t>(token)]});
      }
    }
    return {};
  }

  // Of the largest number that the streams which are there have at a place.
  Result<void> read_collapsed(std::span<const float> rows, std::span<const int32_t> made,
                              int32_t top, std::vector<tap::LensToken>& out) override {
    constexpr size_t kWidth = 24;
    const size_t width = rows.size() / made.size();
    std::vector<float> collapsed;
    for (size_t i = 0; i < made.size(); ++i) {
      for (size_t k = 0; k < kWidth; ++k) {
        float largest = rows[i * width + k];
        for (int32_t stream = 1; stream < made[i]; ++stream) {
          const size_t at = i * width + static_cast<size_t>(stream) * kWidth + k;
          largest = std::max(largest, rows[at]);
        }
        collapsed.push_back(largest);
      }
    }
    return read(collapsed, top, out);
  }

  size_t rows_together() const override { return 64; }

  int calls = 0;
  std::string fault;
};

class ResponseTest : public ::testing::Test {
 protected:
  void start(int64_t max_bytes = 1 << 20) {
    CaptureSettings settings;
    settings.max_response_bytes = max_bytes;
    const VectorLookup lookup = [](std::string_view name,
                                   tap::Point) -> Result<std::vector<float>> {
      if (name != "known") return fail(ErrorCode::kNotFound, "no such vector", std::string(name));
      return std::vector<float>(24, 0.5f);
    };
    const auto log = make_logging_consumer([this](std::string_view line) {
      std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
    auto made = Dispatcher::create(
        {geometry_, small_limits(), lookup, {log}, lens_, dictionaries_, features_}, settings);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    dispatcher_ = std::move(*made);
  }

  ConsumerResult capture(const std::string& field, bool stream = false) {
    const auto spec = make_spec(*dispatcher_, field);
    const CaptureId id = dispatcher_->begin({.spec = spec,
                                             .request_id = "r",
                                             .choice = 0,
                                             .prompt_len = 4,
                                             .stream = stream,
                                             .wait = true,
                                             .on_results = inbound_.results(),
                                             .on_event = inbound_.events()});
    FakeStep(geometry_).add(id, 9, *spec, 0, 4).push_to(*dispatcher_);
    for (int32_t p = 4; p < 7; ++p) {
      FakeStep(geometry_).add(id, 9, *spec, p, p + 1).push_to(*dispatcher_);
    }
    dispatcher_->end(id);
    const CaptureResults results = inbound_.wait();
    return results.empty() ? ConsumerResult{} : results[0];
  }

  std::vector<float> row(int32_t position, tap::Site site, int32_t layer) {
    const tap::CapturePoint point{{layer, site}, false};
    std::vector<float> values;
    for (int32_t i = 0; i < geometry_.width(point.point); ++i) {
      values.push_back(tensor::to_float(tensor::BF16{row_value(9, position, point, i)}));
    }
    return values;
  }

  std::string packed(const std::vector<std::vector<float>>& rows, bool as_float32) {
    std::string bytes;
    for (const std::vector<float>& values : rows) {
      for (const float value : values) {
        const uint16_t half = tensor::to_bf16(value).bits;
        if (as_float32) bytes.append(reinterpret_cast<const char*>(&value), 4);
        if (!as_float32) bytes.append(reinterpret_cast<const char*>(&half), 2);
      }
    }
    return base64(bytes);
  }

  // As the client gets it.
  static boost::json::value payload_of(const ConsumerResult& result) {
    return parse_json(results_json({result}), "results")->at(result.consumer).at("payload");
  }

  tap::Geometry geometry_ = small_geometry();
  // "d", which reads resid_post of layer 2.
  const std::shared_ptr<const features::DictionarySet> set_ =
      named_set("d", random_dictionary({.width = geometry_.hidden,
                                        .num_features = 12,
                                        .read = {2, tap::Site::kResidPost},
                                        .write = {2, tap::Site::kResidPost}},
                                       5));
  const DictionaryLookup dictionaries_ = [this](std::string_view name) {
    return name == "d" ? set_ : nullptr;
  };
  std::shared_ptr<SortingLens> lens_ = std::make_shared<SortingLens>();
  std::shared_ptr<features::FeatureReader> features_;  // null: the host's
  std::mutex mutex_;
  std::vector<std::string> lines_;
  Inbound inbound_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

}  // namespace rudder::steer::capture
