#include "rudder/steer/capture/filesystem_consumer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <functional>
#include <optional>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/steer/capture/key_file.h"
#include "rudder/steer/capture/slug.h"
#include "rudder/steer/capture/writer_pool.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;
using Writers = std::vector<std::unique_ptr<Writer>>;

constexpr size_t kBlockBytes = 1 << 20;  // of a session, before it goes into a shard

class FilesystemOptions final : public ConsumerOptions {
 public:
  std::string tag;
  std::string request_id;  // empty: the request's own
  bool use_shards = false;
};

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// What every file says of the request: `"key":value,...`.
std::string about(const SessionInfo& info, const std::string& tag) {
  return fmt::format(R"("request_id":{},"choice":{},"tag":{},"prompt_len":{})",
                     json_string(info.request_id), info.choice, json_string(tag), info.prompt_len);
}

std::string request_slug(const SessionInfo& info, const FilesystemOptions& options) {
  std::string slug = options.request_id.empty() ? make_slug(info.request_id) : options.request_id;
  if (info.choice > 0) slug += fmt::format("-choice{}", info.choice);
  return slug;
}

std::string paths_json(std::vector<std::string> paths) {
  std::ranges::sort(paths);
  std::string out = R"({"paths":[)";
  for (const std::string& path : paths) {
    if (out.back() != '[') out += ',';
    append_json_string(out, path);
  }
  out += "]}";
  return out;
}

ConsumerResult to_result(std::vector<std::string> paths, const std::optional<Error>& error,
                         bool is_all_lost) {
  ConsumerResult result;
  if (error) {
    result.status = is_all_lost ? Status::kError : Status::kPartialError;
    result.error = error->to_string();
  }
  result.payload = paths_json(std::move(paths));
  return result;
}

class FilesSession final : public Session, public std::enable_shared_from_this<FilesSession> {
 public:
  FilesSession(SessionInfo info, const FilesystemOptions& options, std::shared_ptr<Store> store,
               Folder folder, Writers& writers)
      : about_(about(info, options.tag)),
        store_(std::move(store)),
        folder_(std::move(folder)),
        writers_(writers),
        rows_(std::move(info.rows)) {
    const size_t seed = std::hash<std::string>{}(folder_.path);
    std::vector<std::vector<size_t>> by_writer(writers_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      keys_.push_back({KeyFile(store_, rows_[i]), {}, {}});
      by_writer[(seed + i) % writers_.size()].push_back(i);
    }
    for (size_t i = 0; i < by_writer.size(); ++i) {
      if (!by_writer[i].empty()) parts_.push_back({writers_[i].get(), std::move(by_writer[i])});
    }
  }

  Result<void> take(RowBatch batch) override {
    const auto shared = std::make_shared<const RowBatch>(std::move(batch));
    for (const Part& part : parts_) {
      part.writer->post([self = shared_from_this(), shared, &part](Writer& writer) {
        self->append(writer, part, *shared);
      });
    }
    return {};
  }

  void finish(bool cancelled, SessionDone done) override {
    done_ = std::move(done);
    num_left_ = parts_.size();
    for (const Part& part : parts_) {
      part.writer->post([self = shared_from_this(), &part, cancelled](Writer& writer) {
        self->close(writer, part, cancelled);
      });
    }
  }

 private:
  struct Key {
    KeyFile file;
    std::optional<Error> error;
    std::vector<std::string> paths;
  };
  struct Part {  // the keys of one writer
    Writer* writer = nullptr;
    std::vector<size_t> keys;
  };

  void append(Writer& writer, const Part& part, const RowBatch& batch) {
    for (const size_t i : part.keys) {
      Key& key = keys_[i];
      for (const Record& record : batch.records) {
        if (key.error) break;
        const Result<void> done =
            key.file.append(writer, record.position, batch.row(record, rows_[i]));
        if (done) continue;
        key.error = done.error();
        key.file.discard(writer);
      }
    }
  }

  // In three jobs, so that the requests that end in one step write all they have before the first
  // waits for the disk: it then takes them together.
  void close(Writer& writer, const Part& part, bool cancelled) {
    for (const size_t i : part.keys) {
      Key& key = keys_[i];
      if (!cancelled && !key.error) {
        const Result<void> finished = key.file.finish(writer, about_);
        if (!finished) key.error = finished.error();
      }
      if (cancelled || key.error) key.file.discard(writer);
    }
    writer.post([self = shared_from_this(), &part](Writer& same) { self->publish(same, part); });
  }

  void publish(Writer& writer, const Part& part) {
    for (const size_t i : part.keys) {
      Key& key = keys_[i];
      Result<std::vector<std::string>> paths = key.file.publish(writer, folder_);
      if (paths) {
        key.paths = std::move(*paths);
      } else {
        key.error = paths.error();
      }
    }
    if (num_left_.fetch_sub(1) > 1) return;
    writer.post([self = shared_from_this()](Writer&) { self->report(); });
  }

