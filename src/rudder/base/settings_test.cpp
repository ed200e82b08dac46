#include "rudder/base/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace rudder {
namespace {

TEST(HumanInteger, SuffixesAndRefusals) {
  EXPECT_EQ(parse_human_integer("32K").value(), 32768);
  EXPECT_EQ(parse_human_integer("4GiB").value(), int64_t{4} << 30);
  EXPECT_EQ(parse_human_integer("512m").value(), int64_t{512} << 20);
  EXPECT_EQ(parse_human_integer("7").value(), 7);
  for (const char* bad : {"", "-1", "+1", "1.5K", "K", "9999999999G", "1Q", "1KK", " 1", "0x10"}) {
    EXPECT_FALSE(parse_human_integer(bad)) << bad;
  }
}

TEST(SettingsTable, SetsChecksAndHints) {
  int32_t seqs = 8;
  bool cache = true;
  std::string dtype = "auto";
  SettingsTable table;
  table.section("sched");
  table.add("max-num-seqs", &seqs, 1, 1024, "Sequences in one step.");
  table.add("enable-prefix-caching", &cache, "Reuse KV of equal prefixes.");
  table.add_choice("dtype", &dtype, {"auto", "float32", "bfloat16"}, "Weights in memory.");

  EXPECT_TRUE(table.set("max-num-seqs", "1K"));
  EXPECT_EQ(seqs, 1024);
  EXPECT_FALSE(table.set("max-num-seqs", "0"));
  EXPECT_TRUE(table.set("enable-prefix-caching", "false"));
  EXPECT_FALSE(cache);
  EXPECT_FALSE(table.set("dtype", "int3"));
  const Result<void> unknown = table.set("max-num-seq", "4");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("--max-num-seqs"), std::string::npos);
  EXPECT_NE(table.help_text().find("--[no-]enable-prefix-caching"), std::string::npos);
}

TEST(SettingsTable, WordsMayBeInAnyCase) {
  SettingsTable table;
  bool on = false;
  std::string level = "info";
  table.add("on", &on, "A switch.");
  table.add_choice("level", &level, {"debug", "info"}, "A choice.");
  for (const char* yes : {"True", "TRUE", "Yes", "On", "1"}) {
    on = false;
    EXPECT_TRUE(table.set("on", yes).has_value() && on) << yes;
  }
  for (const char* no : {"False", "FALSE", "No", "OFF", "0"}) {
    on = true;
    EXPECT_TRUE(table.set("on", no).has_value() && !on) << no;
  }
  EXPECT_TRUE(table.set("level", "DEBUG").has_value());
  EXPECT_EQ(level, "debug") << "as it is listed";
  EXPECT_FALSE(table.set("on", "truely").has_value());
  EXPECT_FALSE(table.set("level", "warning").has_value());
}

TEST(SettingsTable, WordsOfOtherSystemsAreTakenWhereTheirMeaningIsAChoice) {
  SettingsTable table;
  std::string level = "info";
  table.add_choice("level", &level, {"debug", "info", "warn", "error"}, "A choice.");
  for (const auto& [theirs, ours] : {std::pair{"WARNING", "warn"},
                                     {"Warning", "warn"},
                                     {"CRITICAL", "error"},
                                     {"fatal", "error"},
                                     {"trace", "debug"}}) {
    EXPECT_TRUE(table.set("level", theirs).has_value()) << theirs;
    EXPECT_EQ(level, ours);
  }
  EXPECT_FALSE(table.set("level", "notset").has_value());
}

TEST(SettingsTable, AChoiceMayHaveAPath) {
  SettingsTable table;
  std::string device = "auto";
  table.add_choice("device", &device, {"auto", "cpu", "plugin:PATH"}, "A choice.");
  EXPECT_TRUE(table.set("device", "plugin:/Some/Path.so").has_value());
  EXPECT_EQ(device, "plugin:/Some/Path.so");
  EXPECT_TRUE(table.set("device", "cpu").has_value());
  for (const char* wrong : {"plugin", "plugin:", "cpu:/path", "lugin:/path"}) {
    EXPECT_FALSE(table.set("device", wrong).has_value()) << wrong;
  }
  EXPECT_EQ(device, "cpu");
}

TEST(SettingsTable, ANumberOrAuto) {
  std::optional<double> bound;
  SettingsTable table;
  table.add("bound", &bound, 0.0, 10.0, "A bound.");
  EXPECT_EQ(table.find("bound")->default_value, "auto");
  EXPECT_TRUE(table.set("bound", "2.5"));
  EXPECT_EQ(bound, 2.5);
  EXPECT_EQ(table.find("bound")->get(), "2.5");
  for (const char* bad : {"", "Auto", "11", "-1", "nan", "2.5x"}) {
    EXPECT_FALSE(table.set("bound", bad)) << bad;
  }
  EXPECT_TRUE(table.set("bound", "0"));
  EXPECT_EQ(bound, 0);
  EXPECT_TRUE(table.set("bound", "auto"));
  EXPECT_EQ(bound, std::nullopt);
}

