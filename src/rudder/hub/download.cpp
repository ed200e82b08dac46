#include "rudder/hub/download.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/log.h"
#include "rudder/hub/digest.h"
#include "rudder/hub/hub_client.h"
#include "rudder/hub/partial_file.h"

namespace rudder::hub {
namespace {

constexpr int kMaxRounds = 2;  // of a file whose bytes have another hash than they should
constexpr int64_t kMaxPatienceOfRangeUs = 300'000'000;
constexpr auto kTick = std::chrono::milliseconds(100);
constexpr int kTicksPerSave = 10;

// What is known of a server's ranges for a file.
enum class Ranged : uint8_t { kUnknown, kYes, kNo };

struct FileWork {
  BlobDownload blob;
  std::unique_ptr<PartialFile> partial;
  Ranged ranged = Ranged::kUnknown;
  std::vector<bool> is_taken;  // of each range: a connection is at it
  int rounds = 1;
  bool is_done = false;  // checked and under its name, or being checked
};

struct Piece {
  FileWork* work = nullptr;
  size_t range = 0;
};

// A range that failed in a row without a byte.
struct Failure {
  Error error;
  bool passes = false;
  std::optional<int64_t> wait_us;
};

class Downloader {
 public:
  Downloader(const HubSettings& hub, std::string repository, const DownloadSettings& settings)
      : hub_(hub), repository_(std::move(repository)), settings_(settings) {}

  Result<void> open_files(std::vector<BlobDownload> blobs) {
    for (BlobDownload& blob : blobs) {
      auto work = std::make_unique<FileWork>();
      RUDDER_TRY(work->partial,
                 PartialFile::open(blob.blob_path, blob.file.size, settings_.range_bytes));
      work->blob = std::move(blob);
      work->is_taken.resize(work->partial->ranges().all().size());
      total_ += work->blob.file.size;
      files_.push_back(std::move(work));
    }
    return {};
  }

  Result<void> run(const ProgressFn& progress) {
    size_t num_ranges = 1;
    for (const auto& file : files_) num_ranges += file->partial->ranges().all().size();
    const size_t num_threads = std::min(num_ranges, static_cast<size_t>(settings_.connections));
    std::vector<std::thread> threads;
    threads.reserve(num_threads);
    Result<void> started = contain([&] {
      while (threads.size() < num_threads) threads.emplace_back([this] { work(); });
    });
    if (!started) {
      log_warn("the hub is asked over {} connections in place of {}: {}", threads.size(),
               num_threads, started.error().message);
      if (threads.empty()) return started;
    }
    const Result<void> watched = contain([&] { watch(progress, threads.size()); });
    if (!watched) {
      const std::lock_guard lock(mutex_);
      fail_locked(watched.error());
    }
    for (std::thread& thread : threads) thread.join();
    save_ranges();
    if (failure_) return tl::unexpected<Error>(*failure_);
    if (progress) progress(total_, total_);
    return {};
  }

 private:
  // Tells of the progress and writes down what came, until no thread works.
  void watch(const ProgressFn& progress, size_t num_threads) {
    std::unique_lock lock(mutex_);
    for (int tick = 0; ended_ < num_threads; ++tick) {
      changed_.wait_for(lock, kTick);
      int64_t done = 0;
      for (const auto& file : files_) done += file->partial->ranges().bytes_done();
      if (tick % kTicksPerSave == kTicksPerSave - 1) save_ranges_locked();
      lock.unlock();
      if (progress && done < total_) progress(done, total_);
      lock.lock();
    }
  }

  void save_ranges() {
    const std::lock_guard lock(mutex_);
    save_ranges_locked();
  }

  void save_ranges_locked() {
    for (const auto& file : files_) {
      if (file->is_done) continue;
      const Result<void> saved = file->partial->save_ranges();
      if (!saved) fail_locked(saved.error());
    }
  }

  void fail_locked(Error error) {
    if (!failure_) failure_ = std::move(error);
    stopped_ = true;
    changed_.notify_all();
  }

  void work() {
    const Result<void> worked = contain([this] { fetch_pieces(); });
    const std::lock_guard lock(mutex_);
    if (!worked) fail_locked(worked.error());
    ++ended_;
    changed_.notify_all();
  }

  void fetch_pieces() {
    Result<std::unique_ptr<HttpClient>> http = HttpClient::create(hub_);
    std::unique_lock lock(mutex_);
    if (!http) return fail_locked(http.error());
    while (std::optional<Piece> piece = take_locked(lock)) {
      lock.unlock();
      fetch(**http, *piece);
      lock.lock();
      piece->work->is_taken[piece->range] = false;
      changed_.notify_all();
      if (!stopped_ && is_fetched(*piece->work)) finish_locked(lock, *piece->work);
    }
  }

