#include "rudder/steer/capture/response_consumer.h"

#include <fmt/format.h>

#include <atomic>
#include <boost/json.hpp>
#include <cmath>
#include <iterator>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/steer/capture/response_options.h"
#include "rudder/steer/capture/row_numbers.h"
#include "rudder/steer/dot.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

// Bytes that open answers may still take.
class Budget {
 public:
  explicit Budget(int64_t bytes) : left_(bytes) {}
  bool take(int64_t bytes) {
    if (left_.fetch_sub(bytes) >= bytes) return true;
    left_ += bytes;
    return false;
  }
  void give_back(int64_t bytes) { left_ += bytes; }

 private:
  std::atomic<int64_t> left_;
};

// Rows of one site, in the packed form of steering vectors. Layers of different width (neurons)
// have a pack each.
struct Pack {
  std::string key;  // "resid_post", or "mlp_act.3"
  int32_t width = 0;
  std::vector<size_t> points;  // of the session
  std::vector<std::byte> data;
};

// What was read of some tokens, by position and point.
struct Values {
  std::vector<int32_t> positions;
  std::vector<Pack> packs;
  std::vector<std::vector<float>> norms;                // [point][token]
  std::vector<std::vector<std::vector<float>>> probes;  // [probe][point][token]
};

class ResponseSession final : public Session {
 public:
  ResponseSession(SessionInfo info, std::shared_ptr<const ResponseOptions> options,
                  std::shared_ptr<Budget> budget)
      : info_(std::move(info)), options_(std::move(options)), budget_(std::move(budget)) {
    for (const RowLayout& layout : info_.rows) {
      keys_.push_back(
          fmt::format("{}.{}", tap::site_name(layout.point.point.site), layout.point.point.layer));
    }
    sums_.resize(info_.rows.size());
    reset_values();
  }
  ~ResponseSession() override { budget_->give_back(held_); }

  Result<void> take(RowBatch batch) override {
    const bool streams = info_.stream && info_.emit;
    const bool has_events = options_->rows || options_->norms || !options_->probes.empty();
    if (options_->means && num_tokens_ == 0) RUDDER_TRY_VOID(reserve(means_bytes()));
    for (const Record& record : batch.records) {
      if (!streams) RUDDER_TRY_VOID(reserve(token_bytes()));
      read(batch, record);
      if (!streams || !has_events) continue;
      info_.emit(record.position, to_json(true));
      ++num_events_;
      reset_values();
    }
    return {};
  }

  void finish(bool cancelled, SessionDone done) override {
    ConsumerResult result;
    if (!cancelled && info_.stream && info_.emit) {
      result.payload = fmt::format(R"({{"events":{}}})", num_events_);
      result.means = means();
    } else if (!cancelled) {
      result.payload = to_json(false);
      result.means = means();
    }
    done(std::move(result));
  }

 private:
  // The values of one token, and their text at the end.
  int64_t token_bytes() const {
    size_t bytes = sizeof(int32_t);
    const size_t numbers = (options_->norms ? 1 : 0) + options_->probes.size();
    for (const RowLayout& layout : info_.rows) {
      const size_t row =
          options_->as_float32 ? static_cast<size_t>(layout.width) * sizeof(float) : layout.bytes;
      bytes += (options_->rows ? row : 0) + numbers * sizeof(float);
    }
    return static_cast<int64_t>(bytes * 7 / 3);
  }