// Sets variables of the environment for as long as it lives.
class Variables {
 public:
  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  ~Variables() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

// A setting of each type, with names that a service called rudder, or like a part of one of our
// names, makes variables of.
struct Everything {
  Everything() {
    table.add("port", &port, 0, 65535, "A number.");
    table.add("switch-port", &flag, "A switch.");
    table.add("float-port", &real, 0.0, 1.0, "A float.");
    table.add("bound-port", &bound, 0.0, 1.0, "A float or auto.");
    table.add_bytes("bytes-port", &bytes, "Bytes.");
    table.add_choice("choice-port", &choice, {"a", "b"}, "A choice.");
    table.add("text-port", &text, "A text.");
    table.add("list-port", &list, "A list.");
    table.add("name", &name, "A text that is a name.");
    table.add("served-model-name", &names, "A list of names.");
    table.add("base-url", &url, "A URI.");
  }

  int32_t port = 8000;
  bool flag = true;
  double real = 0.5;
  std::optional<double> bound;
  int64_t bytes = 7;
  std::string choice = "a", text = "unset", name = "unset", url;
  std::vector<std::string> list, names;
  SettingsTable table;
};

TEST(SettingsTable, WhatPlatformsSetForAServiceIsPassedOver) {
  const Everything before;
  for (const char* scheme : {"tcp", "udp", "sctp"}) {
    Variables variables;
    for (const char* service : {"RUDDER", "RUDDER_SWITCH", "RUDDER_FLOAT", "RUDDER_BOUND",
                                "RUDDER_BYTES", "RUDDER_CHOICE", "RUDDER_TEXT", "RUDDER_LIST"}) {
      const std::string name = service;
      const std::string uri = std::string(scheme) + "://10.96.31.7:80";
      variables.set(name + "_PORT", uri);
      variables.set(name + "_PORT_80_TCP", uri);
      variables.set(name + "_PORT_80_TCP_ADDR", "10.96.31.7");
      variables.set(name + "_PORT_80_TCP_PORT", "80");
      variables.set(name + "_PORT_80_TCP_PROTO", "tcp");
      variables.set(name + "_SERVICE_HOST", "10.96.31.7");
      variables.set(name + "_SERVICE_PORT", "80");
      variables.set(name + "_SERVICE_PORT_HTTP", "80");
    }
    variables.set("RUDDER_NAME", "/consumer/rudder");
    variables.set("RUDDER_SERVED_MODEL_NAME", "/a/b/rudder-served.model");
    Everything now;
    const Result<void> read = now.table.read_environment();
    ASSERT_TRUE(read) << read.error().message;
    for (const Setting& setting : now.table.all()) {
      EXPECT_EQ(setting.get(), before.table.find(setting.name)->get()) << setting.name;
      EXPECT_FALSE(setting.is_set) << setting.name;
    }
  }
}

TEST(SettingsTable, WhatIsMeantIsRead) {
  Variables variables;
  variables.set("RUDDER_PORT", "8080\n");
  variables.set("RUDDER_BASE_URL", "http://10.0.0.1:80");
  variables.set("RUDDER_NAME", "/models/rudder-7b");
  variables.set("RUDDER_LIST_PORT", " key of a secret \r\n");
  variables.set("RUDDER_TEXT_PORT", " \n");
  Everything now;
  ASSERT_TRUE(now.table.read_environment());
  EXPECT_EQ(now.port, 8080);
  EXPECT_EQ(now.url, "http://10.0.0.1:80");
  EXPECT_EQ(now.name, "/models/rudder-7b");
  EXPECT_EQ(now.list, std::vector<std::string>{"key of a secret"});
  EXPECT_EQ(now.text, "unset");
}

TEST(SettingsTable, WhatIsOverriddenIsNotJudged) {
  Variables variables;
  variables.set("RUDDER_PORT", "no number");
  variables.set("RUDDER_LIST_PORT", "from the environment");
  Everything now;
  const Result<void> judged = now.table.read_environment();
  ASSERT_FALSE(judged);
  EXPECT_NE(judged.error().message.find("RUDDER_PORT"), std::string::npos);
  EXPECT_EQ(judged.error().where, "port");
  Everything told;
  ASSERT_TRUE(told.table.set("port", "8001"));
  ASSERT_TRUE(told.table.set("list-port", "a flag's"));
  ASSERT_TRUE(told.table.read_environment());
  EXPECT_EQ(told.port, 8001);
  EXPECT_EQ(told.list, std::vector<std::string>{"a flag's"});
}

}  // namespace
}  // namespace rudder