  // The next range to fetch; waits while all that is left is somebody else's. nullopt: no more.
  std::optional<Piece> take_locked(std::unique_lock<std::mutex>& lock) {
    while (!stopped_) {
      bool all_done = true;
      bool has_changed = false;
      for (const auto& file : files_) {
        if (file->is_done) continue;
        all_done = false;
        if (is_fetched(*file)) {  // empty, or an earlier process came so far
          finish_locked(lock, *file);
          has_changed = true;
          break;
        }
        if (std::optional<Piece> piece = take_of(*file)) return piece;
      }
      if (all_done) break;
      if (!has_changed) changed_.wait(lock);
    }
    return std::nullopt;
  }

  static bool is_asked_for(const FileWork& file) {
    return std::find(file.is_taken.begin(), file.is_taken.end(), true) != file.is_taken.end();
  }

  // Every byte is there, and no connection is at it.
  static bool is_fetched(const FileWork& file) {
    return file.partial->ranges().is_complete() && !is_asked_for(file);
  }

  static std::optional<Piece> take_of(FileWork& file) {
    const auto& ranges = file.partial->ranges().all();
    // The first answer tells whether the server has ranges at all.
    if (file.ranged != Ranged::kYes && is_asked_for(file)) return std::nullopt;
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (file.is_taken[i] || ranges[i].is_complete()) continue;
      file.is_taken[i] = true;
      return Piece{.work = &file, .range = i};
    }
    return std::nullopt;
  }

  void fetch(HttpClient& http, Piece& piece) {
    int failures = 0;
    while (!stopped_) {
      const int64_t before = next_of(piece);
      const std::optional<Failure> failed = fetch_once(http, piece);
      if (!failed) return;
      failures = next_of(piece) > before ? 1 : failures + 1;
      const int64_t wait_us = failed->wait_us.value_or(backoff_us(failures));
      if (!failed->passes || failures >= kMaxTries || wait_us > kMaxPatienceOfRangeUs) {
        const std::lock_guard lock(mutex_);
        return fail_locked(failed->error);
      }
      log_debug("{}: {}; trying again in {:.1f} s", piece.work->blob.file.path,
                failed->error.message, static_cast<double>(wait_us) * 1e-6);
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::microseconds(wait_us),
                        [this] { return stopped_.load(); });
    }
  }

  int64_t next_of(const Piece& piece) {
    const std::lock_guard lock(mutex_);
    return piece.work->partial->ranges().all()[piece.range].next();
  }

