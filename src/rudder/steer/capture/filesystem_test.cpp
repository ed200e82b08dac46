#include "rudder/steer/capture/filesystem_consumer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstring>
#include <thread>

#include "rudder/base/json.h"
#include "rudder/steer/capture/capture_fixture.h"
#include "rudder/steer/capture/sha256.h"
#include "rudder/steer/capture/slug.h"
#include "rudder/weights/safetensors.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

std::string sha256(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.finish_hex();
}

TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesAndTheFormsOfTheCpuAgree) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 37 + i / 7);
  for (size_t cut = 0; cut <= 200; ++cut) {
    Sha256 hash;
    const auto bytes = std::as_bytes(std::span(text));
    hash.update(bytes.first(cut));
    hash.update(bytes.subspan(cut, 1));
    hash.update(bytes.subspan(cut + 1));
    ASSERT_EQ(hash.finish_hex(), sha256(text)) << cut;
  }
  if (!sha256_has_instructions()) GTEST_SKIP() << "this CPU has no instructions for SHA-256";
  std::array<uint32_t, 8> portable = {1, 2, 3, 4, 5, 6, 7, 8};
  std::array<uint32_t, 8> fast = portable;
  const auto* blocks = reinterpret_cast<const std::byte*>(text.data());
  sha256_blocks_portable(portable, blocks, 15);
  sha256_blocks_instructions(fast, blocks, 15);
  EXPECT_EQ(portable, fast);
}

TEST(Slug, NothingLeavesItsFolder) {
  for (const char* good : {"a", "chatcmpl-1_2.3", "A.b", "x..y"})
    EXPECT_TRUE(is_slug(good)) << good;
  for (const char* bad :
       {"", ".", "..", ".hidden", "a/b", "/a", "../a", "a\\b", "a b", "a\nb", "ä"}) {
    EXPECT_FALSE(is_slug(bad)) << bad;
    EXPECT_TRUE(is_slug(make_slug(bad))) << bad;
  }
  EXPECT_FALSE(is_slug(std::string(129, 'a')));
  EXPECT_TRUE(is_slug(make_slug(std::string(1000, '/'))));
  EXPECT_FALSE(is_slug(std::string_view("a\0b", 3)));
}

class FilesystemTest : public ::testing::Test {
 protected:
  void start(const std::string& options = "") {
    CaptureSettings settings;
    settings.consumers = {"filesystem:root=" + folder_.path() + "/capture" + options};
    settings.spill_dir = folder_.path();
    Result<std::unique_ptr<Dispatcher>> made =
        Dispatcher::create({geometry_, small_limits(), {}, {}}, settings);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    dispatcher_ = std::move(*made);
  }

  // A request of `prompt` tokens and `generated` rows after them, from start to end.
  ConsumerResult capture(const std::string& fields, const std::string& id, uint64_t sequence,
                         int32_t prompt, int32_t generated, int32_t choice = 0,
                         bool cancelled = false) {
    const auto spec = make_spec(*dispatcher_, R"({"filesystem": )" + fields + "}");
    const CaptureId capture = dispatcher_->begin({.spec = spec,
                                                  .request_id = id,
                                                  .choice = choice,
                                                  .prompt_len = prompt,
                                                  .stream = false,
                                                  .wait = true,
                                                  .on_results = inbound_.results(),
                                                  .on_event = {}});
    FakeStep(geometry_).add(capture, sequence, *spec, 0, prompt).push_to(*dispatcher_);
    for (int32_t p = prompt; p < prompt + generated; ++p) {
      FakeStep(geometry_).add(capture, sequence, *spec, p, p + 1).push_to(*dispatcher_);
    }
    if (cancelled) {
      dispatcher_->cancel(capture);
    } else {
      dispatcher_->end(capture);
    }
    const CaptureResults results = inbound_.wait();
    return results.empty() ? ConsumerResult{} : results[0];
  }

  // What a file of rows must hold.
  std::string rows(uint64_t sequence, const tap::CapturePoint& point, int32_t begin, int32_t end) {
    std::string bytes;
    for (int32_t p = begin; p < end; ++p) {
      for (int32_t i = 0; i < geometry_.width(point.point); ++i) {
        const uint16_t value = row_value(sequence, p, point, i);
        bytes.append(reinterpret_cast<const char*>(&value), 2);
      }
    }
    return bytes;
  }

