#include "rudder/steer/capture/response_consumer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>

#include "rudder/steer/capture/response_options.h"
#include "rudder/steer/capture/session_features.h"
#include "rudder/steer/capture/session_lens.h"
#include "rudder/steer/dot.h"
#include "rudder/step/sampling.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

// The points of one site, whose rows are told together. Layers of different width (neurons, heads)
// are told apart.
struct Pack {
  std::string key;  // "resid_post", or "mlp_act.3"
  int32_t width = 0;
  std::vector<size_t> points;  // of the session
  std::vector<int32_t> layers;
  std::string residual;                       // residual_json()
  tensor::DType dtype = tensor::DType::kF32;  // that is told
};

// The heads of a row that are told; none: the whole row is.
struct HeadParts {
  PartList heads;
  size_t bytes = 0;  // of one
};

// What the lens reads of a residual of several streams, as JSON; empty of one.
std::string stream_json(const RowLayout& layout) {
  if (layout.has_streams()) return R"("collapsed")";
  return layout.stream ? fmt::to_string(*layout.stream) : "";
}

class ResponseSession final : public Session {
 public:
  ResponseSession(SessionInfo info, std::shared_ptr<const ResponseOptions> options,
                  std::shared_ptr<AnswerBudget> budget, std::shared_ptr<tap::Lens> lens,
                  const ResponseContext& context)
      : info_(std::move(info)),
        options_(std::move(options)),
        budget_(std::move(budget)),
        lens_(options_->lens.top, info_.dtype, std::move(lens)),
        features_(options_->features, info_.dtype, context.features) {
    for (const RowLayout& layout : info_.rows) {
      const tap::CapturePoint& point = layout.point;
      const auto asked = std::ranges::find(options_->points, point);
      if (asked != options_->points.end()) {
        add_row(layout, static_cast<size_t>(asked - options_->points.begin()),
                context.geometry.heads);
      }
      if (point.point.site == tap::Site::kResidPost &&
          std::ranges::binary_search(options_->lens.layers, point.point.layer)) {
        const std::optional<int32_t> stream = options_->lens.stream;
        lens_.add_row(stream ? stream_of(layout, *stream) : layout);
      }
      const features::FeatureAsk& features = options_->features;
      if (!features.empty() && point.point == features.dictionary->read) features_.set_row(layout);
    }
    for (const RowLayout& layout : rows_) {
      keys_.push_back(
          fmt::format("{}.{}", tap::site_name(layout.point.point.site), layout.point.point.layer));
    }
    packs_ = make_packs();
    sums_.resize(info_.rows.size());
    reset_values();
  }
  ~ResponseSession() override { budget_->give_back(held_); }

  Result<void> take(RowBatch batch) override {
    const bool streams = info_.stream && info_.emit;
    const bool has_events = options_->rows || options_->norms || !options_->probes.empty() ||
                            !lens_.empty() || !features_.empty() || !info_.patterns.empty();
    if (!lens_.empty()) {
      RUDDER_TRY(lens_tokens_, lens_.take(batch));
    }
    if (!features_.empty()) {
      RUDDER_TRY(feature_values_, features_.take(batch));
    }
    if (options_->means && num_tokens_ == 0) RUDDER_TRY_VOID(reserve(means_bytes()));
    for (size_t i = 0; i < batch.records.size(); ++i) {
      const Record& record = batch.records[i];
      if (!streams) {
        RUDDER_TRY_VOID(reserve(token_bytes() + pattern_bytes(record.position)));
      }
      read(batch, record);
      append_lens(i);
      append_features(i);
      append_patterns(batch, record);
      if (!streams || !has_events) continue;
      info_.emit(record.position, std::move(values_));
      ++num_events_;
      reset_values();
    }
    return {};
  }

  void finish(bool cancelled, SessionDone done) override {
    ConsumerResult result;
    if (!cancelled) {
      if (info_.stream && info_.emit) {
        values_ = {};
        values_.num_events = num_events_;
      }
      values_.means = means();
      result.values = std::move(values_);
    }
    done(std::move(result));
  }

  SessionFeatures& features() { return features_; }
  SessionLens& lens() { return lens_; }

 private:
  // `asked`: its number among the points of `sites`.
  void add_row(const RowLayout& layout, size_t asked, const std::vector<tap::Heads>& layers) {
    whole_rows_.push_back(layout);
    RowLayout& told = rows_.emplace_back(layout);
    HeadParts& parts = parts_.emplace_back();
    if (options_->heads.empty() || options_->heads[asked].empty()) return;
    const tap::Heads& layer = layers[static_cast<size_t>(layout.point.point.layer)];
    parts.heads = options_->heads[asked];
    parts.bytes = static_cast<size_t>(layer.dim) * tensor::dtype_bytes(info_.dtype);
    told.width = PartRows::width(parts.heads, layer);
    told.bytes = parts.heads.size() * parts.bytes;
  }

