#include "rudder/steer/capture/logging_consumer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/steer/capture/row_numbers.h"
#include "rudder/steer/capture/slug.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;
using Log = std::function<void(std::string_view)>;

class LoggingOptions final : public ConsumerOptions {
 public:
  bool each_row = false;
};

// Of all rows of a point.
struct Summary {
  int64_t num_rows = 0;
  int64_t num_bad = 0;
  double norm_sum = 0;
  double norm_min = 0;
  double norm_max = 0;
};

class LoggingSession final : public Session {
 public:
  LoggingSession(SessionInfo info, Log log)
      : info_(std::move(info)),
        name_(make_slug(info_.request_id)),
        log_(std::move(log)),
        summaries_(info_.rows.size()) {}

  Result<void> take(RowBatch batch) override {
    const auto* options = dynamic_cast<const LoggingOptions*>(info_.options.get());
    for (const Record& record : batch.records) {
      for (size_t i = 0; i < info_.rows.size(); ++i) {
        const RowLayout& layout = info_.rows[i];
        row_.resize(static_cast<size_t>(layout.width));
        decode_row(batch.row(record, layout), layout.dtype, row_);
        const RowNumbers numbers = describe_row(row_);
        add(summaries_[i], numbers);
        if (options == nullptr || !options->each_row) continue;
        log_(fmt::format(
            "capture request={} choice={} position={} {}.{} norm={:.6g} mean={:.6g} min={:.6g} "
            "max={:.6g} nonfinite={}",
            name_, info_.choice, record.position, tap::site_name(layout.point.point.site),
            layout.point.point.layer, numbers.norm, numbers.mean, numbers.min, numbers.max,
            numbers.num_bad));
      }
    }
    return {};
  }

  void finish(bool cancelled, SessionDone done) override {
    int64_t num_rows = 0;
    int64_t num_bad = 0;
    for (size_t i = 0; i < summaries_.size(); ++i) {
      const Summary& summary = summaries_[i];
      num_rows += summary.num_rows;
      num_bad += summary.num_bad;
      if (cancelled || summary.num_rows == 0) continue;
      const tap::Point point = info_.rows[i].point.point;
      log_(fmt::format(
          "capture request={} choice={} {}.{} rows={} norm mean={:.6g} min={:.6g} max={:.6g} "
          "nonfinite={}",
          name_, info_.choice, tap::site_name(point.site), point.layer, summary.num_rows,
          summary.norm_sum / static_cast<double>(summary.num_rows), summary.norm_min,
          summary.norm_max, summary.num_bad));
    }
    done({.consumer = {},
          .status = Status::kOk,
          .error = {},
          .payload = fmt::format(R"({{"rows":{},"nonfinite":{}}})", num_rows, num_bad)});
  }

 private:
  static void add(Summary& summary, const RowNumbers& numbers) {
    const bool is_first = summary.num_rows++ == 0;
    summary.num_bad += numbers.num_bad;
    summary.norm_sum += numbers.norm;
    summary.norm_min = is_first ? numbers.norm : std::min(summary.norm_min, numbers.norm);
    summary.norm_max = std::max(summary.norm_max, numbers.norm);
  }

  const SessionInfo info_;
  const std::string name_;  // of the request: a client may have chosen it
  const Log log_;
  std::vector<Summary> summaries_;  // by point
  std::vector<float> row_;          // scratch
};

class LoggingConsumer final : public Consumer {
 public:
  explicit LoggingConsumer(Log log) : log_(std::move(log)) {}

  std::string_view name() const override { return "logging"; }

  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const json::object& fields, const AskedRows&, const std::string& path) const override {
    auto options = std::make_shared<LoggingOptions>();
    for (const auto& [key, value] : fields) {
      const std::string at = fmt::format("{}.{}", path, std::string_view(key));
      if (key != "lines") {
        return fail(ErrorCode::kInvalidArgument, "unknown field: lines is known", at);
      }
      options->each_row = value == "rows";
      if (!options->each_row && value != "summary") {
        return fail(ErrorCode::kInvalidArgument, "must be summary or rows", at);
      }
    }
    return options;
  }

  Result<std::shared_ptr<Session>> open(SessionInfo info) override {
    return std::make_shared<LoggingSession>(std::move(info), log_);
  }

 private:
  const Log log_;
};

}  // namespace

std::shared_ptr<Consumer> make_logging_consumer(std::function<void(std::string_view)> log) {
  if (!log) log = [](std::string_view line) { log_info("{}", line); };
  return std::make_shared<LoggingConsumer>(std::move(log));
}

}  // namespace rudder::steer::capture
