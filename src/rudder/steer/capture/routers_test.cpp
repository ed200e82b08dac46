// Rows of other dtypes than activations': a router's logits are float32, the experts that it chose
// int16, whatever a consumer does with them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/steer/capture/filesystem_consumer.h"
#include "rudder/steer/capture/response_test_support.h"
#include "rudder/weights/safetensors.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

class RouterCapture : public ResponseTest {
 protected:
  RouterCapture() { geometry_ = routed_geometry(); }

  // Rows of the points, one behind another, as they lie in memory.
  std::string bytes_of(tap::Site site, const std::vector<int32_t>& positions,
                       const std::vector<int32_t>& layers) {
    std::string bytes;
    for (const int32_t position : positions) {
      for (const int32_t layer : layers) {
        const tap::CapturePoint point{{layer, site}, false};
        for (int32_t i = 0; i < geometry_.width(point.point); ++i) {
          const float value = router_value(9, position, point, i);
          const auto number = static_cast<int16_t>(value);
          if (site == tap::Site::kRoutedExperts) {
            bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
          } else {
            bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
          }
        }
      }
    }
    return bytes;
  }
};

TEST_F(RouterCapture, AnswersHaveTheRowsInTheirOwnDtypes) {
  start();
  for (const char* dtype : {"bfloat16", "float32"}) {
    const json::value payload = payload_of(capture(fmt::format(
        R"({{"response": {{"sites": {{"router_logits": [1], "routed_experts": [1], "resid_post": [1]}},
             "positions": [1, 5], "dtype": "{}"}}}})",
        dtype)));
    const json::value& logits = payload.at("rows").at("router_logits");
    EXPECT_EQ(logits.at("dtype"), "float32");
    EXPECT_EQ(logits.at("shape"), (json::array{2, 70}));
    EXPECT_EQ(logits.at("data"),
              json::string(base64(bytes_of(tap::Site::kRouterLogits, {1, 5}, {1}))));
    const json::value& chosen = payload.at("rows").at("routed_experts");
    EXPECT_EQ(chosen.at("dtype"), "int16");
    EXPECT_EQ(chosen.at("shape"), (json::array{2, 3}));
    EXPECT_EQ(chosen.at("data"),
              json::string(base64(bytes_of(tap::Site::kRoutedExperts, {1, 5}, {1}))));
    EXPECT_EQ(payload.at("rows").at("resid_post").at("dtype"), dtype);
  }
}

TEST_F(RouterCapture, LayersOfOtherExpertsArePackedApartAndNumbersAreRead) {
  start();
  const json::value payload = payload_of(capture(
      R"({"response": {"sites": {"router_logits": "all"}, "positions": [2],
                       "values": ["rows", "norms", "means"]}})"));
  EXPECT_EQ(payload.at("rows").at("router_logits.1").at("shape"), (json::array{1, 70}));
  EXPECT_EQ(payload.at("rows").at("router_logits.3").at("shape"), (json::array{1, 9}));
  double squares = 0;
  for (int32_t i = 0; i < 9; ++i) {
    const double value = router_value(9, 2, {{3, tap::Site::kRouterLogits}, false}, i);
    squares += value * value;
  }
  EXPECT_NEAR(payload.at("norms").at("router_logits.3").at(0).to_number<double>(),
              std::sqrt(squares), 1e-4);
}

// The npy file of the payload: its head as text, and its numbers.
std::pair<std::string, std::vector<int16_t>> npy_of(const ConsumerResult& result) {
  const std::string text(json::parse(result.payload).as_string());
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char letter : text) {
    if (letter == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(kAlphabet.find(letter));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t length = static_cast<uint8_t>(bytes[8]) | static_cast<size_t>(bytes[9]) << 8;
  EXPECT_EQ((10 + length) % 64, 0U);
  std::vector<int16_t> numbers((bytes.size() - 10 - length) / sizeof(int16_t));
  std::memcpy(numbers.data(), bytes.data() + 10 + length, numbers.size() * sizeof(int16_t));
  return {bytes.substr(10, length), numbers};
}

TEST_F(RouterCapture, RoutedExpertsAreAnNpyFileOfAllLayers) {
  start();
  const ConsumerResult result = capture(R"({"routed_experts": {"positions": {"from": 2}}})");
  ASSERT_EQ(result.status, Status::kOk) << result.error;
  const auto [head, numbers] = npy_of(result);
  EXPECT_EQ(head.substr(0, head.find('}')),
            "{'descr': '<i2', 'fortran_order': False, 'shape': (5, 4, 3), ");
  EXPECT_EQ(head.back(), '\n');
  ASSERT_EQ(numbers.size(), 5U * 4 * 3);
  for (int32_t token = 0; token < 5; ++token) {
    for (int32_t layer = 0; layer < 4; ++layer) {
      const tap::Point point{layer, tap::Site::kRoutedExperts};
      const int32_t chosen = geometry_.has(point) ? geometry_.width(point) : 0;
      for (int32_t j = 0; j < 3; ++j) {
        const float expected = j < chosen ? router_value(9, 2 + token, {point, false}, j) : -1;
        EXPECT_EQ(numbers[static_cast<size_t>((token * 4 + layer) * 3 + j)], expected);
      }
    }
  }
}

TEST_F(RouterCapture, RoutedExpertsTakePositionsAlone) {
  start();
  const std::pair<const char*, const char*> cases[] = {
      {R"({"routed_experts": {"sites": {"resid_post": [1]}}})", "capture.routed_experts.sites"},
      {R"({"routed_experts": {"dtype": "int16"}})", "capture.routed_experts.dtype"},
      {R"({"routed_experts": {"positions": {"to": 2}}})", "capture.routed_experts.positions"},
      {R"({"routed_experts": {"positions": {"from": 0.5}}})",
       "capture.routed_experts.positions.from"},
      {R"({"response": {"sites": {"router_logits": [2]}}})",
       "capture.response.sites.router_logits[0]"},
  };
  for (const auto& [field, where] : cases) {
    const json::value value = *parse_json(field, "test");
    const auto refused = dispatcher_->spec(&value);
    ASSERT_FALSE(refused) << field;
    EXPECT_EQ(refused.error().where, where) << refused.error().message;
  }
}

TEST_F(RouterCapture, RoutedExpertsOfMoreTokensThanAnswersMayHoldAreAnError) {
  start(100);
  const ConsumerResult result = capture(R"({"routed_experts": {"positions": "all"}})");
  EXPECT_EQ(result.status, Status::kError);
  EXPECT_NE(result.error.find("capture-max-response-bytes"), std::string::npos) << result.error;
}

TEST_F(RouterCapture, AModelWithoutExpertsHasNoSuchConsumer) {
  geometry_ = small_geometry();
  start();
  const json::value value = *parse_json(R"({"routed_experts": {"positions": "all"}})", "test");
  const auto refused = dispatcher_->spec(&value);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "capture.routed_experts");
}