  void report() {
    std::vector<std::string> paths;
    std::optional<Error> error;
    for (const Key& key : keys_) {
      paths.insert(paths.end(), key.paths.begin(), key.paths.end());
      if (key.error && !error) error = key.error;
    }
    if (store_->is_durable() && !paths.empty()) {
      const Result<void> synced = store_->sync(folder_);
      if (!synced && !error) error = synced.error();
    }
    const bool is_all_lost = paths.empty();
    if (is_all_lost) store_->remove_if_empty(folder_);
    done_(to_result(std::move(paths), error, is_all_lost));
  }

  const std::string about_;
  const std::shared_ptr<Store> store_;
  const Folder folder_;
  Writers& writers_;
  const std::vector<RowLayout> rows_;
  std::vector<Key> keys_;  // by row; each is one writer's
  std::vector<Part> parts_;
  SessionDone done_;
  std::atomic<size_t> num_left_{0};
};

class ShardSession final : public Session,
                           public ShardClient,
                           public std::enable_shared_from_this<ShardSession> {
 public:
  ShardSession(SessionInfo info, const FilesystemOptions& options, Writers& writers)
      : tag_(options.tag),
        slug_(request_slug(info, options)),
        about_(about(info, options.tag)),
        rows_(std::move(info.rows)),
        writer_(*writers[std::hash<std::string>{}(slug_) % writers.size()]),
        blocks_(rows_.size()),
        num_blocks_(rows_.size()) {}

  Result<void> take(RowBatch batch) override {
    writer_.post([self = shared_from_this(), batch = std::move(batch)](Writer& writer) {
      self->append(writer, batch);
    });
    return {};
  }

  void finish(bool cancelled, SessionDone done) override {
    writer_.post([self = shared_from_this(), cancelled, done = std::move(done)](Writer& writer) {
      if (!cancelled) self->flush(writer);
      self->done_ = done;
      self->report_if_done();
    });
  }

  const std::string& slug() const override { return slug_; }
  std::string description() const override {
    const bool after = !rows_.empty() && rows_[0].point.after;
    std::string residual;
    for (const RowLayout& layout : rows_) {
      if (residual.empty()) residual = residual_json(layout);
    }
    return fmt::format(R"({{{},"point":"{}"{}{}}})", about_, after ? "post" : "pre",
                       residual.empty() ? "" : ",", residual);
  }
  void on_published(const Result<std::string>& path) override {
    --num_open_shards_;
    if (path) {
      paths_.push_back(*path);
    } else if (!error_) {
      error_ = path.error();
    }
    report_if_done();
  }

 private:
  void append(Writer& writer, const RowBatch& batch) {
    for (const Record& record : batch.records) {
      for (size_t i = 0; i < rows_.size(); ++i) {
        const auto row = batch.row(record, rows_[i]);
        blocks_[i].positions.push_back(record.position);
        blocks_[i].rows.insert(blocks_[i].rows.end(), row.begin(), row.end());
        held_ += row.size();
      }
      if (held_ >= kBlockBytes) flush(writer);
    }
  }

  void flush(Writer& writer) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (blocks_[i].positions.empty()) continue;
      ShardBlock block = std::exchange(blocks_[i], {});
      const tap::Point point = rows_[i].point.point;
      block.key =
          fmt::format("{}.{}/{}", tap::site_name(point.site), point.layer, num_blocks_[i]++);
      block.dtype = rows_[i].dtype;
      block.width = rows_[i].width;
      if (writer.shards().add(tag_, shared_from_this(), std::move(block))) ++num_open_shards_;
    }
    held_ = 0;
  }

  void report_if_done() {
    if (!done_ || num_open_shards_ > 0) return;
    const bool is_all_lost = paths_.empty();
    std::exchange(done_, {})(to_result(std::move(paths_), error_, is_all_lost));
  }

  const std::string tag_;
  const std::string slug_;
  const std::string about_;
  const std::vector<RowLayout> rows_;
  Writer& writer_;

  // The writer's thread.
  std::vector<ShardBlock> blocks_;  // by row: not yet in a shard
  std::vector<int32_t> num_blocks_;
  size_t held_ = 0;  // bytes of blocks_
  int32_t num_open_shards_ = 0;
  std::vector<std::string> paths_;
  std::optional<Error> error_;
  SessionDone done_;
};

