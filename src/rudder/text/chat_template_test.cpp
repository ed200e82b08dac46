#include "rudder/text/chat_template.h"
#include "rudder/base/cpu_time.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>

namespace rudder::text {
namespace {

namespace json = boost::json;

Result<std::string> render(std::string_view source, const json::object& context = {},
                           const RenderLimits& limits = {}) {
  RUDDER_TRY(const ChatTemplate parsed, ChatTemplate::parse(source));
  return parsed.render(context, limits);
}

std::string text(std::string_view source, const json::object& context = {}) {
  const auto result = render(source, context);
  EXPECT_TRUE(result.has_value()) << source << ": " << result.error().to_string();
  return result.value_or("");
}

Error error(std::string_view source, const json::object& context = {}) {
  const auto result = render(source, context);
  EXPECT_FALSE(result.has_value()) << source << " gave " << *result;
  return result ? Error{} : result.error();
}

// What jinja2 does is compared by tools/template_diff; here is what it cannot show.

TEST(ChatTemplate, WhitespaceControl) {
  EXPECT_EQ(text("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(text("a  {{- 1 -}}  b"), "a1b");
  EXPECT_EQ(text("  {%+ if true %}x{% endif %}"), "  x");
  EXPECT_EQ(text("{# gone #}\r\nx\r\n"), "x");
}

TEST(ChatTemplate, KeyOrderIsKept) {
  const json::object context{{"d", {{"z", 1}, {"a", 2}, {"m", nullptr}}}};
  EXPECT_EQ(text("{{ d | tojson }}", context), R"({"z": 1, "a": 2, "m": null})");
  EXPECT_EQ(text("{% for k in d %}{{ k }}{% endfor %}", context), "zam");
}

TEST(ChatTemplate, UndefinedPrintsNothingButHasNoAttributes) {
  EXPECT_EQ(text("[{{ x }}]"), "[]");
  EXPECT_EQ(error("{{ x.y }}").code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(text("{{ d.x }}", {{"d", json::object{}}}), "");
}

TEST(ChatTemplate, RaiseExceptionIsTheClientsError) {
  const Error raised = error("line\n{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(raised.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(raised.message, "roles must alternate");
  EXPECT_EQ(raised.where, "chat template line 2");
}

TEST(ChatTemplate, StrftimeNowShowsTheGivenTime) {
  const auto parsed = ChatTemplate::parse("{{ strftime_now('%Y-%m-%d') }}");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(*parsed->render({}, {}, std::chrono::system_clock::from_time_t(1'700'000'000)),
            "2023-11-14");
}

TEST(ChatTemplate, WhatIsOutsideTheSubsetIsNamed) {
  for (const char* source : {"{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}",
                             "{% do x %}", "{% block a %}{% endblock %}"}) {
    EXPECT_EQ(error(source).code, ErrorCode::kUnsupported) << source;
  }
  for (const auto& [source, named] : {
           std::pair("{{ 'a' | urlize }}", "urlize"),
           std::pair("{{ [1, 2] | random }}", "random"),
           std::pair("{{ ['a' * 50, 'b' * 50] | pprint }}", "pprint"),
           std::pair("{{ 'well-known' | wordwrap(5) }}", "wordwrap"),
           std::pair("{{ lipsum() }}", "lipsum"),
       }) {
    const Error refused = error(source);
    EXPECT_EQ(refused.code, ErrorCode::kUnsupported) << source;
    EXPECT_NE(refused.message.find(named), std::string::npos) << refused.message;
  }
  EXPECT_EQ(error("{{ x").where, "line 1");
  EXPECT_EQ(error("a\n{% if %}").where, "line 2");
}

TEST(ChatTemplate, SaysWhatItReads) {
  const auto parsed = ChatTemplate::parse(
      "{% for m in messages %}{% for p in m['content'] %}{{ p }}{% endfor %}{% endfor %}");
  ASSERT_TRUE(parsed.has_value());
  EXPECT_TRUE(parsed->loops_over_content());
  EXPECT_TRUE(parsed->reads_global("messages"));
  EXPECT_FALSE(parsed->reads_global("tools"));
  const auto plain = ChatTemplate::parse("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_FALSE(plain->loops_over_content());
  const auto renamed = ChatTemplate::parse(
      "{% for m in messages %}{% set c = m.content %}{% for p in c %}{% endfor %}{% endfor %}");
  EXPECT_TRUE(renamed->loops_over_content());
  const auto words = ChatTemplate::parse(
      "{% if m.role in ['developer'] and 'thinking' in m and m.a.b %}{{ name }}{% endif %}");
  for (const char* word : {"developer", "thinking", "role", "b"}) {
    EXPECT_TRUE(words->knows_word(word)) << word;
  }
  for (const char* word : {"m", "name", "think", "system"}) {
    EXPECT_FALSE(words->knows_word(word)) << word;
  }
}

std::string repeat(std::string_view unit, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += unit;
  return out;
}

// Each must end in a typed error, soon: under 0.1 s of a core in an optimised build. The bound
// leaves room for sanitizers; unbounded, each would run for minutes, exhaust memory or overflow the
// stack.
#if defined(__SANITIZE_THREAD__)
constexpr double kMostSeconds = 20;
#else
constexpr double kMostSeconds = 2;
#endif
TEST(ChatTemplate, BombsAreDefused) {
  const std::string chain =
      "{% macro a(n) %}{{ b(n) }}{% endmacro %}{% macro b(n) %}{{ a(n) }}"
      "{% endmacro %}{{ a(1) }}";
  const std::vector<std::string> bombs = {
      "{{ " + repeat("(", 100'000),
      "{{ " + repeat("(", 100'000) + "1" + repeat(")", 100'000) + " }}",
      "{{ " + repeat("[", 50'000) + " }}",
      "{{ " + repeat("not ", 100'000) + "x }}",
      "{{ " + repeat("-", 100'000) + "1 }}",
      "{{ " + repeat("{'a':", 10'000) + " }}",
      "{{ " + repeat("1 if ", 10'000) + " }}",
      "{{ x" + repeat("[x", 10'000) + " }}",
      repeat("{% if true %}", 10'000) + repeat("{% endif %}", 10'000),
      repeat("{% for x in y %}", 10'000),
      "{{ range(1000000000) | list }}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{{ 'x' * 100000000000 }}",
      "{{ [0] * 100000000000 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% endfor %}{{ ns.l == ns.l + [] }}{{ ns.l | tojson }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
      "{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}"
      "{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(s) %}{{ m(s ~ s) }}{{ m(s) }}{% endmacro %}{{ m('x') }}",
      chain,
      "{{ 'aaaaaaaaaa' | replace('', 'x' * 10000000) }}",
      "{{ ('a' * 1000000) | replace('a', 'b' * 1000) }}",
      "{{ 10 ** 1000000000 ** 10 }}",
      "{{ 'x' * 10 ** 9 }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '%.1000000000f' % 1 }}",
      "{{ '%*d' % (10 ** 9, 1) }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ '{:.1000000000f}'.format(1.0) }}",
      "{{ '{:>{}}'.format('x', 10 ** 9) }}",
      "{{ 'x'.center(10 ** 9) }}{{ 'x'.zfill(10 ** 9) }}",
      "{{ '\t'.expandtabs(10 ** 9) }}",
      "{{ 'x' | indent(10 ** 9, true) }}",
      "{{ [1] | tojson(indent=10 ** 9) }}",
      "{{ [1] | batch(10 ** 9, 'x') | list }}",
      "{{ [1] | slice(10 ** 9) | list }}",
      "{{ range(99999) | map('list') | list }}",
      "{{ (range(99999) | list) * 1000 }}",
      "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
      "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
      "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall "
      "%}"
      "{% endmacro %}{{ n() }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor "
      "%}",
      "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l | map('list') %}"
      "{% endfor %}{{ ns.l | list }}",
      "{% set ns = namespace(l=namespace()) %}{% for i in range(99999) %}"
      "{% set ns.l = namespace(a=ns.l) %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l={}) %}{% for i in range(99999) %}{% set ns.l = {1: ns.l} %}{% "
      "endfor %}",
      "{% set ns = namespace(a=1) %}{% set ns.b = ns %}{{ ns }}",
      "{% for i in range(9) %}{% set l = loop %}{{ loop.changed(loop) }}{% endfor %}{{ loop() }}",
      "{{ range(99999) | unique | list }}",
      "{{ range(99999) | sort | groupby('x') | tojson }}",
      "{{ dict(range(9) | map('string') | batch(2)) }}",
      "{{ ('a ' * 4000000) | wordwrap(1) }}",
      "{{ ('<' * 8000000) | e | e | e }}",
      "{{ strftime_now('%0999999d') }}",
      "{% set d = dict(range(2000) | batch(2)) %}{% for i in range(99999) %}"
      "{% set x = namespace(d) %}{% endfor %}",
      "{{ ('a' * 9000000).rfind('b' + 'a' * 4000000) }}",
      "{{ (['x' * 1000000] * 1000) | join('y' * 1000000) }}",
      "{% set x %}" + repeat("{% for i in range(9999) %}", 3) + "{{ 'x' * 1000 }}" +
          repeat("{% endfor %}", 3) + "{% endset %}",
      "{{ ('a\\n' * 1000000) | indent(1000) }}",
      "{{ ('ab' * 4000000) | list }}",
      "{{ range(99999) | map('string') | unique | list | length }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns.x.x.x == ns }}{{ m() }}",
      "{{ ('{' * 100000) | tojson * 1000000 }}",
      "{{ (('a' * 1000000).split('')) }}",
      "{{ (('a ' * 8000000).split()) }}",
  };
  for (const std::string& bomb : bombs) {
    const double start = thread_cpu_seconds();
    const auto result = render(bomb);
    const double seconds = thread_cpu_seconds() - start;
    EXPECT_FALSE(result.has_value()) << bomb.substr(0, 100);
    EXPECT_LT(seconds, kMostSeconds) << bomb.substr(0, 100);
    if (!result) {
      const ErrorCode code = result.error().code;
      EXPECT_TRUE(code == ErrorCode::kTooLarge || code == ErrorCode::kInvalidArgument ||
                  code == ErrorCode::kUnsupported)
          << bomb.substr(0, 100) << result.error().to_string();
    }
  }
}

TEST(ChatTemplate, EachLimitIsNamed) {
  const auto limited = [](std::string_view source, const RenderLimits& limits) {
    const auto result = render(source, {}, limits);
    EXPECT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kTooLarge);
    return result ? "" : result.error().message;
  };
  const char* loop = "{% for i in range(1000) %}0123456789{% endfor %}";
  EXPECT_NE(limited(loop, {.max_steps = 500}).find("steps"), std::string::npos);
  EXPECT_NE(limited(loop, {.max_output_bytes = 500}).find("output"), std::string::npos);
  EXPECT_NE(limited(loop, {.max_memory_bytes = 500}).find("memory"), std::string::npos);
  EXPECT_NE(limited("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(9) }}",
                    {.max_depth = 5})
                .find("depth"),
            std::string::npos);
}

// A long ordinary conversation stays far inside the default limits.
TEST(ChatTemplate, LongConversationsFit) {
  json::array messages;
  for (int i = 0; i < 2000; ++i) {
    messages.push_back(
        {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(2000, 'x')}});
  }
  const std::string rendered = text(
      "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] | trim + '\\n' }}"
      "{% endfor %}",
      {{"messages", messages}});
  EXPECT_GT(rendered.size(), 4'000'000u);
}

}  // namespace
}  // namespace rudder::text
