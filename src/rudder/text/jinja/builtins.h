// The filters, tests, methods and global functions that templates may use, in tables. The tables
// are constants; their functions run inside one render, and raise as Python does.
#pragma once

#include <span>
#include <string_view>

#include "rudder/text/jinja/arguments.h"
#include "rudder/text/jinja/value.h"

namespace rudder::text::jinja {

class Interpreter;

struct Filter {
  std::string_view name;
  Signature signature;
  Value (*bound)(Interpreter&, const Value&, const Args&);
  // Instead of the above: takes any arguments.
  Value (*free)(Interpreter&, const Value&, const Call&) = nullptr;
  bool in_context = false;  // it may call others, so its result is no constant
};

struct Test {
  std::string_view name;
  Signature signature;
  bool (*run)(Interpreter&, const Value&, const Args&);
};

struct Method {
  std::string_view name;
  Signature signature;
  Value (*bound)(Interpreter&, const Value&, const Args&);  // null: changes its object, so unsafe
  Value (*free)(Interpreter&, const Value&, const Call&) = nullptr;
};

// Null for an unknown name.
const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);
const Method* find_method(const Value& object, std::string_view name);
const Method* find_string_method(std::string_view name);
bool is_global(std::string_view name);

Value apply_filter(Interpreter& in, const Filter& filter, const Value& value, const Call& call);
bool apply_test(Interpreter& in, const Test& test, const Value& value, const Call& call);
Value call_method(Interpreter& in, const Method& method, const Value& object, const Call& call);
Value call_global(Interpreter& in, std::string_view name, const Call& call);
// An attribute that is no method (loop.index, ns.field); missing where there is none.
Value property(Interpreter& in, const Value& object, std::string_view name);

// Parts of the filters' table, by file.
std::span<const Filter> text_filters();
std::span<const Filter> number_filters();
std::span<const Filter> item_filters();
std::span<const Filter> lazy_filters();

}  // namespace rudder::text::jinja