  // What is told of a row: all of it, or its heads side by side. Until the next call.
  std::span<const std::byte> told_row(const RowBatch& batch, const Record& record, size_t point) {
    const std::span<const std::byte> whole = batch.row(record, whole_rows_[point]);
    const HeadParts& parts = parts_[point];
    if (parts.heads.empty()) return whole;
    told_.clear();
    for (const int32_t head : parts.heads) {
      const auto part = whole.subspan(static_cast<size_t>(head) * parts.bytes, parts.bytes);
      told_.insert(told_.end(), part.begin(), part.end());
    }
    return told_;
  }

  // The values of one token, and their text at the end.
  int64_t token_bytes() const {
    size_t bytes = sizeof(int32_t);
    const size_t numbers = (options_->norms ? 1 : 0) + options_->probes.size();
    for (const RowLayout& layout : rows_) {
      const size_t row =
          static_cast<size_t>(layout.width) * tensor::dtype_bytes(told_dtype(layout.dtype));
      bytes += (options_->rows ? row : 0) + numbers * sizeof(float);
    }
    bytes += lens_.rows().size() * static_cast<size_t>(options_->lens.top) * sizeof(tap::LensToken);
    bytes += options_->features.most() * sizeof(features::FeatureValue) *
             2;  // numbers of up to 10 digits
    return static_cast<int64_t>(bytes * 7 / 3);
  }

  // Of the patterns of the token at `position`, likewise.
  int64_t pattern_bytes(int32_t position) const {
    const size_t item = tensor::dtype_bytes(told_dtype(info_.dtype));
    size_t bytes = 0;
    for (const PatternAsk::Layer& layer : options_->patterns.layers) {
      const auto keys = static_cast<size_t>(std::min(position + 1, options_->patterns.keys));
      bytes += sizeof(int32_t) + layer.heads.size() * keys * item;
    }
    return static_cast<int64_t>(bytes * 7 / 3);
  }

  int64_t means_bytes() const {
    int64_t elements = 0;
    for (const RowLayout& layout : rows_) elements += layout.width;
    return elements * static_cast<int64_t>(sizeof(double) + 3 * sizeof(float));
  }

  Result<void> reserve(int64_t bytes) {
    if (!budget_->take(bytes)) {
      return fail(ErrorCode::kTooLarge,
                  "the answer's rows are more than this server's capture-max-response-bytes has "
                  "left: ask for fewer, or stream");
    }
    held_ += bytes;
    return {};
  }

  // Of what is captured in `dtype`; numbers of experts stay whole numbers.
  tensor::DType told_dtype(tensor::DType dtype) const {
    return options_->as_float32 && dtype != tensor::DType::kI16 ? tensor::DType::kF32 : dtype;
  }

  // Empty lists of what is asked for.
  void reset_values() {
    values_ = {};
    if (options_->rows) {
      for (const Pack& pack : packs_) {
        values_.rows.push_back({pack.key, pack.dtype, {}, pack.width, {}, pack.residual});
      }
    }
    if (options_->norms) values_.norms = empty_numbers();
    for (const RowLayout& layout : lens_.rows()) {
      values_.lens.push_back({layout.point.point.layer, {}, stream_json(layout)});
    }
    for (const Probe& probe : options_->probes) {
      values_.probes.push_back({probe.name, empty_numbers()});
    }
    for (const PatternAsk::Layer& layer : options_->patterns.layers) {
      values_.patterns.push_back({layer.layer, layer.heads, told_dtype(info_.dtype), {}, {}});
    }
    if (!features_.empty()) {
      values_.features =
          FeatureReading{options_->features.name, features_.row().point.point.layer, {}};
    }
  }

  std::vector<PointNumbers> empty_numbers() const {
    std::vector<PointNumbers> numbers;
    numbers.reserve(keys_.size());
    for (const std::string& key : keys_) numbers.push_back({key, {}});
    return numbers;
  }

