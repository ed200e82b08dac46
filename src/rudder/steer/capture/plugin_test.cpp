#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <fstream>

#include "rudder/base/json.h"
#include "rudder/base/log.h"
#include "rudder/steer/capture/capture_fixture.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer::capture {
namespace {

class PluginTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Dispatcher>> create(const std::string& plugin) {
    set_log_level(LogLevel::kWarn);
    CaptureSettings settings;
    settings.plugins = {plugin};
    settings.consumers = {"logging"};
    settings.result_timeout_seconds = 1.5;
    settings.spill_dir = folder_.path();
    return Dispatcher::create({geometry_, small_limits(), {}, {}}, settings);
  }
  void start(const std::string& plugin) {
    auto made = create(plugin);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    dispatcher_ = std::move(*made);
  }

  CaptureResults capture(const std::string& field, uint64_t sequence, int32_t tokens) {
    const auto spec = make_spec(*dispatcher_, field);
    const CaptureId id = dispatcher_->begin({.spec = spec,
                                             .request_id = "r",
                                             .choice = 0,
                                             .prompt_len = 1,
                                             .stream = false,
                                             .wait = true,
                                             .on_results = inbound_.results(),
                                             .on_event = {}});
    for (int32_t p = 0; p < tokens; ++p) {
      FakeStep(geometry_).add(id, sequence, *spec, p, p + 1).push_to(*dispatcher_);
    }
    dispatcher_->end(id);
    return inbound_.wait();
  }

