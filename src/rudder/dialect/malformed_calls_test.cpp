// What each dialect's reader makes of calls as models write them when they do not write them well:
// the table malformed_calls.json, a row for each dialect and form of damage.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "rudder/dialect/test_support.h"

namespace rudder::dialect {
namespace {

namespace json = boost::json;

json::array malformed_calls() {
  std::ifstream file(RUDDER_SOURCE_DIR "/src/rudder/dialect/malformed_calls.json");
  std::stringstream text;
  text << file.rdbuf();
  return json::parse(text.str()).as_array();
}

std::string text_of(const json::object& row, std::string_view key) {
  const json::value* value = row.if_contains(key);
  return value == nullptr ? "" : std::string(value->as_string());
}

TEST(MalformedCalls, AreReadAsTheTableSays) {
  for (const json::value& item : malformed_calls()) {
    const json::object& row = item.as_object();
    ParserSetup setup = setup_of(text_of(row, "dialect"), text_of(row, "reasoning"));
    setup.must_call = row.contains("must_call");
    EXPECT_EQ(parse_line(setup, text_of(row, "text")), text_of(row, "returned"))
        << text_of(row, "dialect") << ' ' << text_of(row, "form") << ": " << text_of(row, "text");
  }
}

// The forms of damage that are not of one dialect's marks are there for every dialect.
TEST(MalformedCalls, TheTableHasEveryDialectInEveryForm) {
  std::map<std::string, std::set<std::string>> forms;
  for (const json::value& item : malformed_calls()) {
    const json::object& row = item.as_object();
    EXPECT_TRUE(forms[text_of(row, "dialect")].insert(text_of(row, "form")).second)
        << text_of(row, "dialect") << ' ' << text_of(row, "form") << " twice";
  }
  ASSERT_EQ(forms.size(), tool_dialects().size());
  for (const std::string& form : forms.at("hermes")) {
    for (const ToolDialect& dialect : tool_dialects()) {
      EXPECT_TRUE(forms.at(std::string(dialect.name)).contains(form))
          << dialect.name << ' ' << form;
    }
  }
  EXPECT_GE(forms.at("hermes").size(), 21u);
}

}  // namespace
}  // namespace rudder::dialect