// Files say of what dtype they are, and have the bytes of that.
TEST(RouterFiles, SayTheDtypeOfTheirRows) {
  const TempFolder folder;
  const tap::Geometry geometry = routed_geometry();
  CaptureSettings settings;
  settings.consumers = {"filesystem:root=" + folder.path() + "/capture"};
  settings.spill_dir = folder.path();
  auto dispatcher = Dispatcher::create({geometry, small_limits(), {}, {}}, settings).value();
  Inbound inbound;
  for (const char* layout : {"files", "shards"}) {
    const auto spec = make_spec(*dispatcher, fmt::format(R"({{"filesystem": {{"layout": "{}",
        "sites": {{"router_logits": [1], "routed_experts": [3], "mlp_out": [3]}},
        "positions": "all_prompt"}}}})",
                                                         layout));
    const CaptureId id = dispatcher->begin({.spec = spec,
                                            .request_id = layout,
                                            .choice = 0,
                                            .prompt_len = 3,
                                            .stream = false,
                                            .wait = true,
                                            .on_results = inbound.results(),
                                            .on_event = {}});
    FakeStep(geometry).add(id, 9, *spec, 0, 3).push_to(*dispatcher);
    dispatcher->end(id);
    ASSERT_EQ(inbound.wait().at(0).status, Status::kOk);
  }
  const std::string at = "capture/default/files/";
  const auto about = parse_json(folder.read(at + "1_router_logits.json"), "json").value();
  EXPECT_EQ(about.at("dtype"), "float32");
  EXPECT_EQ(about.at("shape"), (json::array{3, 70}));
  const std::string rows = folder.read(at + "1_router_logits.bin");
  ASSERT_EQ(rows.size(), 3U * 70 * sizeof(float));
  float last = 0;
  std::memcpy(&last, rows.data() + rows.size() - sizeof(last), sizeof(last));
  EXPECT_EQ(last, router_value(9, 2, {{1, tap::Site::kRouterLogits}, false}, 69));
  EXPECT_EQ(parse_json(folder.read(at + "3_routed_experts.json"), "json").value().at("dtype"),
            "int16");
  EXPECT_EQ(folder.read(at + "3_routed_experts.bin").size(), 3U * 2 * sizeof(int16_t));
  EXPECT_EQ(parse_json(folder.read(at + "3_mlp_out.json"), "json").value().at("dtype"), "bfloat16");

  const auto files = folder.files();
  const auto shard = std::ranges::find_if(
      files, [](const std::string& name) { return name.ends_with(".safetensors"); });
  ASSERT_NE(shard, files.end());
  const std::string bytes = folder.read(*shard);
  const auto parsed = weights::parse_safetensors(std::as_bytes(std::span(bytes)), *shard).value();
  EXPECT_EQ(parsed.find("shards/router_logits.1/0")->dtype, tensor::DType::kF32);
  EXPECT_EQ(parsed.find("shards/routed_experts.3/0")->dtype, tensor::DType::kI16);
  EXPECT_EQ(parsed.find("shards/mlp_out.3/0")->dtype, tensor::DType::kBF16);
}

// The interface of plugins knows one dtype.
TEST(RouterPlugins, GetNoRowsOfOtherDtypes) {
  const TempFolder folder;
  std::ofstream(folder.path() + "/probe.f32", std::ios::binary) << std::string(24 * 4, 'a');
  CaptureSettings settings;
  settings.plugins = {"reward:file=" CAPTURE_REWARD ",probe=" + folder.path() + "/probe.f32"};
  settings.spill_dir = folder.path();
  auto dispatcher =
      Dispatcher::create({routed_geometry(), small_limits(), {}, {}}, settings).value();
  const json::value value = *parse_json(R"({"reward": {"sites": {"router_logits": [1]}}})", "test");
  const auto refused = dispatcher->spec(&value);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "capture.reward.sites");
  EXPECT_NE(refused.error().message.find("router_logits are float32"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace rudder::steer::capture
