// The tree of a template: made by the parser, completed by the resolver (variables, filters and
// tests), walked by the interpreter. Chains (a + b + c, x.y[z]|f) are flat lists, so that the tree
// is only as deep as the source is nested.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rudder::text::jinja {

struct Expr;
struct Filter;
struct Test;
using ExprPtr = std::unique_ptr<Expr>;

// A variable: how many functions out of the current one, and its number there.
struct SlotRef {
  int hops = 0;
  int slot = 0;
};

// What becomes of a variable when its frame is entered.
struct Load {
  enum class Kind {
    kParameter,  // nothing: it is set by what enters
    kNothing,    // it has no value yet
    kAlias,      // the value of the same name further out
    kResolve,    // a global of that name
  } kind = Kind::kNothing;
  int slot = 0;
  SlotRef from;
  std::string name;
};
// The variables that a block brings with it.
using Frame = std::vector<Load>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr unpacked, unpacked_named;  // *a, **a
};

// What may follow a primary expression.
struct Postfix {
  enum class Kind { kAttribute, kItem, kSlice, kCall, kFilter, kTest } kind = Kind::kCall;
  int line = 0;
  std::string name;          // attribute, filter, test
  bool negated = false;      // test: "is not"
  ExprPtr item;              // [item]
  ExprPtr begin, end, step;  // [begin:end:step], each may be null
  Arguments arguments;       // call, filter, test
  const Filter* filter = nullptr;
  const Test* test = nullptr;
};

struct Expr {
  enum class Kind {
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,
    kName,
    kList,
    kTuple,
    kDict,
    kNot,
    kNegate,
    kPlus,
    kAnd,      // of all operands
    kOr,       // of all operands
    kChain,    // operands[0] operators[0] operands[1] ..., from left to right
    kCompare,  // the same, as Python chains comparisons
    kTernary,  // operands: condition, then, else (may be absent)
    kPostfix,  // operands[0] with postfixes
  } kind = Kind::kNone;
  int line = 0;
  bool boolean = false;
  __int128 integer = 0;
  double number = 0;
  std::string text;               // name, string
  SlotRef variable;               // name
  std::vector<ExprPtr> operands;  // dict: key, value, key, value
  std::vector<std::string> operators;
  int negative_power = -1;  // of the operators: -(|left| ** right)
  std::vector<Postfix> postfixes;
};

struct Node;
using Block = std::vector<Node>;

// What an assignment or a loop binds: a name, one field of a namespace, or several of them.
struct Target {
  std::string name;
  std::string field;          // of the namespace `name`, if not empty
  std::vector<Target> items;  // of a tuple
  bool is_tuple = false;
  SlotRef variable;
};

// A macro, or the body of a call block.
struct MacroNode {
  std::string name;  // empty inside a call block
  int line = 0;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // default may be null
  Block body;
  // By the resolver.
  Frame frame;
  int slots = 0;
  std::vector<int> parameter_slots;
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;  // -1: not taken
  bool takes_caller = false;
  bool names_caller = false;  // among its parameters
};

struct Node {
  enum class Kind {
    kText,
    kOutput,     // expr
    kIf,         // branches
    kFor,        // target, expr, condition, body, otherwise
    kSet,        // target = expr
    kSetBlock,   // target = body, through filters
    kMacro,      // macro
    kCallBlock,  // expr(arguments) with `macro` as its caller; without expr, the macro itself
    kFilter,     // body through filters
    kWith,       // body with bindings
    kBreak,
    kContinue,
  } kind = Kind::kText;
  int line = 0;
  std::string text;
  ExprPtr expr;
  Arguments arguments;
  ExprPtr condition;
  std::vector<std::pair<ExprPtr, Block>> branches;  // if, elif ..., else (condition null)
  Target target;
  Block body;
  Block otherwise;
  bool recursive = false;
  std::vector<Postfix> filters;
  std::vector<std::pair<Target, ExprPtr>> bindings;
  std::unique_ptr<MacroNode> macro;
  // By the resolver.
  Frame frame, else_frame, test_frame;
  SlotRef variable;        // of a macro: where it is kept
  Target test_target;      // the target as the condition's function sees it
  int test_slots = 0;      // variables of the condition's function
  int function_slots = 0;  // variables of a recursive loop's function
  int loop_slot = -1;      // of the variable `loop`, if anything reads it
};

}  // namespace rudder::text::jinja
