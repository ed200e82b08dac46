#include "rudder/steer/capture/routed_experts_consumer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "rudder/steer/capture/base64.h"
#include "rudder/steer/invalid_field.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

// The head of an npy file (version 1.0) of int16 in C order: its length is a multiple of 64.
std::string npy_head(size_t tokens, size_t layers, size_t chosen) {
  constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
  std::string dict =
      fmt::format("{{'descr': '<i2', 'fortran_order': False, 'shape': ({}, {}, {}), }}", tokens,
                  layers, chosen);
  const size_t bare = kMagic.size() + sizeof(uint16_t) + dict.size() + 1;
  dict.append((bare + 63) / 64 * 64 - bare, ' ');
  dict += '\n';
  std::string head(kMagic);
  head += static_cast<char>(dict.size() & 0xff);
  head += static_cast<char>(dict.size() >> 8);
  return head + dict;
}

int32_t most_chosen(const tap::Geometry& geometry) {
  int32_t most = 0;
  for (const tap::Routing& routing : geometry.routing) most = std::max(most, routing.chosen);
  return most;
}

class RoutedExpertsSession final : public Session {
 public:
  RoutedExpertsSession(SessionInfo info, const tap::Geometry& geometry,
                       std::shared_ptr<AnswerBudget> budget)
      : info_(std::move(info)),
        layers_(static_cast<size_t>(geometry.num_layers)),
        chosen_(static_cast<size_t>(most_chosen(geometry))),
        budget_(std::move(budget)) {}
  ~RoutedExpertsSession() override { budget_->give_back(held_); }

  Result<void> take(RowBatch batch) override {
    const size_t of_token = layers_ * chosen_;
    const auto bytes =
        static_cast<int64_t>(batch.records.size() * of_token * sizeof(int16_t) * 7 / 3);
    if (!budget_->take(bytes)) {
      return fail(ErrorCode::kTooLarge,
                  "the answer's routed experts are more than this server's "
                  "capture-max-response-bytes has left: ask for fewer tokens");
    }
    held_ += bytes;
    for (const Record& record : batch.records) {
      const size_t begin = experts_.size();
      experts_.resize(begin + of_token, -1);
      for (const RowLayout& layout : info_.rows) {
        const auto row = batch.row(record, layout);
        const auto layer = static_cast<size_t>(layout.point.point.layer);
        std::memcpy(experts_.data() + begin + layer * chosen_, row.data(), row.size());
      }
    }
    return {};
  }

  void finish(bool cancelled, SessionDone done) override {
    ConsumerResult result;
    if (!cancelled) {
      std::string file = npy_head(experts_.size() / (layers_ * chosen_), layers_, chosen_);
      file.append(reinterpret_cast<const char*>(experts_.data()),
                  experts_.size() * sizeof(int16_t));
      result.payload += '"';
      append_base64(result.payload, std::as_bytes(std::span(file)));
      result.payload += '"';
    }
    done(std::move(result));
  }

 private:
  const SessionInfo info_;
  const size_t layers_;
  const size_t chosen_;
  const std::shared_ptr<AnswerBudget> budget_;
  std::vector<int16_t> experts_;  // [tokens, layers, chosen]
  int64_t held_ = 0;              // of the budget
};

class RoutedExpertsConsumer final : public Consumer {
 public:
  RoutedExpertsConsumer(const tap::Geometry& geometry, std::shared_ptr<AnswerBudget> budget)
      : geometry_(geometry), budget_(std::move(budget)) {}

  std::string_view name() const override { return kRoutedExpertsConsumer; }

  Result<std::vector<tap::CapturePoint>> option_points(const json::object& /*fields*/,
                                                       bool /*after*/,
                                                       const std::string& path) const override {
    std::vector<tap::CapturePoint> points;
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      if (!geometry_.has_experts(layer)) continue;
      const tap::Point point = {layer, tap::Site::kRoutedExperts};
      const Result<void> checked = geometry_.check(point);
      if (!checked) return invalid_field(checked.error().message, path);
      points.push_back({point, false});
    }
    if (points.empty()) {
      return invalid_field("no layer of this model is a mixture of experts", path);
    }
    return points;
  }

  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const json::object& fields, const AskedRows& rows, const std::string& path) const override {
    if (!rows.points.empty()) {
      return invalid_field("it captures routed_experts of all layers, and no other site",
                           path + ".sites");
    }
    if (fields.empty()) return std::make_shared<const ConsumerOptions>();
    return invalid_field("unknown field: positions is known",
                         fmt::format("{}.{}", path, std::string_view(fields.begin()->key())));
  }

  Result<std::shared_ptr<Session>> open(SessionInfo info) override {
    return std::make_shared<RoutedExpertsSession>(std::move(info), geometry_, budget_);
  }

 private:
  const tap::Geometry geometry_;
  const std::shared_ptr<AnswerBudget> budget_;
};

}  // namespace

std::shared_ptr<Consumer> make_routed_experts_consumer(const tap::Geometry& geometry,
                                                       std::shared_ptr<AnswerBudget> budget) {
  return std::make_shared<RoutedExpertsConsumer>(geometry, std::move(budget));
}

}  // namespace rudder::steer::capture
