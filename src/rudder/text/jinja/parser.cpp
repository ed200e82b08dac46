#include "rudder/text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "rudder/text/jinja/expression_parser.h"
#include "rudder/text/jinja/lexer.h"

namespace rudder::text::jinja {
namespace {

using Kind = Token::Kind;

// Statements; the tree's upper half.
class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Result<Template> run() {
    RUDDER_TRY_VOID(block({}, out_.body));
    out_.names = std::move(names_);
    out_.words = std::move(words_);
    return std::move(out_);
  }

 private:
  Result<void> end_block() {
    if (now().kind != Kind::kBlockEnd) return error(fmt::format("unexpected '{}'", now().text));
    ++pos_;
    return {};
  }

  // The rest of a tag that opens a block, the block, and the name of the tag that ends it, which
  // is left as the last token taken.
  Result<void> body(const std::vector<std::string_view>& ends, Block& out) {
    take_op(":");
    RUDDER_TRY_VOID(end_block());
    RUDDER_TRY_VOID(block(ends, out));
    ++pos_;
    return {};
  }
  const std::string& last_word() const { return tokens_[pos_ - 1].text; }

  // The body of a function of its own, which no break leaves.
  Result<void> function_body(std::string_view end, Block& out) {
    const int loops = std::exchange(loops_, 0);
    RUDDER_TRY_VOID(body({end}, out));
    loops_ = loops;
    return {};
  }

  // Nodes up to a tag whose name is in `ends`; leaves pos_ on that name.
  Result<void> block(const std::vector<std::string_view>& ends, Block& out) {
    const Nested nested(depth_);
    RUDDER_TRY_VOID(check_depth());
    for (;;) {
      if (now().kind == Kind::kText) {
        Node node;
        node.kind = Node::Kind::kText;
        node.text = now().text;
        ++pos_;
        out.push_back(std::move(node));
      } else if (now().kind == Kind::kOutput) {
        Node node = begin(Node::Kind::kOutput);
        RUDDER_TRY(node.expr, tuple_expression(TupleIn::kTag, true));
        if (now().kind != Kind::kOutputEnd) {
          return error(fmt::format("unexpected '{}'", now().text));
        }
        ++pos_;
        out.push_back(std::move(node));
      } else if (now().kind == Kind::kBlock) {
        ++pos_;
        if (now().kind != Kind::kName) return error("expected a tag name");
        if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return {};
        RUDDER_TRY_VOID(statement(out));
        RUDDER_TRY_VOID(end_block());
      } else if (ends.empty()) {
        return {};
      } else {
        return error(fmt::format("expected '{}' before the end", ends[0]));
      }
    }
  }

  Node begin(Node::Kind kind) {
    Node node;
    node.kind = kind;
    node.line = now().line;
    ++pos_;
    return node;
  }

