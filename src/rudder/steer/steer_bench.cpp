// What steering costs on the host, for the shapes of the article that its request fields come from:
// decoding, parsing, summing, hashing, registration, rows. Prints one table; not a test.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "rudder/base/clock.h"
#include "rudder/base/cpu_time.h"
#include "rudder/base/heap.h"
#include "rudder/base/json.h"
#include "rudder/steer/base64.h"
#include "rudder/steer/features/test_dictionary.h"
#include "rudder/steer/library.h"
#include "rudder/steer/program_table.h"
#include "rudder/steer/recent_configs.h"
#include "rudder/steer/row_table.h"
#include "rudder/steer/segments.h"
#include "rudder/steer/test_support.h"
#include "rudder/tap/content_hash.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

struct Shape {
  std::string name;
  int32_t layers;
  int32_t hidden;
  int32_t sites;
};

constexpr std::array<std::string_view, 3> kSites = {"resid_pre", "resid_mid", "resid_post"};
constexpr double kLeastSeconds = 0.2;  // of a measurement

// Median CPU time of a call, in microseconds: others on the machine do not count.
double time_us(const std::function<void()>& call) {
  std::vector<double> times;
  const double begin = thread_cpu_seconds();
  while (times.size() < 5 || thread_cpu_seconds() - begin < kLeastSeconds) {
    const double start = thread_cpu_seconds();
    call();
    times.push_back(1e6 * (thread_cpu_seconds() - start));
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

class Bench {
 public:
  explicit Bench(Shape shape) : shape_(std::move(shape)), random_(1) {
    model_.geometry.num_layers = shape_.layers;
    model_.geometry.hidden = shape_.hidden;
    model_.geometry.mlp_width.assign(static_cast<size_t>(shape_.layers), 4 * shape_.hidden);
    model_.geometry.heads.assign(static_cast<size_t>(shape_.layers), {1, shape_.hidden});
    model_.geometry.sites.assign(static_cast<size_t>(shape_.layers),
                                 tap::dense_sites_but(tap::Site::kFinalNorm));
    const int32_t vectors = shape_.layers * shape_.sites;
    model_.limits = {64, 64 * vectors, int64_t{64} * vectors * shape_.hidden, 0, 0};
  }

  void run() {
    const int32_t vectors = shape_.layers * shape_.sites;
    const double mb = 4e-6 * vectors * shape_.hidden;
    fmt::print("\n{}: {} vectors of {}, {:.2f} MB as f32\n", shape_.name, vectors, shape_.hidden,
               mb);
    const json::object packed = body("steering_vectors", "float32");
    const json::object bf16 = body("steering_vectors", "bfloat16");
    json::object phased = packed;
    phased["decode_steering_vectors"] = body("x", "float32").at("x");
    Library library(model_, nullptr);
    print("base64 into f32", time_base64(), mb);
    const std::string text = to_json_text(packed);
    print("JSON text of the packed form", time_us([&] { (void)parse_json(text, "body"); }), mb);
    const auto resolve = [&](const json::object& one) {
      return time_us([&] { (void)library.resolve(one); });
    };
    print("resolve packed f32", resolve(packed), mb);
    print("resolve packed bf16", resolve(bf16), mb);
    print("resolve packed f32, base and decode", resolve(phased), 2 * mb);
    print("resolve lists of numbers", resolve(lists()), mb);
    print("resolve to segments, packed f32", time_request(library, packed), mb);
    print("resolve to segments, packed f32, two phases", time_request(library, phased), 2 * mb);
    time_crowd(library, text);
    time_programs(library, packed, phased, mb);
    time_names(library, packed);
    time_rows(library, packed, mb);
    time_clamps();
  }

 private:
  static void print(std::string_view what, double us, double mb = 0) {
    fmt::print("  {:<44} {:>12.3f} us{}\n", what, us,
               mb > 0 ? fmt::format("  {:>7.2f} GB/s", mb / us * 1e3) : "");
  }

  json::object body(std::string_view field, std::string_view dtype) {
    json::object tier;
    for (int32_t site = 0; site < shape_.sites; ++site) {
      const auto values = random_.vector(shape_.layers * shape_.hidden);
      std::vector<uint16_t> narrow(values.size());
      std::ranges::transform(values, narrow.begin(),
                             [](float value) { return tensor::to_bf16(value).bits; });
      json::array layers;
      for (int32_t layer = 0; layer < shape_.layers; ++layer) layers.emplace_back(layer);
      tier[kSites[static_cast<size_t>(site)]] = {
          {"dtype", dtype},
          {"shape", {shape_.layers, shape_.hidden}},
          {"layer_indices", std::move(layers)},
          {"data", base64_of(dtype == "float32" ? std::as_bytes(std::span(values))
                                                : std::as_bytes(std::span(narrow)))}};
    }
    return {{json::string_view(field), std::move(tier)}};
  }

  json::object lists() {
    json::object tier;
    for (int32_t site = 0; site < shape_.sites; ++site) {
      json::object layers;
      for (int32_t layer = 0; layer < shape_.layers; ++layer) {
        json::array list;
        for (const float value : random_.vector(shape_.hidden)) list.emplace_back(double{value});
        layers[std::to_string(layer)] = std::move(list);
      }
      tier[kSites[static_cast<size_t>(site)]] = std::move(layers);
    }
    return {{"steering_vectors", std::move(tier)}};
  }

  double time_base64() {
    const auto values = random_.vector(shape_.layers * shape_.sites * shape_.hidden);
    const std::string text = base64_of(std::as_bytes(std::span(values)));
    std::vector<std::byte> out(*base64_bytes(text));
    return time_us([&] { (void)decode_base64(text, out); });
  }

  static double time_request(const Library& library, const json::object& body) {
    PromptShape shape;
    shape.prompt_len = 256;
    return time_us([&] { (void)make_taps(**library.resolve(body), shape); });
  }

  void time_programs(const Library& library, const json::object& packed, const json::object& phased,
                     double mb) {
    const auto specs = (*library.resolve(packed))->specs();
    const auto two = (*library.resolve(phased))->specs();
    const auto model = std::make_shared<const Model>(model_);
    const auto make = [&](const std::vector<OpSpec>& ops, uint64_t active) {
      return time_us([&] { (void)(*Config::build(model, ops))->program(active); });
    };
    print("config, program and key: one tier", make(specs, 1), mb);
    print("config, program and key: base + decode", make(two, 3), mb);
    const auto program = (*Config::build(model, specs))->program(1).program;
    print("key of a program",
          time_us([&] { (void)tap::content_key(model_.hash_secret, *program, model_.geometry); }),
          mb);
  }

  void time_names(Library& library, const json::object& packed) {
    json::object module = packed;
    module["name"] = "module";
    module["replace"] = true;
    print("register a module", time_us([&] { (void)library.add_json(module); }));
    const json::object named = {{"steering_name", "module"}};
    const json::object scaled = {{"steering", {{"name", "module"}, {"scale", 0.5}}}};
    PromptShape shape;
    shape.prompt_len = 256;
    constexpr int kCalls = 100;
    const auto each = [&](const json::object& body) {
      return time_us([&] {
               for (int i = 0; i < kCalls; ++i) (void)make_taps(**library.resolve(body), shape);
             }) /
             kCalls;
    };
    print("resolve to segments, by name", each(named));
    print("resolve to segments, by name and scale", each(scaled));
    time_passing(*make_taps(**library.resolve(named), shape));
  }

  // As a server whose clients come at once: from the body's text to a program, in a thread each.
  static void time_crowd(const Library& library, const std::string& text) {
    constexpr int kThreads = 32;
    constexpr int kWaves = 40;
    std::vector<double> waves;
    PromptShape shape;
    shape.prompt_len = 256;
    for (int wave = 0; wave < kWaves; ++wave) {
      std::latch begin(kThreads + 1);
      std::vector<std::thread> threads;
      threads.reserve(kThreads);
      for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&] {
          begin.arrive_and_wait();
          const auto body = parse_json(text, "body");
          (void)make_taps(**library.resolve(body->as_object()), shape);
        });
      }
      begin.arrive_and_wait();
      const int64_t start = SteadyClock().now_us();
      for (std::thread& thread : threads) thread.join();
      waves.push_back(static_cast<double>(SteadyClock().now_us() - start));
    }
    std::ranges::sort(waves);
    print("32 requests at once, text to segments: the last", waves[kWaves / 2]);
  }

  // From a submitter to the engine: programs handed over, named, and looked up.
  void time_passing(const tap::SequenceTaps& taps) {
    ProgramTable table(model_.limits);
    constexpr int kCalls = 100;
    const auto pass = [&] {
      for (int i = 0; i < kCalls; ++i) {
        const auto kept = table.keep(taps);
        (void)table.resolve(tap::spec_of(**kept));
      }
    };
    print("keep a program, name it, look it up", time_us(pass) / kCalls);
    const auto held = table.keep(taps);
    print("the same, while another request has it", time_us(pass) / kCalls);
  }

  // Clamps of features, whose vectors are rows of a dictionary.
  void time_clamps() {
    constexpr int32_t kClamps = 64;
    const tap::Point point = {shape_.layers / 2, tap::Site::kResidPost};
    const auto dictionary = std::make_shared<const features::Dictionary>(random_dictionary(
        {.width = shape_.hidden, .num_features = kClamps, .read = point, .write = point}, 1));
    std::vector<OpSpec> specs(kClamps);
    for (int32_t i = 0; i < kClamps; ++i) {
      OpSpec& spec = specs[static_cast<size_t>(i)];
      spec.op = OpName::kFeature;
      spec.point = point;
      spec.clamp.dictionary = dictionary;
      spec.clamp.feature = i;
      spec.clamp.edit = tap::FeatureEdit::kSet;
      spec.clamp.value = 1;
      spec.vector = dictionary->decoder_row(i);
    }
    const auto model = std::make_shared<const Model>(model_);
    print(fmt::format("config, program and key: {} clamps", kClamps),
          time_us([&] { (void)(*Config::build(model, specs))->program(1); }),
          2 * 4e-6 * kClamps * shape_.hidden);
    RecentConfigs recent;
    print("the same, when they were asked for before",
          time_us([&] { (void)(*recent.config_of(model, specs))->program(1); }));
  }

  void time_rows(const Library& library, const json::object& packed, double mb) {
    PromptShape shape;
    shape.prompt_len = 256;
    const auto taps = *make_taps(**library.resolve(packed), shape);
    RowTable table(model_.limits);
    std::vector<int32_t> rows;
    std::vector<step::TapEdit> edits;
    constexpr int kCalls = 1000;
    (void)table.lease(taps.segments, rows);
    table.release(rows);
    print("lease and release a row that is there", time_us([&] {
                                                     for (int i = 0; i < kCalls; ++i) {
                                                       (void)table.lease(taps.segments, rows);
                                                       table.release(rows);
                                                     }
                                                   }) / kCalls);
    auto segments = taps.segments;
    print("lease a new row, evict one, take edits", time_us([&] {
                                                      for (int i = 0; i < kCalls; ++i) {
                                                        ++segments[0].content.low;
                                                        (void)table.lease(segments, rows);
                                                        table.release(rows);
                                                        edits.clear();
                                                        table.take_edits(edits);
                                                      }
                                                    }) / kCalls);
    std::vector<float> staging(taps.segments[0].program->vectors.size());
    print("copy of its vectors to staging memory",
          time_us([&] { std::ranges::copy(taps.segments[0].program->vectors, staging.begin()); }),
          mb);
  }

  Shape shape_;
  Model model_;
  Random random_;
};

}  // namespace
}  // namespace rudder::steer

int main() {
  rudder::limit_kept_memory();
  for (const auto& shape : {rudder::steer::Shape{"26 layers, 1 site", 26, 2304, 1},
                            rudder::steer::Shape{"34 layers, 1 site", 34, 2560, 1},
                            rudder::steer::Shape{"34 layers, 3 sites", 34, 2560, 3},
                            rudder::steer::Shape{"42 layers, 3 sites", 42, 3584, 3}}) {
    rudder::steer::Bench(shape).run();
  }
  return 0;
}