  std::vector<Pack> make_packs() const {
    std::vector<Pack> packs;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const RowLayout& layout = rows_[i];
      std::string site(tap::site_name(layout.point.point.site));
      if (!same_widths(layout.point.point.site)) site = keys_[i];
      auto pack = std::ranges::find(packs, site, &Pack::key);
      if (pack == packs.end()) {
        packs.push_back({.key = site,
                         .width = layout.width,
                         .points = {},
                         .layers = {},
                         .residual = residual_json(layout),
                         .dtype = told_dtype(layout.dtype)});
        pack = std::prev(packs.end());
      }
      pack->points.push_back(i);
      pack->layers.push_back(layout.point.point.layer);
    }
    return packs;
  }

  bool same_widths(tap::Site site) const {
    int32_t width = -1;
    for (const RowLayout& layout : rows_) {
      if (layout.point.point.site != site) continue;
      if (width >= 0 && layout.width != width) return false;
      width = layout.width;
    }
    return true;
  }

  void read(const RowBatch& batch, const Record& record) {
    values_.positions.push_back(record.position);
    for (size_t i = 0; i < values_.rows.size(); ++i) {
      for (const size_t point : packs_[i].points) {
        append_told(values_.rows[i].data, told_row(batch, record, point), rows_[point].dtype);
      }
      std::ranges::copy(packs_[i].layers, std::back_inserter(values_.rows[i].layers));
    }
    ++num_tokens_;
    if (!options_->means && !options_->norms && options_->probes.empty()) return;
    for (size_t point = 0; point < rows_.size(); ++point) {
      row_.resize(static_cast<size_t>(rows_[point].width));
      decode_row(told_row(batch, record, point), rows_[point].dtype, row_);
      if (options_->means) {
        sums_[point].resize(row_.size());
        for (size_t i = 0; i < row_.size(); ++i) sums_[point][i] += double{row_[i]};
      }
      const double norm = std::sqrt(dot(row_, row_));
      if (options_->norms) values_.norms[point].values.push_back(static_cast<float>(norm));
      for (size_t i = 0; i < options_->probes.size(); ++i) {
        const Probe& probe = options_->probes[i];
        double value = dot(row_, probe.vectors[point]);
        if (options_->measure != Measure::kDot) value /= probe.norms[point];
        if (options_->measure == Measure::kCosine) value = norm == 0 ? 0 : value / norm;
        values_.probes[i].points[point].values.push_back(static_cast<float>(value));
      }
    }
  }

  // The lens of all rows of a batch at once: [records, layers, top].
  void append_lens(size_t record) {
    const auto top = static_cast<size_t>(options_->lens.top);
    for (size_t i = 0; i < lens_.rows().size(); ++i) {
      const size_t begin = (record * lens_.rows().size() + i) * top;
      const auto tokens = std::span(lens_tokens_).subspan(begin, top);
      values_.lens[i].tokens.emplace_back(tokens.begin(), tokens.end());
    }
  }

  void append_features(size_t record) {
    if (features_.empty()) return;
    values_.features->tokens.push_back(std::move(feature_values_[record]));
  }

  // The layers of the ask and of the session are the same.
  void append_patterns(const RowBatch& batch, const Record& record) {
    const size_t item_bytes = tensor::dtype_bytes(info_.dtype);
    for (size_t i = 0; i < values_.patterns.size(); ++i) {
      PatternReading& reading = values_.patterns[i];
      reading.keys.push_back(std::min(record.position + 1, options_->patterns.keys));
      for (const int32_t head : reading.heads) {
        const auto row = batch.pattern(record, info_.patterns[i], head, item_bytes);
        append_told(reading.data, row.first(static_cast<size_t>(reading.keys.back()) * item_bytes),
                    info_.dtype);
      }
    }
  }

  // A row of `dtype` in the dtype that is told.
  void append_told(std::vector<std::byte>& data, std::span<const std::byte> row,
                   tensor::DType dtype) {
    if (told_dtype(dtype) == dtype) {
      data.insert(data.end(), row.begin(), row.end());
      return;
    }
    row_.resize(row.size() / tensor::dtype_bytes(dtype));
    decode_row(row, dtype, row_);
    append_floats(data, row_);
  }

  static void append_floats(std::vector<std::byte>& data, std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    data.insert(data.end(), bytes.begin(), bytes.end());
  }

  // Empty when nobody asked.
  std::vector<ResultRows> means() {
    std::vector<ResultRows> means;
    if (!options_->means || num_tokens_ == 0) return means;
    for (const Pack& pack : packs_) {
      ResultRows& rows = means.emplace_back(
          ResultRows{pack.key, tensor::DType::kF32, pack.layers, pack.width, {}, pack.residual});
      row_.resize(static_cast<size_t>(pack.width));
      for (const size_t point : pack.points) {
        std::ranges::transform(sums_[point], row_.begin(), [&](double sum) {
          return static_cast<float>(sum / static_cast<double>(num_tokens_));
        });
        append_floats(rows.data, row_);
      }
    }
    return means;
  }

  const SessionInfo info_;
  const std::shared_ptr<const ResponseOptions> options_;
  const std::shared_ptr<AnswerBudget> budget_;
  std::vector<RowLayout> rows_;        // of the points that `sites` names, as they are told
  std::vector<RowLayout> whole_rows_;  // and as they are captured
  std::vector<HeadParts> parts_;       // of whole_rows_ that are told
  std::vector<std::byte> told_;        // scratch
  SessionLens lens_;
  std::vector<tap::LensToken> lens_tokens_;  // of the batch at hand
  SessionFeatures features_;
  std::vector<std::vector<features::FeatureValue>> feature_values_;  // of the batch at hand
  std::vector<std::string> keys_;                                    // of points: "resid_post.10"
  std::vector<Pack> packs_;
  CapturedValues values_;
  std::vector<std::vector<double>> sums_;  // by point: of all rows, for the means
  int64_t num_tokens_ = 0;
  int64_t num_events_ = 0;
  int64_t held_ = 0;        // of the budget
  std::vector<float> row_;  // scratch
};