  // Up to the end of its last tag.
  Result<void> statement(Block& out) {
    const std::string name = now().text;
    if (name == "if") return if_statement(out);
    if (name == "for") return for_statement(out);
    if (name == "set") return set_statement(out);
    if (name == "macro") return macro_statement(out);
    if (name == "call") return call_statement(out);
    if (name == "generation") return generation_statement(out);
    if (name == "with") return with_statement(out);
    if (name == "filter") return filter_statement(out);
    if (name == "print") return print_statement(out);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return error(fmt::format("'{}' outside a loop", name));
      out.push_back(begin(name == "break" ? Node::Kind::kBreak : Node::Kind::kContinue));
      return {};
    }
    static constexpr std::array<std::string_view, 10> kKnown = {
        "extends", "include",    "import", "from",  "block",
        "do",      "autoescape", "trans",  "debug", "pluralize"};
    if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) {
      return unsupported(fmt::format("tag '{}'", name));
    }
    return error(fmt::format("unknown tag '{}'", name));
  }

  Result<void> if_statement(Block& out) {
    Node node = begin(Node::Kind::kIf);
    do {
      ExprPtr condition;
      RUDDER_TRY(condition, tuple_expression(TupleIn::kTag, false));
      node.branches.emplace_back(std::move(condition), Block{});
      RUDDER_TRY_VOID(body({"endif", "elif", "else"}, node.branches.back().second));
    } while (last_word() == "elif");
    if (last_word() == "else") {
      node.branches.emplace_back(nullptr, Block{});
      RUDDER_TRY_VOID(body({"endif"}, node.branches.back().second));
    }
    out.push_back(std::move(node));
    return {};
  }

  Result<void> for_statement(Block& out) {
    Node node = begin(Node::Kind::kFor);
    RUDDER_TRY(node.target, target(TupleIn::kForTarget, false));
    if (!take_word("in")) return error("expected 'in'");
    RUDDER_TRY(node.expr, tuple_expression(TupleIn::kForValues, false));
    if (is_content(*node.expr)) out_.loops_over_content = true;
    if (take_word("if")) {
      RUDDER_TRY(node.condition, expression());
    }
    node.recursive = take_word("recursive");
    const int outer = loops_;
    ++loops_;
    RUDDER_TRY_VOID(body({"endfor", "else"}, node.body));
    loops_ = node.recursive ? 0 : outer;
    if (last_word() == "else") RUDDER_TRY_VOID(body({"endfor"}, node.otherwise));
    loops_ = outer;
    out.push_back(std::move(node));
    return {};
  }

  Result<void> set_statement(Block& out) {
    Node node = begin(Node::Kind::kSet);
    RUDDER_TRY(node.target, target(TupleIn::kTag, true));
    if (take_op("=")) {
      RUDDER_TRY(node.expr, tuple_expression(TupleIn::kTag, true));
      if (is_content(*node.expr) && node.target.field.empty()) {
        content_names_.insert(node.target.name);
      }
    } else {
      node.kind = Node::Kind::kSetBlock;
      while (take_op("|")) RUDDER_TRY_VOID(filter(node.filters));
      RUDDER_TRY_VOID(body({"endset"}, node.body));
    }
    out.push_back(std::move(node));
    return {};
  }

  Result<void> signature(MacroNode& macro) {
    RUDDER_TRY_VOID(expect_op("("));
    while (!is_op(")")) {
      if (!macro.parameters.empty()) RUDDER_TRY_VOID(expect_op(","));
      RUDDER_TRY(std::string name, assignable_name());
      for (const auto& [known, value] : macro.parameters) {
        if (known == name) return error(fmt::format("a second parameter '{}'", name));
      }
      ExprPtr fallback;
      if (take_op("=")) {
        RUDDER_TRY(fallback, expression());
      } else if (!macro.parameters.empty() && macro.parameters.back().second != nullptr) {
        return error("a parameter without a default after one with it");
      }
      macro.parameters.emplace_back(std::move(name), std::move(fallback));
    }
    return expect_op(")");
  }

  Node begin_macro(Node::Kind kind) {
    Node node = begin(kind);
    node.macro = std::make_unique<MacroNode>();
    node.macro->line = node.line;
    return node;
  }

  Result<void> macro_statement(Block& out) {
    Node node = begin_macro(Node::Kind::kMacro);
    RUDDER_TRY(node.macro->name, assignable_name());
    RUDDER_TRY_VOID(signature(*node.macro));
    RUDDER_TRY_VOID(function_body("endmacro", node.macro->body));
    out.push_back(std::move(node));
    return {};
  }

  Result<void> call_statement(Block& out) {
    Node node = begin_macro(Node::Kind::kCallBlock);
    if (is_op("(")) RUDDER_TRY_VOID(signature(*node.macro));
    RUDDER_TRY(node.expr, expression());
    if (node.expr->kind != Expr::Kind::kPostfix ||
        node.expr->postfixes.back().kind != Postfix::Kind::kCall) {
      return error("expected a call");
    }
    node.arguments = std::move(node.expr->postfixes.back().arguments);
    node.expr->postfixes.pop_back();
    for (const auto& [name, value] : node.arguments.named) {
      if (name == "caller") return error("the argument 'caller' is given twice");
    }
    RUDDER_TRY_VOID(function_body("endcall", node.macro->body));
    out.push_back(std::move(node));
    return {};
  }

  // Marks the assistant's text; it shows as its body, which is a call block's.
  Result<void> generation_statement(Block& out) {
    Node node = begin_macro(Node::Kind::kCallBlock);
    RUDDER_TRY_VOID(function_body("endgeneration", node.macro->body));
    out.push_back(std::move(node));
    return {};
  }

  Result<void> with_statement(Block& out) {
    Node node = begin(Node::Kind::kWith);
    while (now().kind != Kind::kBlockEnd) {
      if (!node.bindings.empty()) RUDDER_TRY_VOID(expect_op(","));
      RUDDER_TRY(Target bound, target(TupleIn::kTag, false));
      RUDDER_TRY_VOID(expect_op("="));
      ExprPtr value;
      RUDDER_TRY(value, expression());
      node.bindings.emplace_back(std::move(bound), std::move(value));
    }
    RUDDER_TRY_VOID(body({"endwith"}, node.body));
    out.push_back(std::move(node));
    return {};
  }

  Result<void> filter_statement(Block& out) {
    Node node = begin(Node::Kind::kFilter);
    RUDDER_TRY_VOID(filter(node.filters));
    while (take_op("|")) RUDDER_TRY_VOID(filter(node.filters));
    RUDDER_TRY_VOID(body({"endfilter"}, node.body));
    out.push_back(std::move(node));
    return {};
  }

  Result<void> print_statement(Block& out) {
    Node node = begin(Node::Kind::kOutput);
    for (bool first = true; now().kind != Kind::kBlockEnd; first = false) {
      if (!first) RUDDER_TRY_VOID(expect_op(","));
      Node item;
      item.kind = Node::Kind::kOutput;
      item.line = node.line;
      RUDDER_TRY(item.expr, expression());
      out.push_back(std::move(item));
    }
    return {};
  }

  Result<std::string> assignable_name() {
    for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
      if (is_word(constant)) return error(fmt::format("'{}' cannot be assigned to", constant));
    }
    return expect_name();
  }

  // A name, several with commas, or in brackets again.
  Result<Target> target(TupleIn where, bool allows_field) {
    const Nested nested(depth_);
    RUDDER_TRY_VOID(check_depth());
    Target tuple;
    while (!ends_tuple(where)) {
      if (take_op("(")) {
        RUDDER_TRY(Target item, target(TupleIn::kBrackets, false));
        RUDDER_TRY_VOID(expect_op(")"));
        tuple.items.push_back(std::move(item));
      } else {
        Target item;
        RUDDER_TRY(item.name, assignable_name());
        if (allows_field && take_op(".")) {
          RUDDER_TRY(item.field, expect_name());
          names_.insert(item.name);
        }
        tuple.items.push_back(std::move(item));
      }
      if (!take_op(",")) break;
      tuple.is_tuple = true;
    }
    if (tuple.is_tuple) return tuple;
    if (!tuple.items.empty()) return std::move(tuple.items[0]);
    if (where != TupleIn::kBrackets) return error("expected a name");
    tuple.is_tuple = true;
    return tuple;
  }

  // Is this a message's content, or a name that was set from one?
  bool is_content(const Expr& expr) const {
    if (expr.kind == Expr::Kind::kName) {
      return expr.text == "content" || content_names_.contains(expr.text);
    }
    if (expr.kind != Expr::Kind::kPostfix || expr.postfixes.empty()) return false;
    const Postfix& last = expr.postfixes.back();
    if (last.kind == Postfix::Kind::kAttribute) return last.name == "content";
    return last.kind == Postfix::Kind::kItem && last.item->kind == Expr::Kind::kString &&
           last.item->text == "content";
  }

  int loops_ = 0;  // around here, in the same function
  std::set<std::string, std::less<>> content_names_;
  Template out_;
};

}  // namespace

Result<Template> parse(std::string_view source) {
  RUDDER_TRY(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace rudder::text::jinja
