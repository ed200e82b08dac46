// The tree of a template: made by the parser, walked by the interpreter. Chains (a + b + c,
// x.y[z]|f) are flat lists, so that the tree is only as deep as the source is nested.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace rudder::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

// What may follow a primary expression.
struct Postfix {
  enum class Kind { kAttribute, kItem, kSlice, kCall, kFilter, kTest } kind;
  std::string name;          // attribute, filter, test
  bool negated = false;      // test: "is not"
  ExprPtr item;              // [item]
  ExprPtr begin, end, step;  // [begin:end:step], each may be null
  Arguments arguments;       // call, filter, test
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
  int64_t integer = 0;
  double number = 0;
  std::string text;               // name, string
  std::vector<ExprPtr> operands;  // dict: key, value, key, value
  std::vector<std::string> operators;
  std::vector<Postfix> postfixes;
};

struct Node;
using Block = std::vector<Node>;

// What an assignment or a loop binds: names, or (set only) one field of a namespace.
struct Target {
  std::vector<std::string> names;  // more than one: unpacks
  bool unpacks = false;
  std::string field;  // names[0].field
};

struct MacroNode {
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // default may be null
  Block body;
};

struct Node {
  enum class Kind {
    kText,
    kOutput,    // expr
    kIf,        // branches
    kFor,       // target, expr, condition, body, otherwise
    kSet,       // target = expr
    kSetBlock,  // target = body, through filter (may be null)
    kMacro,     // macro
    kFilter,    // body through filter
    kScope,     // body with bindings (with, generation)
    kBreak,
    kContinue,
  } kind = Kind::kText;
  int line = 0;
  std::string text;
  ExprPtr expr;
  ExprPtr condition;
  std::vector<std::pair<ExprPtr, Block>> branches;  // if, elif ..., else (condition null)
  Target target;
  Block body;
  Block otherwise;
  std::vector<Postfix> filters;
  std::vector<std::pair<Target, ExprPtr>> bindings;
  std::unique_ptr<MacroNode> macro;
};

}  // namespace rudder::text::jinja