class FilesystemConsumer final : public Consumer {
 public:
  FilesystemConsumer(FilesystemSettings settings, std::shared_ptr<Store> store)
      : settings_(std::move(settings)), store_(std::move(store)) {
    const auto count = static_cast<size_t>(settings_.writer_threads);
    const size_t max_open =
        std::max<size_t>(1, static_cast<size_t>(settings_.max_open_files) / count);
    for (size_t i = 0; i < count; ++i) {
      writers_.push_back(
          std::make_unique<Writer>(store_, max_open, settings_.shards, static_cast<int>(i)));
    }
  }

  std::string_view name() const override { return "filesystem"; }

  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const json::object& fields, const AskedRows&, const std::string& path) const override {
    auto options = std::make_shared<FilesystemOptions>();
    options->tag = settings_.tag;
    options->use_shards = settings_.use_shards;
    for (const auto& [key, value] : fields) {
      const std::string at = fmt::format("{}.{}", path, std::string_view(key));
      if (key == "tag" || key == "request_id") {
        if (!value.is_string() || !is_slug(std::string_view(value.get_string()))) {
          return fail(ErrorCode::kInvalidArgument,
                      fmt::format("must be 1 to {} of A-Z a-z 0-9 . _ - and not begin with a dot",
                                  kMaxSlug),
                      at);
        }
        (key == "tag" ? options->tag : options->request_id) = std::string(value.get_string());
      } else if (key == "layout") {
        options->use_shards = value == "shards";
        if (!options->use_shards && value != "files") {
          return fail(ErrorCode::kInvalidArgument, "must be files or shards", at);
        }
      } else {
        return fail(ErrorCode::kInvalidArgument,
                    "unknown field: tag, request_id and layout are known", at);
      }
    }
    return options;
  }

  Result<std::shared_ptr<Session>> open(SessionInfo info) override {
    const auto* options = dynamic_cast<const FilesystemOptions*>(info.options.get());
    if (options->use_shards) {
      return std::make_shared<ShardSession>(std::move(info), *options, writers_);
    }
    RUDDER_TRY(Folder folder, store_->request_folder(options->tag, request_slug(info, *options),
                                                     settings_.on_collision));
    return std::make_shared<FilesSession>(std::move(info), *options, store_, std::move(folder),
                                          writers_);
  }

  void drain() override {
    for (const std::unique_ptr<Writer>& writer : writers_) {
      writer->post([](Writer& self) { self.shards().publish_all(); });
    }
  }

 private:
  const FilesystemSettings settings_;
  const std::shared_ptr<Store> store_;
  Writers writers_;  // last: their threads use the store
};

}  // namespace

Result<FilesystemSettings> FilesystemSettings::parse(ConsumerFlag& flag) {
  FilesystemSettings settings;
  settings.root = flag.text("root", "");
  if (settings.root.empty()) {
    return fail(ErrorCode::kInvalidArgument, "needs the option root=DIR", flag.where());
  }
  settings.tag = flag.text("tag", settings.tag);
  if (!is_slug(settings.tag)) {
    return fail(ErrorCode::kInvalidArgument, "tag is no plain name", flag.where());
  }
  const std::string layout = flag.text("layout", "files");
  settings.use_shards = layout == "shards";
  if (!settings.use_shards && layout != "files") {
    return fail(ErrorCode::kInvalidArgument, "layout must be files or shards", flag.where());
  }
  const std::string collision = flag.text("on_collision", "suffix");
  if (collision == "overwrite") {
    settings.on_collision = OnCollision::kOverwrite;
  } else if (collision == "error") {
    settings.on_collision = OnCollision::kError;
  } else if (collision != "suffix") {
    return fail(ErrorCode::kInvalidArgument, "on_collision must be overwrite, error or suffix",
                flag.where());
  }
  RUDDER_TRY(settings.fsync, flag.boolean("fsync", true));
  RUDDER_TRY(const int64_t threads, flag.integer("writer_threads", 4, 1, 64));
  settings.writer_threads = static_cast<int32_t>(threads);
  RUDDER_TRY(const int64_t files, flag.integer("max_open_files", 256, 1, 65536));
  settings.max_open_files = static_cast<int32_t>(files);
  RUDDER_TRY(settings.shards.max_bytes,
             flag.integer("shard_bytes", settings.shards.max_bytes, 1, int64_t{1} << 40));
  RUDDER_TRY(const int64_t age_ms, flag.integer("shard_age_ms", 1000, 1, 3'600'000));
  settings.shards.max_age_us = age_ms * 1000;
  RUDDER_TRY_VOID(flag.finish());
  return settings;
}

Result<std::shared_ptr<Consumer>> make_filesystem_consumer(const FilesystemSettings& settings) {
  RUDDER_TRY(std::shared_ptr<Store> store, Store::open(settings.root, settings.fsync));
  return std::make_shared<FilesystemConsumer>(settings, std::move(store));
}

}  // namespace rudder::steer::capture