  int64_t means_bytes() const {
    int64_t elements = 0;
    for (const RowLayout& layout : info_.rows) elements += layout.width;
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

  void reset_values() {
    values_ = {};
    values_.norms.resize(options_->norms ? info_.rows.size() : 0);
    values_.probes.assign(options_->probes.size(),
                          std::vector<std::vector<float>>(info_.rows.size()));
    if (options_->rows) values_.packs = make_packs();
  }

  std::vector<Pack> make_packs() const {
    std::vector<Pack> packs;
    for (size_t i = 0; i < info_.rows.size(); ++i) {
      const RowLayout& layout = info_.rows[i];
      std::string site(tap::site_name(layout.point.point.site));
      if (layout.point.point.site == tap::Site::kMlpAct && !same_widths()) site = keys_[i];
      auto pack = std::ranges::find(packs, site, &Pack::key);
      if (pack == packs.end()) {
        packs.push_back({.key = site, .width = layout.width, .points = {}, .data = {}});
        pack = std::prev(packs.end());
      }
      pack->points.push_back(i);
    }
    return packs;
  }

  bool same_widths() const {
    int32_t width = -1;
    for (const RowLayout& layout : info_.rows) {
      if (layout.point.point.site != tap::Site::kMlpAct) continue;
      if (width >= 0 && layout.width != width) return false;
      width = layout.width;
    }
    return true;
  }

  void read(const RowBatch& batch, const Record& record) {
    values_.positions.push_back(record.position);
    for (Pack& pack : values_.packs) {
      for (const size_t point : pack.points) append_row(pack, batch.row(record, info_.rows[point]));
    }
    ++num_tokens_;
    if (!options_->means && !options_->norms && options_->probes.empty()) return;
    for (size_t point = 0; point < info_.rows.size(); ++point) {
      row_.resize(static_cast<size_t>(info_.rows[point].width));
      decode_row(batch.row(record, info_.rows[point]), info_.dtype, row_);
      if (options_->means) {
        sums_[point].resize(row_.size());
        for (size_t i = 0; i < row_.size(); ++i) sums_[point][i] += double{row_[i]};
      }
      const double norm = std::sqrt(dot(row_, row_));
      if (options_->norms) values_.norms[point].push_back(static_cast<float>(norm));
      for (size_t i = 0; i < options_->probes.size(); ++i) {
        const Probe& probe = options_->probes[i];
        double value = dot(row_, probe.vectors[point]);
        if (options_->measure != Measure::kDot) value /= probe.norms[point];
        if (options_->measure == Measure::kCosine) value = norm == 0 ? 0 : value / norm;
        values_.probes[i][point].push_back(static_cast<float>(value));
      }
    }
  }

  void append_row(Pack& pack, std::span<const std::byte> row) {
    if (!options_->as_float32 || info_.dtype == tensor::DType::kF32) {
      pack.data.insert(pack.data.end(), row.begin(), row.end());
      return;
    }
    row_.resize(static_cast<size_t>(pack.width));
    decode_row(row, info_.dtype, row_);
    const auto bytes = std::as_bytes(std::span(row_));
    pack.data.insert(pack.data.end(), bytes.begin(), bytes.end());
  }

  // {"positions": [...], "rows": {...}, "norms": {...}, "probes": {...}}, and the means are added
  // where the answer is written; of one token without the
  // lists: {"position": ..., "norms": {"resid_post.10": ...}}.
  std::string to_json(bool one_token) const {
    std::string out = one_token
                          ? fmt::format(R"({{"position":{})", values_.positions[0])
                          : fmt::format(R"({{"positions":[{}])", fmt::join(values_.positions, ","));
    if (options_->rows) {
      out += R"(,"rows":{)";
      for (const Pack& pack : values_.packs) {
        append_pack(out, pack, options_->as_float32 ? tensor::DType::kF32 : info_.dtype,
                    values_.positions.size());
      }
      out += '}';
    }
    if (options_->norms) {
      out += R"(,"norms":)";
      append_points(out, values_.norms, one_token);
    }
    if (!options_->probes.empty()) {
      out += R"(,"probes":{)";
      for (size_t i = 0; i < options_->probes.size(); ++i) {
        if (i > 0) out += ',';
        append_json_string(out, options_->probes[i].name);
        out += ':';
        append_points(out, values_.probes[i], one_token);
      }
      out += '}';
    }
    out += '}';
    return out;
  }

  // Empty when nobody asked.
  std::vector<ResultRows> means() const {
    std::vector<ResultRows> means;
    if (!options_->means || num_tokens_ == 0) return means;
    for (const Pack& pack : make_packs()) {
      ResultRows& rows = means.emplace_back();
      rows.key = pack.key;
      rows.width = pack.width;
      for (const size_t point : pack.points) {
        rows.layers.push_back(info_.rows[point].point.point.layer);
        for (const double sum : sums_[point]) {
          rows.values.push_back(static_cast<float>(sum / static_cast<double>(num_tokens_)));
        }
      }
    }
    return means;
  }

  void append_pack(std::string& out, const Pack& pack, tensor::DType dtype,
                   size_t num_tokens) const {
    std::vector<int32_t> layers;
    for (size_t token = 0; token < num_tokens; ++token) {
      for (const size_t point : pack.points) {
        layers.push_back(info_.rows[point].point.point.layer);
      }
    }
    append_packed_rows(out, pack.key, dtype_spelling(dtype), pack.width, layers, pack.data);
  }

  void append_points(std::string& out, const std::vector<std::vector<float>>& by_point,
                     bool one_token) const {
    out += '{';
    for (size_t point = 0; point < by_point.size(); ++point) {
      if (point > 0) out += ',';
      fmt::format_to(std::back_inserter(out), R"("{}":)", keys_[point]);
      if (!one_token) out += '[';
      for (size_t i = 0; i < by_point[point].size(); ++i) {
        if (i > 0) out += ',';
        append_number(out, by_point[point][i]);
      }
      if (!one_token) out += ']';
    }
    out += '}';
  }

  const SessionInfo info_;
  const std::shared_ptr<const ResponseOptions> options_;
  const std::shared_ptr<Budget> budget_;
  std::vector<std::string> keys_;  // of points: "resid_post.10"
  Values values_;
  std::vector<std::vector<double>> sums_;  // by point: of all rows, for the means
  int64_t num_tokens_ = 0;
  int64_t num_events_ = 0;
  int64_t held_ = 0;        // of the budget
  std::vector<float> row_;  // scratch
};

class ResponseConsumer final : public Consumer {
 public:
  ResponseConsumer(const tap::Geometry& geometry, VectorLookup lookup, int64_t max_bytes)
      : geometry_(geometry),
        lookup_(std::move(lookup)),
        budget_(std::make_shared<Budget>(max_bytes)) {}

  std::string_view name() const override { return "response"; }

  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const json::object& fields, const std::vector<tap::CapturePoint>& points,
      const std::string& path) const override {
    return parse_response_options(fields, points, path, geometry_, lookup_);
  }

  Result<std::shared_ptr<Session>> open(SessionInfo info) override {
    auto options = std::dynamic_pointer_cast<const ResponseOptions>(info.options);
    return std::make_shared<ResponseSession>(std::move(info), std::move(options), budget_);
  }

 private:
  const tap::Geometry geometry_;
  const VectorLookup lookup_;
  const std::shared_ptr<Budget> budget_;
};

}  // namespace

std::shared_ptr<Consumer> make_response_consumer(const tap::Geometry& geometry, VectorLookup lookup,
                                                 int64_t max_bytes) {
  return std::make_shared<ResponseConsumer>(geometry, std::move(lookup), max_bytes);
}

}  // namespace rudder::steer::capture
