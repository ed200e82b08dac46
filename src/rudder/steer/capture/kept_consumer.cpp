#include "rudder/steer/capture/kept_consumer.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <span>
#include <utility>

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

class KeptSession final : public Session {
 public:
  KeptSession(SessionInfo info, std::shared_ptr<KeptRows> rows)
      : info_(std::move(info)), rows_(std::move(rows)) {
    run_.prompt_len = info_.prompt_len;
    for (const RowLayout& layout : info_.rows) {
      run_.points.push_back(layout.point);
      run_.widths.push_back(layout.width);
      num_floats_ += static_cast<size_t>(layout.width);
    }
  }
  ~KeptSession() override { rows_->give_back(reserved_); }

  Result<void> take(RowBatch batch) override {
    for (const Record& record : batch.records) {
      const auto bytes = static_cast<int64_t>(num_floats_ * sizeof(float));
      if (!rows_->reserve(bytes)) {
        return fail(
            ErrorCode::kTooLarge,
            fmt::format("the rows are more than the {} bytes that are kept", rows_->max_bytes()));
      }
      reserved_ += bytes;
      auto floats = std::make_shared<float[]>(num_floats_);
      size_t begin = 0;
      for (const RowLayout& layout : info_.rows) {
        const auto width = static_cast<size_t>(layout.width);
        decode_row(batch.row(record, layout), layout.dtype, std::span(floats.get() + begin, width));
        begin += width;
      }
      run_.positions.push_back(record.position);
      run_.records.push_back(std::move(floats));
    }
    return {};
  }

  void finish(bool cancelled, SessionDone done) override {
    ConsumerResult result;
    if (!cancelled) {
      result.payload = json::serialize(json::object{{"request", info_.request_id},
                                                    {"choice", info_.choice},
                                                    {"tokens", run_.positions.size()}});
      reserved_ = 0;  // it is the kept run's now
      rows_->keep(info_.tenant, info_.request_id, info_.choice, std::move(run_));
    }
    done(std::move(result));
  }

 private:
  const SessionInfo info_;
  const std::shared_ptr<KeptRows> rows_;
  KeptRun run_;
  size_t num_floats_ = 0;  // of a record
  int64_t reserved_ = 0;   // bytes
};

class KeptConsumer final : public Consumer {
 public:
  explicit KeptConsumer(std::shared_ptr<KeptRows> rows) : rows_(std::move(rows)) {}

  std::string_view name() const override { return "kept"; }

  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const json::object& fields, const AskedRows&, const std::string& path) const override {
    if (fields.empty()) return std::make_shared<const ConsumerOptions>();
    return fail(ErrorCode::kInvalidArgument,
                "unknown field: sites, positions, point and stream are known",
                fmt::format("{}.{}", path, std::string_view(fields.begin()->key())));
  }

  Result<std::shared_ptr<Session>> open(SessionInfo info) override {
    return std::make_shared<KeptSession>(std::move(info), rows_);
  }

 private:
  const std::shared_ptr<KeptRows> rows_;
};

}  // namespace

std::shared_ptr<Consumer> make_kept_consumer(std::shared_ptr<KeptRows> rows) {
  return std::make_shared<KeptConsumer>(std::move(rows));
}

}  // namespace rudder::steer::capture