class ResponseConsumer final : public Consumer {
 public:
  ResponseConsumer(ResponseContext context, std::shared_ptr<tap::Lens> lens,
                   std::shared_ptr<AnswerBudget> budget)
      : context_(std::move(context)), lens_(std::move(lens)), budget_(std::move(budget)) {}

  std::string_view name() const override { return "response"; }

  Result<std::vector<tap::CapturePoint>> option_points(const json::object& fields, bool after,
                                                       const std::string& path) const override {
    RUDDER_TRY(const LensAsk ask, parse_lens(fields, path, context_));
    std::vector<tap::CapturePoint> points;
    points.reserve(ask.layers.size());
    for (const int32_t layer : ask.layers) {
      points.push_back({{layer, tap::Site::kResidPost}, after});
    }
    RUDDER_TRY(const features::FeatureAsk features,
               parse_feature_ask(fields, path, context_.dictionaries, context_.features.get()));
    if (!features.empty()) points.push_back({features.dictionary->read, after});
    return points;
  }

  Result<std::vector<tap::CapturePattern>> option_patterns(const json::object& fields,
                                                           const std::string& path) const override {
    RUDDER_TRY(const PatternAsk ask, parse_patterns(fields, path, context_.geometry));
    return ask.captured();
  }

  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const json::object& fields, const AskedRows& rows, const std::string& path) const override {
    return parse_response_options(fields, rows, path, context_);
  }

  Result<std::shared_ptr<Session>> open(SessionInfo info) override {
    auto options = std::dynamic_pointer_cast<const ResponseOptions>(info.options);
    return std::make_shared<ResponseSession>(std::move(info), std::move(options), budget_, lens_,
                                             context_);
  }

  size_t records_ahead() const override {
    const size_t lens = lens_ == nullptr ? 0 : lens_->rows_together();
    return std::max(lens, context_.features->rows_together());
  }
  void read_ahead(std::span<const Upcoming> upcoming) override {
    std::vector<SessionFeatures::Part> features;
    std::vector<SessionLens::Part> lens[2];  // of streams, and of rows that are collapsed
    for (const auto& [session, batch] : upcoming) {
      auto& of = static_cast<ResponseSession&>(*session);
      if (!of.features().empty()) features.push_back({&of.features(), batch});
      if (!of.lens().empty()) lens[of.lens().collapses() ? 1 : 0].push_back({&of.lens(), batch});
    }
    SessionFeatures::read_ahead(features);
    for (const std::vector<SessionLens::Part>& parts : lens) SessionLens::read_ahead(parts);
  }

 private:
  const ResponseContext context_;
  const std::shared_ptr<tap::Lens> lens_;
  const std::shared_ptr<AnswerBudget> budget_;
};

}  // namespace

std::shared_ptr<Consumer> make_response_consumer(const tap::Geometry& geometry, VectorLookup lookup,
                                                 DictionaryLookup dictionaries,
                                                 std::shared_ptr<tap::Lens> lens,
                                                 std::shared_ptr<features::FeatureReader> features,
                                                 std::shared_ptr<AnswerBudget> budget) {
  return std::make_shared<ResponseConsumer>(ResponseContext{.geometry = geometry,
                                                            .lookup = std::move(lookup),
                                                            .dictionaries = std::move(dictionaries),
                                                            .has_lens = lens != nullptr,
                                                            .max_lens_top = step::kMaxLogprobs,
                                                            .features = std::move(features)},
                                            std::move(lens), std::move(budget));
}

}  // namespace rudder::steer::capture
