// What is left on the disk when the writing process is killed, and when the disk is full. Each case
// runs in a child process that is forked before any thread exists.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <csignal>
#include <set>
#include <thread>

#include "rudder/base/json.h"
#include "rudder/steer/capture/capture_fixture.h"
#include "rudder/steer/capture/sha256.h"
#include "rudder/weights/safetensors.h"

namespace rudder::steer::capture {
namespace {

std::unique_ptr<Dispatcher> open(const std::string& root) {
  CaptureSettings settings;
  settings.consumers = {"filesystem:shard_age_ms=1,root=" + root};
  settings.queue_bytes = 1 << 20;
  settings.spill_dir = root;
  settings.overload_policy = "block";
  auto made = Dispatcher::create({small_geometry(), small_limits(), {}, {}}, settings);
  return made ? std::move(*made) : nullptr;
}

// Captures requests one after another: `count` of them, or until it is killed.
int capture_many(const std::string& root, const std::string& layout, int count) {
  const std::unique_ptr<Dispatcher> dispatcher = open(root);
  if (dispatcher == nullptr) return 2;
  const tap::Geometry geometry = small_geometry();
  const auto spec = make_spec(*dispatcher, R"({"filesystem": {"sites": {"resid_post": "all"},
      "positions": "all", "layout": ")" + layout +
                                               R"("}})");
  Inbound inbound;
  int num_bad = 0;
  for (int r = 0; r < count; ++r) {
    const CaptureId id = dispatcher->begin({.spec = spec,
                                            .request_id = "r" + std::to_string(r),
                                            .choice = 0,
                                            .prompt_len = 40,
                                            .stream = false,
                                            .wait = true,
                                            .on_results = inbound.results(),
                                            .on_event = {}});
    FakeStep(geometry).add(id, static_cast<uint64_t>(r), *spec, 0, 40).push_to(*dispatcher);
    dispatcher->end(id);
    const CaptureResults results = inbound.wait();
    if (results.empty() || results[0].status != Status::kOk) ++num_bad;
  }
  return num_bad;
}

template <typename Child>
int run_child(Child&& child, int kill_after_us = 0) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  if (kill_after_us > 0) {
    ::usleep(static_cast<useconds_t>(kill_after_us));
    ::kill(pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string hash_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish_hex();
}

// Every file that has a name is whole; returns how many.
int check_all(const TempFolder& folder) {
  int count = 0;
  for (const std::string& name : folder.files()) {
    const std::string text = folder.read(name);
    if (name.ends_with(".json")) {
      const auto sidecar = parse_json(text, name);
      EXPECT_TRUE(sidecar.has_value()) << name;
      if (!sidecar) continue;
      const std::string rows = folder.read(name.substr(0, name.size() - 4) + "bin");
      EXPECT_EQ(sidecar->at("sha256"), boost::json::string(hash_of(std::as_bytes(std::span(rows)))))
          << name;
      ++count;
    } else if (name.ends_with(".bin")) {
      EXPECT_EQ(text.size(), 40u * 24 * 2) << name;
    } else {
      const auto shard = weights::parse_safetensors(std::as_bytes(std::span(text)), name);
      EXPECT_TRUE(shard.has_value()) << name;
      if (!shard) continue;
      for (const auto& [key, value] : shard->metadata) {
        if (key != "data_sha256") continue;
        EXPECT_EQ(hash_of(shard->data), value) << name;
      }
      ++count;
    }
  }
  return count;
}

class CrashTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CrashTest, KillDuringPublishLeavesNoTornFile) {
  TempFolder folder;
  int whole = 0;
  for (int round = 0; round < 12 || (whole == 0 && round < 100); ++round) {
    const int status = run_child([&] { return capture_many(folder.path(), GetParam(), 1 << 30); },
                                 20'000 + round * 7'001);
    ASSERT_EQ(status, -SIGKILL);
    whole = check_all(folder);
  }
  EXPECT_GT(whole, 0) << "the child was killed before it wrote anything";
  // What the dead left without a name goes when the next process opens the folder.
  EXPECT_EQ(run_child([&] { return open(folder.path()) == nullptr ? 1 : 0; }), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() + "/.partial"));
}

TEST_P(CrashTest, AFullDiskIsTheRequestsError) {
  TempFolder folder;
  const auto child = [&] {
    // No file may grow beyond one kB: writes fail as on a full disk.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1024, 1024};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return capture_many(folder.path(), GetParam(), 3);
  };
  EXPECT_EQ(run_child(child), 3);  // all three say so, and the process lives
  EXPECT_TRUE(folder.files().empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() + "/.partial"));
}

INSTANTIATE_TEST_SUITE_P(Layouts, CrashTest, ::testing::Values("files", "shards"),
                         [](const auto& layout) { return std::string(layout.param); });

}  // namespace
}  // namespace rudder::steer::capture