  tl::unexpected<Error> wrong_size(const FileWork& file, int64_t sent) const {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("the hub lists {} bytes for {} and sends {}", file.blob.file.size,
                            file.blob.file.path, sent),
                "hub");
  }

  // What the head says must fit the listing; `skipped` bytes of the body are in front of the range.
  Result<void> check_head(const HttpHead& head, Piece& piece, int64_t first, int64_t& skipped) {
    FileWork& file = *piece.work;
    const std::lock_guard lock(mutex_);
    if (head.status == 206) {
      const auto sent = parse_content_range(head.field("content-range"));
      if (!sent || sent->first != first) {
        return fail(ErrorCode::kCorruptFile, "the hub sends other bytes than it is asked for",
                    "hub");
      }
      if (sent->total && *sent->total != file.blob.file.size) return wrong_size(file, *sent->total);
      file.ranged = Ranged::kYes;
      skipped = 0;
      changed_.notify_all();
      return {};
    }
    const std::string_view length = head.field("content-length");
    int64_t bytes = 0;
    const bool is_said =
        std::from_chars(length.data(), length.data() + length.size(), bytes).ec == std::errc();
    if (is_said && bytes != file.blob.file.size) return wrong_size(file, bytes);
    skipped = first;
    if (file.ranged == Ranged::kUnknown && piece.range == 0) {
      file.ranged = Ranged::kNo;
      file.partial->ranges().join();
      file.is_taken.assign(1, true);
    }
    return {};
  }

  // One request for what is left of a range. nullopt: the range is complete, or all is stopped.
  std::optional<Failure> fetch_once(HttpClient& http, Piece& piece) {
    FileWork& file = *piece.work;
    if (settings_.on_range) settings_.on_range();
    const Range asked = range_of(piece);
    int64_t skipped = 0;
    bool is_too_long = false;
    const auto on_bytes = [&](std::string_view bytes) -> Result<bool> {
      if (stopped_) return false;
      const auto skip =
          static_cast<size_t>(std::min<int64_t>(skipped, static_cast<int64_t>(bytes.size())));
      bytes.remove_prefix(skip);
      skipped -= static_cast<int64_t>(skip);
      Range now = range_of(piece);
      const auto wanted = static_cast<size_t>(now.end - now.next());
      // Behind the file's end there is nothing; behind a range the whole file may follow.
      is_too_long = bytes.size() > wanted && now.end == file.blob.file.size;
      const std::string_view taken = bytes.substr(0, wanted);
      RUDDER_TRY_VOID(file.partial->write(now.next(), {taken.data(), taken.size()}));
      const std::lock_guard lock(mutex_);
      Range& range = file.partial->ranges().all()[piece.range];
      range.done += static_cast<int64_t>(taken.size());
      return !range.is_complete() || bytes.size() <= wanted;
    };
    const Result<HttpAnswer> answer = http.stream(
        file.blob.url, ByteRange{.first = asked.next(), .last = asked.end - 1},
        {.on_head =
             [&](const HttpHead& head) { return check_head(head, piece, asked.next(), skipped); },
         .on_bytes = on_bytes});
    if (!answer) {
      const bool passes = answer.error().code == ErrorCode::kUnavailable;
      return Failure{describe_transfer(answer.error(), hub_), passes, std::nullopt};
    }
    if (!answer->head.is_success()) {
      const auto is_hub = is_same_origin(answer->head.url, hub_.endpoint);
      const bool has_expired = is_hub && !*is_hub && answer->head.status == 403;
      return Failure{
          has_expired
              ? Error{ErrorCode::kUnavailable,
                      fmt::format("the hub's storage refuses {} (403)", file.blob.file.path), "hub"}
              : describe_refusal(*answer, {repository_, "", file.blob.file.path}, hub_),
          has_expired || is_passing(answer->head.status), wait_us_of(answer->head)};
    }
    if (is_too_long) {
      return Failure{{ErrorCode::kCorruptFile,
                      fmt::format("the hub lists {} bytes for {} and sends more",
                                  file.blob.file.size, file.blob.file.path),
                      "hub"},
                     false,
                     std::nullopt};
    }
    if (stopped_ || range_of(piece).is_complete()) return std::nullopt;
    return Failure{{ErrorCode::kUnavailable,
                    fmt::format("the hub ended {} before its end", file.blob.file.path), "hub"},
                   true,
                   std::nullopt};
  }

  Range range_of(const Piece& piece) {
    const std::lock_guard lock(mutex_);
    return piece.work->partial->ranges().all()[piece.range];
  }

  // Checks a file that is complete and gives it its name, without the lock. With another hash than
  // it should have, it is fetched once more: what a process left may be torn.
  void finish_locked(std::unique_lock<std::mutex>& lock, FileWork& file) {
    if (file.is_done) return;
    file.is_done = true;
    lock.unlock();
    const RemoteFile& wanted = file.blob.file;
    const Result<std::string> digest =
        digest_file(file.partial->path(), wanted.kind, [this](size_t) { return !stopped_; });
    Result<void> done = {};
    const bool is_right = digest && *digest == wanted.digest;
    if (is_right) done = file.partial->publish();
    lock.lock();
    if (is_right && done) return;
    if (!digest) {
      if (digest.error().code != ErrorCode::kCancelled) fail_locked(digest.error());
      file.is_done = false;  // what is there stays for the next process
      return;
    }
    if (!done) return fail_locked(done.error());
    done = file.partial->restart();
    if (!done) return fail_locked(done.error());
    file.is_taken.assign(file.partial->ranges().all().size(), false);
    file.is_done = false;
    if (++file.rounds <= kMaxRounds) {
      log_warn("{}: the bytes do not have the hash that the hub lists; fetching it again",
               wanted.path);
      return;
    }
    fail_locked(
        {ErrorCode::kCorruptFile,
         fmt::format("{}: what the hub sends has the hash {}, and it lists {}; nothing of it "
                     "is kept",
                     wanted.path, *digest, wanted.digest),
         "hub"});
  }

  const HubSettings& hub_;
  const std::string repository_;
  const DownloadSettings settings_;

  std::mutex mutex_;  // guards all below, and the ranges of the files
  std::condition_variable changed_;
  std::vector<std::unique_ptr<FileWork>> files_;
  int64_t total_ = 0;
  size_t ended_ = 0;
  std::optional<Error> failure_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace

Result<void> download_blobs(const HubSettings& hub, const std::string& repository,
                            std::vector<BlobDownload> blobs, const DownloadSettings& settings,
                            const ProgressFn& progress) {
  Downloader downloader(hub, repository, settings);
  RUDDER_TRY_VOID(downloader.open_files(std::move(blobs)));
  return downloader.run(progress);
}

}  // namespace rudder::hub
