"""python3 tools/test_unit_names.py: what the check of names (unit_names.py) sees, and what it leaves."""

import pathlib
import unittest

import unit_names

SOURCE = r"""
#include <x>
#define RUDDER_MANY(a) \
  int in_a_macro(a)
extern "C" {
int c_function(int);
}
namespace rudder::cache {
inline namespace v1 {
namespace {

using tensor::View;
namespace json = boost::json;
constexpr std::string_view kText = R"x(int in_a_string;)x";  // int in_a_comment;
constexpr int kMany[] = {1'000, '{'};
const auto kLambda = [](int a) { return a; };
template <typename T, size_t N = sizeof(T)>
std::array<T, N> make(std::span<const T> values = {}) {
  int local = 0;
  return {};
}
struct alignas(64) Line final : Base {
  Line() : a_{1}, b_(2) {}
  int a_, b_;
};
enum class Kind : uint8_t { kOne };
int (*pointer)(int);
bool operator==(const Line& a, const Line& b) { return true; }
[[nodiscard]] decltype(kMany) attributed() noexcept(true) { return kMany; }
TEST(Suite, Case) { int in_a_test = 0; }
Line::Line(int a) : a_{a}, b_{a} {}

}  // namespace
static int seen(int a) { return a; }
void everybodys() {}
int Pool::member() { return 0; }
}  // namespace v1
}  // namespace rudder::cache
"""


def own(text):
    return f"namespace rudder::cache {{\nnamespace {{\n{text}\n}}\n}}\n"


def errors(**texts):
    return unit_names.errors(
        (pathlib.PurePosixPath(path.replace("__", "/") + ".cpp"), text) for path, text in texts.items())


class UnitNames(unittest.TestCase):
    def test_names_of_a_source(self):
        names = list(unit_names.names_in(SOURCE))
        self.assertEqual(
            [name.name for name in names if name.is_own],
            ["View", "json", "kText", "kMany", "kLambda", "make", "Line", "Kind", "pointer", "attributed", "seen"])
        self.assertEqual([name.name for name in names if not name.is_own], ["c_function", "everybodys"])
        self.assertEqual({name.scope for name in names}, {"", "rudder::cache::v1"})
        self.assertEqual(next(name.line for name in names if name.name == "kText"), 14)

    def test_what_two_sources_of_a_room_may_not_have(self):
        mine = own("int f(int a) { return a; }")
        self.assertEqual(
            errors(src__rudder__cache__a=mine, src__rudder__cache__b_test=own("\nvoid f();")),
            ["src/rudder/cache/a.cpp:3: f is this source's own, but also in src/rudder/cache/b_test.cpp:4"])
        everybodys = "namespace rudder::cache { void f() {} }"
        self.assertEqual(len(errors(src__rudder__cache__a=everybodys, src__rudder__cache__b=mine)), 1)
        self.assertEqual(len(errors(src__rudder__cache__a=own("using a::X;"), src__rudder__cache__b=own("using b::X;"))), 1)
        self.assertEqual(len(errors(tests__a__a_test=mine, tests__a__harness=mine)), 1)

    def test_what_they_may(self):
        mine = own("int f(int a) { return a; }")
        self.assertEqual(errors(src__rudder__cache__a=mine, src__rudder__ops__b=mine), [])
        self.assertEqual(errors(src__rudder__cache__a=mine + own("void f();")), [])
        self.assertEqual(errors(src__rudder__cache__a=own("using a::X;"), src__rudder__cache__b=own("using a::X;")), [])
        self.assertEqual(
            errors(src__rudder__cache__a=mine, src__rudder__cache__b=mine.replace("cache", "cache::inner")), [])
        self.assertEqual(errors(tests__a__a_test=mine, tests__a__b_test=mine), [])


if __name__ == "__main__":
    unittest.main()