  const tap::Geometry geometry_ = small_geometry();
  TempFolder folder_;
  Inbound inbound_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

constexpr const char* kTwoSites =
    R"({"sites": {"resid_post": [1, 3], "mlp_act": [2]}, "positions": "all", "tag": "exp1"})";

TEST_F(FilesystemTest, AKeyIsAFileWithAnotherThatDescribesIt) {
  start();
  const ConsumerResult result = capture(kTwoSites, "req-7", 7, 5, 3);
  ASSERT_EQ(result.status, Status::kOk) << result.error;
  const std::vector<std::string> expected = {
      "capture/exp1/req-7/1_resid_post.bin", "capture/exp1/req-7/1_resid_post.json",
      "capture/exp1/req-7/2_mlp_act.bin",    "capture/exp1/req-7/2_mlp_act.json",
      "capture/exp1/req-7/3_resid_post.bin", "capture/exp1/req-7/3_resid_post.json"};
  EXPECT_EQ(folder_.files(), expected);
  const json::value payload = *parse_json(result.payload, "payload");
  EXPECT_EQ(payload.at("paths").as_array().size(), 6u);
  EXPECT_EQ(payload.at("paths").as_array()[0], "exp1/req-7/1_resid_post.bin");

  const std::string bytes = folder_.read("capture/exp1/req-7/2_mlp_act.bin");
  EXPECT_EQ(bytes, rows(7, {{2, tap::Site::kMlpAct}, false}, 0, 8));
  const json::value sidecar =
      *parse_json(folder_.read("capture/exp1/req-7/2_mlp_act.json"), "sidecar");
  EXPECT_EQ(sidecar.at("sha256"), json::string(sha256(bytes)));
  EXPECT_EQ(sidecar.at("shape"), (json::array{8, 40}));
  EXPECT_EQ(sidecar.at("positions"), (json::array{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(sidecar.at("dtype"), "bfloat16");
  EXPECT_EQ(sidecar.at("site"), "mlp_act");
  EXPECT_EQ(sidecar.at("layer"), 2);
  EXPECT_EQ(sidecar.at("point"), "pre");
  EXPECT_EQ(sidecar.at("request_id"), "req-7");
  EXPECT_EQ(sidecar.at("prompt_len"), 5);
}

TEST_F(FilesystemTest, MoreKeysThanOpenFilesAndBuffersKeepTheirOrder) {
  start(",max_open_files=2,writer_threads=2,fsync=false");
  const std::string fields = R"({"sites": {"resid_post": "all", "resid_pre": "all",
    "mlp_act": "all"}, "positions": "all"})";
  ASSERT_EQ(capture(fields, "r", 3, 900, 100).status, Status::kOk);  // 40 kB a key and more
  for (int32_t layer = 0; layer < 4; ++layer) {
    for (const auto site : {tap::Site::kResidPost, tap::Site::kResidPre, tap::Site::kMlpAct}) {
      const std::string name = "capture/default/r/" + std::to_string(layer) + "_" +
                               std::string(tap::site_name(site)) + ".bin";
      EXPECT_TRUE(folder_.read(name) == rows(3, {{layer, site}, false}, 0, 1000)) << name;
    }
  }
}

TEST_F(FilesystemTest, ANameThatIsTakenGetsASuffixOrIsRefusedOrReplaced) {
  constexpr const char* kFields = R"({"sites": {"resid_post": [0]}, "request_id": "mine"})";
  start();
  EXPECT_EQ(capture(kFields, "x", 1, 1, 0).status, Status::kOk);
  EXPECT_EQ(capture(kFields, "y", 2, 1, 0).status, Status::kOk);
  EXPECT_EQ(capture(kFields, "z", 3, 1, 0, 1).status, Status::kOk);
  const tap::CapturePoint point{{0, tap::Site::kResidPost}, false};
  EXPECT_EQ(folder_.read("capture/default/mine/0_resid_post.bin"), rows(1, point, 0, 1));
  EXPECT_EQ(folder_.read("capture/default/mine-2/0_resid_post.bin"), rows(2, point, 0, 1));
  EXPECT_EQ(folder_.read("capture/default/mine-choice1/0_resid_post.bin"), rows(3, point, 0, 1));
  start(",on_collision=error");
  const ConsumerResult refused = capture(kFields, "x", 4, 1, 0);
  EXPECT_EQ(refused.status, Status::kError);
  EXPECT_NE(refused.error.find("default/mine"), std::string::npos) << refused.error;
  EXPECT_EQ(folder_.read("capture/default/mine/0_resid_post.bin"), rows(1, point, 0, 1));
  start(",on_collision=overwrite");
  EXPECT_EQ(capture(kFields, "x", 4, 1, 0).status, Status::kOk);
  EXPECT_EQ(folder_.read("capture/default/mine/0_resid_post.bin"), rows(4, point, 0, 1));
}

TEST_F(FilesystemTest, NamesOfClientsDoNotLeaveTheRoot) {
  start();
  for (const char* name : {"..", "../up", "/etc", "a/b", "", ".partial", "a\\u0000b"}) {
    for (const char* field : {"tag", "request_id"}) {
      const json::value value = {
          {"filesystem",
           {{"sites", {{"resid_post", {0}}}},
            {field,
             std::string(name) == "a\\u0000b" ? json::string("a\0b", 3) : json::string(name)}}}};
      const auto spec = dispatcher_->spec(&value);
      ASSERT_FALSE(spec.has_value()) << field << " " << name;
      EXPECT_EQ(spec.error().where, std::string("capture.filesystem.") + field);
    }
  }
  // The server's own name of the request may be anything a client sent.
  EXPECT_EQ(capture(R"({"sites": {"resid_post": [0]}})", "../../etc/passwd", 1, 1, 0).status,
            Status::kOk);
  EXPECT_EQ(folder_.files()[0], "capture/default/_._.._etc_passwd/0_resid_post.bin");
}

TEST_F(FilesystemTest, SymbolicLinksBelowTheRootAreNotFollowed) {
  start();
  ASSERT_EQ(::mkdir((folder_.path() + "/outside").c_str(), 0755), 0);
  ASSERT_EQ(
      ::symlink((folder_.path() + "/outside").c_str(), (folder_.path() + "/capture/exp1").c_str()),
      0);
  EXPECT_EQ(capture(kTwoSites, "r", 1, 2, 0).status, Status::kError);
  EXPECT_TRUE(folder_.files().empty());
}

TEST_F(FilesystemTest, WhatCannotBeWrittenIsTheRequestsErrorAlone) {
  start();
  ASSERT_EQ(::mkdir((folder_.path() + "/capture/default").c_str(), 0755), 0);
  // A file is where the request's folder should be: making it fails, whoever asks.
  std::ofstream(folder_.path() + "/capture/default/taken").put('x');
  const ConsumerResult failed =
      capture(R"({"sites": {"resid_post": [0]}, "request_id": "taken"})", "r", 1, 2, 0);
  EXPECT_EQ(failed.status, Status::kError);
  EXPECT_NE(failed.error.find("default/taken"), std::string::npos) << failed.error;
  EXPECT_EQ(capture(R"({"sites": {"resid_post": [0]}})", "r", 1, 2, 0).status, Status::kOk);
  // And a folder where one of two files should be: the other is published.
  ASSERT_EQ(::mkdir((folder_.path() + "/capture/default/half").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir((folder_.path() + "/capture/default/half/0_resid_post.bin").c_str(), 0755), 0);
  start(",on_collision=overwrite");
  const ConsumerResult half =
      capture(R"({"sites": {"resid_post": [0, 1]}, "request_id": "half"})", "r", 1, 2, 0);
  EXPECT_EQ(half.status, Status::kPartialError) << half.payload;
  EXPECT_NE(half.payload.find("1_resid_post.bin"), std::string::npos);
}

TEST_F(FilesystemTest, ACancelledRequestLeavesNothing) {
  start();
  EXPECT_EQ(capture(kTwoSites, "gone", 1, 100, 50, 0, true).status, Status::kError);
  EXPECT_EQ(
      capture(R"({"sites": {"resid_post": [0]}, "positions": "all_generated"})", "none", 1, 5, 0)
          .status,
      Status::kOk);
  dispatcher_.reset();
  EXPECT_TRUE(folder_.files().empty());
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/capture/exp1/gone"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path() + "/capture/.partial"));
}

TEST_F(FilesystemTest, WhatADeadProcessLeftIsRemovedAndWhatALivingOneHasIsNot) {
  start();
  std::filesystem::create_directories(folder_.path() + "/capture/.partial/123-dead");
  std::ofstream(folder_.path() + "/capture/.partial/123-dead/7").put('x');
  const std::shared_ptr<Store> living = *Store::open(folder_.path() + "/capture", false);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/capture/.partial/123-dead"));
  const auto file = living->new_file();
  ASSERT_TRUE(file->open().has_value());
  start();  // a third store on the same root
  ASSERT_TRUE(file->append(std::as_bytes(std::span("abc", 3))).has_value());
  ASSERT_TRUE(file->publish(*living->tag_folder("t"), "f").has_value());
  EXPECT_EQ(folder_.read("capture/t/f"), "abc");
}

TEST_F(FilesystemTest, ShardsHoldRowsOfManyRequests) {
  start(",layout=shards,shard_age_ms=60000,shard_bytes=40K,writer_threads=2");
  // 300 rows of 48 bytes, and their positions: about three requests a shard. Results of those in an
  // open shard come when the dispatcher closes it.
  constexpr int kRequests = 12;
  std::vector<std::shared_ptr<const CaptureSpec>> specs;
  for (int r = 0; r < kRequests; ++r) {
    const auto spec = make_spec(
        *dispatcher_, R"({"filesystem": {"sites": {"resid_post": [1]}, "positions": "all"}})");
    const CaptureId id = dispatcher_->begin({.spec = spec,
                                             .request_id = r < 2 ? "same" : "r" + std::to_string(r),
                                             .choice = 0,
                                             .prompt_len = 300,
                                             .stream = false,
                                             .wait = true,
                                             .on_results = inbound_.results(),
                                             .on_event = {}});
    FakeStep(geometry_).add(id, static_cast<uint64_t>(r), *spec, 0, 300).push_to(*dispatcher_);
    dispatcher_->end(id);
  }
  dispatcher_.reset();
  for (int r = 0; r < kRequests; ++r) {
    const CaptureResults results = inbound_.wait();
    ASSERT_EQ(results[0].status, Status::kOk) << results[0].error;
  }
  int found = 0;
  const std::vector<std::string> files = folder_.files();
  EXPECT_GE(files.size(), 4u);
  const tap::CapturePoint point{{1, tap::Site::kResidPost}, false};
  for (const std::string& name : files) {
    const std::string bytes = folder_.read(name);
    const auto shard = weights::parse_safetensors(std::as_bytes(std::span(bytes)), name);
    ASSERT_TRUE(shard.has_value()) << shard.error().to_string();
    for (const auto& [key, value] : shard->metadata) {
      if (key != "data_sha256") continue;
      Sha256 hash;
      hash.update(shard->data);
      EXPECT_EQ(hash.finish_hex(), value);
    }
    for (const weights::TensorEntry& tensor : shard->tensors) {
      if (tensor.name.ends_with(".positions")) continue;
      EXPECT_NE(tensor.name.find("/resid_post.1/0"), std::string::npos) << tensor.name;
      const std::string_view held(reinterpret_cast<const char*>(shard->bytes_of(tensor).data()),
                                  tensor.bytes());
      for (int r = 0; r < kRequests; ++r) {
        found += held == rows(static_cast<uint64_t>(r), point, 0, 300) ? 1 : 0;
      }
      const weights::TensorEntry* positions = shard->find(tensor.name + ".positions");
      ASSERT_NE(positions, nullptr);
      int32_t last = 0;
      std::memcpy(&last, shard->bytes_of(*positions).data() + 4 * 299, 4);
      EXPECT_EQ(last, 299);
    }
  }
  EXPECT_EQ(found, kRequests);
}

TEST_F(FilesystemTest, ManyTagsDoNotKeepManyShardsOpen) {
  start(",shard_age_ms=60000,writer_threads=1,fsync=false");
  std::vector<CaptureId> ids;
  for (int tag = 0; tag < 40; ++tag) {
    const auto spec =
        make_spec(*dispatcher_,
                  R"({"filesystem": {"sites": {"resid_post": [0]}, "layout": "shards", "tag": "t)" +
                      std::to_string(tag) + R"("}})");
    ids.push_back(dispatcher_->begin({.spec = spec,
                                      .request_id = "r",
                                      .choice = 0,
                                      .prompt_len = 1,
                                      .stream = false,
                                      .wait = true,
                                      .on_results = inbound_.results(),
                                      .on_event = {}}));
    FakeStep(geometry_).add(ids.back(), 1, *spec, 0, 1).push_to(*dispatcher_);
    dispatcher_->end(ids.back());
  }
  for (int tag = 0; tag < 40 - 16; ++tag) EXPECT_EQ(inbound_.wait()[0].status, Status::kOk);
  EXPECT_EQ(folder_.files().size(), 24u);
  dispatcher_.reset();
  EXPECT_EQ(folder_.files().size(), 40u);
}

TEST_F(FilesystemTest, AShardThatIsOldIsPublished) {
  start(",shard_age_ms=20");
  const ConsumerResult result = capture(
      R"({"sites": {"resid_post": [0]}, "layout": "shards", "positions": "all"})", "r", 1, 10, 0);
  EXPECT_EQ(result.status, Status::kOk) << result.error;
  ASSERT_EQ(folder_.files().size(), 1u);
  EXPECT_NE(result.payload.find(".safetensors"), std::string::npos) << result.payload;
}

}  // namespace
}  // namespace rudder::steer::capture
