#include "rudder/steer/library.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/json.hpp>
#include <map>
#include <thread>

#include "rudder/base/json.h"
#include "rudder/steer/parse_test_support.h"
#include "rudder/steer/segments.h"
#include "rudder/steer/test_support.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

// A vector of the test model whose first element is `first`, the others 0.
std::string unit(double first) {
  std::string list = fmt::format("[{}", first);
  for (int i = 1; i < kTestHidden; ++i) list += ", 0";
  return list + "]";
}

// {"resid_post": {"1": [first, 0, ...]}}
std::string tier(double first) {
  return fmt::format(R"({{"resid_post": {{"1": {}}}}})", unit(first));
}

json::object module_of(std::string_view name, double first, std::string_view rest = "") {
  return object_of(fmt::format(R"({{"name": "{}", "vectors": {}{}}})", name, tier(first), rest));
}

// First element of what a config adds at kTestPoint to tokens of a prompt; 0: nothing.
float added(const std::shared_ptr<const Config>& config) {
  PromptShape shape;
  shape.prompt_len = 4;
  const auto taps = make_taps(*config, shape);
  if (taps->segments.empty() || taps->segments[0].program == nullptr) return 0;
  EXPECT_EQ(taps->segments[0].program->ops.size(), 1U);
  return taps->segments[0].program->vectors[0];
}

float resolved(const Library& library, std::string_view body) {
  const auto config = library.resolve(object_of(body));
  EXPECT_TRUE(config.has_value()) << config.error().to_string();
  return *config == nullptr ? 0 : added(*config);
}

// Counts pins; refuses when told to.
class Pins final : public Residency {
 public:
  Result<void> pin(const std::vector<KeyedProgram>& programs) override {
    if (refuses) return fail(ErrorCode::kInvalidArgument, "too large", "steering");
    for (const KeyedProgram& program : programs) ++counts[program.key.low];
    return {};
  }
  void unpin(const std::vector<KeyedProgram>& programs) override {
    for (const KeyedProgram& program : programs) {
      if (--counts.at(program.key.low) == 0) counts.erase(program.key.low);
    }
  }
  bool has(const std::shared_ptr<const Config>& config) const {
    const auto programs = usual_programs(*config);
    return std::ranges::all_of(
        programs, [&](const KeyedProgram& program) { return counts.contains(program.key.low); });
  }

  std::map<uint64_t, int> counts;
  bool refuses = false;
};

TEST(Library, GlobalThenNamedThenInlineAreOneSum) {
  Library library(test_model(), nullptr);
  EXPECT_EQ(*library.resolve({}), nullptr);
  ASSERT_TRUE(library.add_json(module_of("calm", 10)).has_value());
  EXPECT_EQ(resolved(library, R"({"steering_name": "calm"})"), 10);
  EXPECT_EQ(resolved(library, R"({"steering": {"name": "calm", "scale": -0.5}})"), -5);
  EXPECT_EQ(resolved(library, R"({"steering": {"name": "calm", "scale": 0}})"), 0);
  ASSERT_TRUE(library.set_global(object_of(R"({"vectors": )" + tier(100) + "}")).has_value());
  EXPECT_EQ(resolved(library, "{}"), 100);
  EXPECT_EQ(resolved(library, R"({"steering": {}})"), 100);
  EXPECT_EQ(resolved(library, R"({"steering_name": "calm"})"), 110);
  EXPECT_EQ(resolved(library, R"({"steering": {"name": "calm", "scale": 2}})"), 120);
  EXPECT_EQ(resolved(library, R"({"steering_name": "calm", "steering": {"name": "calm"},
      "steering_vectors": )" + tier(1) +
                                  R"(, "prefill_steering_vectors": )" + tier(0.5) + "}"),
            121.5f);
  ASSERT_TRUE(library.set_global(object_of(R"({"vectors": )" + tier(3) + "}")).has_value());
  EXPECT_EQ(resolved(library, "{}"), 103);
  ASSERT_TRUE(library.set_global(object_of(R"({"replace": true, "vectors": )" + tier(3) + "}"))
                  .has_value());
  EXPECT_EQ(resolved(library, R"({"steering_name": "calm"})"), 13);
  ASSERT_TRUE(library.clear_global().has_value());
  EXPECT_EQ(*library.resolve({}), nullptr);
  EXPECT_EQ(library.global(), nullptr);
}