  const tap::Geometry geometry_ = small_geometry();
  TempFolder folder_;
  Inbound inbound_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(PluginTest, TheExampleComputesAReward) {
  std::vector<float> probe(24);
  double probe_norm = 0;
  for (size_t i = 0; i < probe.size(); ++i) {
    probe[i] = std::sin(static_cast<float>(i) + 1.0f);
    probe_norm += double{probe[i]} * probe[i];
  }
  std::ofstream(folder_.path() + "/probe.f32", std::ios::binary)
      .write(reinterpret_cast<const char*>(probe.data()), 24 * 4);
  start("reward:file=" CAPTURE_REWARD ",probe=" + folder_.path() + "/probe.f32");
  const CaptureResults results = capture(
      R"({"reward": {"sites": {"resid_post": [1, 2]}, "positions": "all_generated"}})", 5, 30);
  ASSERT_EQ(results[0].status, Status::kOk) << results[0].error;
  double sum = 0;
  for (int32_t p = 1; p < 30; ++p) {
    for (const int32_t layer : {1, 2}) {
      double dot = 0;
      double squares = 0;
      for (int32_t i = 0; i < 24; ++i) {
        const double h = tensor::to_float(
            tensor::BF16{row_value(5, p, {{layer, tap::Site::kResidPost}, false}, i)});
        dot += h * probe[static_cast<size_t>(i)];
        squares += h * h;
      }
      sum += dot / std::sqrt(squares * probe_norm);
    }
  }
  const boost::json::value payload = *parse_json(results[0].payload, "payload");
  EXPECT_EQ(payload.at("rows"), 58);
  EXPECT_NEAR(payload.at("reward").as_double(), sum / 58, 1e-8);
}

TEST_F(PluginTest, TheExampleRefusesWhatItCannotDo) {
  std::ofstream(folder_.path() + "/probe.f32", std::ios::binary) << std::string(96, 'a');
  start("reward:file=" CAPTURE_REWARD ",probe=" + folder_.path() + "/probe.f32");
  for (const char* field : {R"({"reward": {"sites": {"mlp_act": [1]}}})",
                            R"({"reward": {"sites": {"resid_post": [1]}, "scale": 2}})"}) {
    const boost::json::value value = *parse_json(field, "test");
    const auto spec = dispatcher_->spec(&value);
    ASSERT_FALSE(spec.has_value());
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(spec.error().where, "capture.reward");
  }
}

TEST_F(PluginTest, WhatIsNoPluginIsRefusedAtStart) {
  std::ofstream(folder_.path() + "/text.so") << "not a shared object";
  std::ofstream(folder_.path() + "/short.f32") << "abc";
  for (const std::string& plugin :
       {std::string("p"), std::string("p:file=/nowhere/at/all.so"),
        "p:file=" + folder_.path() + "/text.so", std::string("p:file=libm.so.6"),
        "p:file=" CAPTURE_REWARD ",probe=" + folder_.path() + "/short.f32",
        std::string("p:file=" CAPTURE_REWARD),
        std::string("p:file=" CAPTURE_BAD_PLUGIN ",x=refuse"),
        std::string("logging:file=" CAPTURE_BAD_PLUGIN)}) {
    const auto made = create(plugin);
    EXPECT_FALSE(made.has_value()) << plugin;
  }
}

TEST_F(PluginTest, WhateverAPluginThrowsStaysInItsResult) {
  start("bad:file=" CAPTURE_BAD_PLUGIN);
  const auto with = [](const std::string& deed) {
    return R"({"bad": {"sites": {"resid_post": [0]}, "positions": "all", "do": ")" + deed +
           R"("}, "logging": {"sites": {"resid_post": [0]}}})";
  };
  for (const auto& [deed, text] :
       {std::pair("throw_open", "open threw"), std::pair("throw_rows", "on_rows threw"),
        std::pair("throw_finalize", "finalize threw"), std::pair("fail_rows", "displease"),
        std::pair("bad_json", "payload")}) {
    const CaptureResults results = capture(with(deed), 1, 3);
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].status, Status::kError) << deed;
    EXPECT_NE(results[0].error.find(text), std::string::npos) << results[0].error;
    EXPECT_EQ(results[1].status, Status::kOk) << deed;
  }
  EXPECT_EQ(capture(with("nothing"), 1, 3)[0].payload, R"({"fine":true})");
  EXPECT_EQ(capture(with("silent"), 1, 3)[0].payload, "");
  for (const char* deed : {"throw_validate", "invalid"}) {
    const boost::json::value value = *parse_json(with(deed), "test");
    const auto spec = dispatcher_->spec(&value);
    ASSERT_FALSE(spec.has_value());
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST_F(PluginTest, WhatAPluginThrowsAsItIsLoadedRefusesIt) {
  const auto refusal = [&](const std::string& plugin) {
    const auto made = create(plugin);
    return made.has_value() ? std::string("nothing") : made.error().to_string();
  };
  EXPECT_NE(refusal("bad:file=" CAPTURE_BAD_PLUGIN ",x=throw_create").find("create threw"),
            std::string::npos);
  EXPECT_NE(refusal("bad:file=" CAPTURE_THROWS_AT_ENTRY).find("threw an exception: entry"),
            std::string::npos);
}

// The loader passes no exception on: the server ends as it does at any plugin that is refused.
TEST_F(PluginTest, WhatAnInitialiserOfAPluginThrowsRefusesIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(static_cast<void>(create("bad:file=" CAPTURE_THROWS_AT_LOAD)),
              ::testing::ExitedWithCode(1), "an initialiser aborted");
}

TEST_F(PluginTest, AStallingPluginMissesItsTimeAndTheOthersDoNot) {
  start("bad:file=" CAPTURE_BAD_PLUGIN);
  const auto before = std::chrono::steady_clock::now();
  const CaptureResults results = capture(
      R"({"bad": {"sites": {"resid_post": [0]}, "do": "stall"}, "logging": {"sites": {"resid_post": [0]}}})",
      1, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(2890));
  EXPECT_EQ(results[0].status, Status::kError);
  EXPECT_NE(results[0].error.find("in time"), std::string::npos) << results[0].error;
  EXPECT_EQ(results[1].status, Status::kOk);
}

}  // namespace
}  // namespace rudder::steer::capture