TEST(Library, OrderOfGroupsIsKeptAcrossSources) {
  Library library(test_model(), nullptr);
  const auto op = [](std::string_view name, int number) {
    return fmt::format(R"({{"op": "{}", "site": "resid_post.1", "vector": {}{}}})", name,
                       unit(number), name == "clamp" ? R"(, "hi": 1)" : "");
  };
  ASSERT_TRUE(library
                  .add_json(object_of(R"({"name": "m", "steering": [)" + op("clamp", 1) + "," +
                                      op("add_norm", 2) + "," + op("ablate", 3) + "]}"))
                  .has_value());
  ASSERT_TRUE(
      library.set_global(object_of(R"({"steering": )" + op("add_renorm", 4) + "}")).has_value());
  const auto config = library.resolve(object_of(R"({"steering": [)" + op("ablate", 5) + "," +
                                                op("patch", 6) + R"(, {"name": "m"}]})"));
  std::vector<tap::OpKind> kinds;
  for (const tap::ProgramOp& one : (*config)->program(1).program->ops) kinds.push_back(one.op.kind);
  using enum tap::OpKind;
  EXPECT_EQ(kinds, (std::vector{kPatch, kAxis, kAxis, kAddRenorm, kAddNorm, kAxis}));
}

TEST(Library, NamedInlineAndScaledContentShareTheirKey) {
  Library library(test_model(), nullptr);
  ASSERT_TRUE(library.add_json(module_of("a", 4)).has_value());
  const auto key = [&](std::string_view body) {
    return (*library.resolve(object_of(body)))->program(1).key;
  };
  const tap::ContentKey named = key(R"({"steering_name": "a"})");
  EXPECT_EQ(named, key(R"({"steering_vectors": )" + tier(4) + "}"));
  EXPECT_EQ(named, key(R"({"steering": {"name": "a", "scale": 1}})"));
  EXPECT_EQ(key(R"({"steering": {"name": "a", "scale": 0.5}})"),
            key(R"({"steering_vectors": )" + tier(2) + "}"));
  // The same config: what it made is kept.
  EXPECT_EQ(*library.resolve(object_of(R"({"steering": {"name": "a", "scale": 0.5}})")),
            *library.resolve(object_of(R"({"steering": {"name": "a", "scale": 0.5}})")));
}

TEST(Library, NamesAreCheckedTakenOnceAndReplacedOnRequest) {
  Library library(test_model(), nullptr);
  for (const char* name : {"", "a b", "a/b", "..\\x", "\xc3\xa9"}) {
    const auto refused = library.add_json(module_of(
        json::serialize(json::value(name)).substr(1, json::serialize(json::value(name)).size() - 2),
        1));
    ASSERT_FALSE(refused.has_value()) << name;
    EXPECT_EQ(refused.error().where, "name");
  }
  EXPECT_FALSE(library.add_json(module_of(std::string(129, 'a'), 1)).has_value());
  ASSERT_TRUE(library.add_json(module_of("a", 1)).has_value());
  const auto held = library.resolve(object_of(R"({"steering_name": "a"})"));
  const auto taken = library.add_json(module_of("a", 2));
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().where, "name");
  EXPECT_EQ(resolved(library, R"({"steering_name": "a"})"), 1);
  ASSERT_TRUE(library.add_json(module_of("a", 2, R"(, "replace": true)")).has_value());
  EXPECT_EQ(resolved(library, R"({"steering_name": "a"})"), 2);
  EXPECT_EQ(added(*held), 1);  // who holds it keeps it
  ASSERT_TRUE(library.remove("a").has_value());
  EXPECT_EQ(library.remove("a").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(library.resolve(object_of(R"({"steering_name": "a"})")).error().code,
            ErrorCode::kNotFound);
  EXPECT_EQ(added(*held), 1);
  EXPECT_FALSE(library.add_json(object_of(R"({"name": "none"})")).has_value());
  EXPECT_EQ(library.add_json(object_of(R"({"vectors": )" + tier(1) + "}")).error().where, "name");
  EXPECT_EQ(library.add_json(module_of("b", 1, R"(, "replace": 1)")).error().where, "replace");
  EXPECT_EQ(library.add_json(module_of("b", 1, R"(, "kind": "additive")")).error().where, "kind");
}

TEST(Library, TheDeviceHoldsWhatRequestsByNameRun) {
  Pins pins;
  Library library(test_model(), &pins);
  const auto calm = *library.add_json(module_of("calm", 1));
  EXPECT_TRUE(pins.has(calm->config));
  ASSERT_TRUE(library.set_global(object_of(R"({"decode_vectors": )" + tier(7) + "}")).has_value());
  const auto both = *library.resolve(object_of(R"({"steering_name": "calm"})"));
  EXPECT_TRUE(pins.has(both));
  EXPECT_TRUE(pins.has(library.global()));
  pins.refuses = true;
  EXPECT_FALSE(library.add_json(module_of("large", 3)).has_value());
  EXPECT_EQ(library.find("large"), nullptr);
  EXPECT_FALSE(library.set_global(object_of(R"({"vectors": )" + tier(9) + "}")).has_value());
  EXPECT_EQ(*library.resolve(object_of(R"({"steering_name": "calm"})")), both);
  pins.refuses = false;
  ASSERT_TRUE(library.clear_global().has_value());
  EXPECT_TRUE(pins.has(calm->config));
  EXPECT_EQ(pins.counts.size(), 1U);
  ASSERT_TRUE(library.add_json(module_of("calm", 2, R"(, "replace": true)")).has_value());
  EXPECT_EQ(pins.counts.size(), 1U);
  ASSERT_TRUE(library.remove("calm").has_value());
  EXPECT_TRUE(pins.counts.empty());
}

TEST(Library, ListsWhatItHolds) {
  Library library(test_model(), nullptr);
  ASSERT_TRUE(library.add_json(module_of("b", 3)).has_value());
  ASSERT_TRUE(library.add_json(module_of("a", -4)).has_value());
  const auto modules = library.modules();
  ASSERT_EQ(modules.size(), 2U);
  const json::object described = describe(*modules[0]);
  EXPECT_EQ(described.at("name"), "a");
  EXPECT_EQ(described.at("source"), "json");
  const json::object& op = described.at("ops").at(0).as_object();
  EXPECT_EQ(op.at("site"), "resid_post");
  EXPECT_EQ(op.at("layer"), 1);
  EXPECT_EQ(op.at("op"), "add");
  EXPECT_EQ(op.at("norm"), 4.0);
}

// Registered, replaced and removed while others resolve: every answer is of one state.
TEST(Library, IsUsedByManyThreads) {
  Pins pins;
  Library library(test_model(), &pins);
  ASSERT_TRUE(library.add_json(module_of("a", 1)).has_value());
  std::atomic<bool> done = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&, i] {
      const json::object body =
          object_of(fmt::format(R"({{"steering": {{"name": "a", "scale": {}}}}})", i + 1));
      while (!done) {
        const auto config = library.resolve(body);
        if (!config) {
          EXPECT_EQ(config.error().code, ErrorCode::kNotFound);
          continue;
        }
        const float value = added(*config) / static_cast<float>(i + 1);
        EXPECT_TRUE(value == 1 || value == 2) << value;
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    const auto replaced = library.add_json(module_of("a", 1 + i % 2, R"(, "replace": true)"));
    EXPECT_TRUE(replaced.has_value());
    EXPECT_TRUE(i % 5 != 0 || library.remove("a").has_value());
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace rudder::steer
