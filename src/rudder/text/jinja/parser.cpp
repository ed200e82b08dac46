#include "rudder/text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

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
    return std::move(out_);
  }

 private:
  Result<void> end_block() {
    if (now().kind != Kind::kBlockEnd) return error(fmt::format("unexpected '{}'", now().text));
    ++pos_;
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
        RUDDER_TRY(node.expr, tuple_expression());
        if (now().kind != Kind::kOutputEnd)
          return error(fmt::format("unexpected '{}'", now().text));
        ++pos_;
        out.push_back(std::move(node));
      } else if (now().kind == Kind::kBlock) {
        ++pos_;
        if (now().kind != Kind::kName) return error("expected a tag name");
        if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return {};
        RUDDER_TRY_VOID(statement(out));
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

  Result<void> statement(Block& out) {
    const std::string name = now().text;
    if (name == "if") return if_statement(out);
    if (name == "for") return for_statement(out);
    if (name == "set") return set_statement(out);
    if (name == "macro") return macro_statement(out);
    if (name == "generation" || name == "with") return scope_statement(name, out);
    if (name == "filter") return filter_statement(out);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return error(fmt::format("'{}' outside a loop", name));
      out.push_back(begin(name == "break" ? Node::Kind::kBreak : Node::Kind::kContinue));
      return end_block();
    }
    static constexpr std::array<std::string_view, 13> kKnown = {
        "extends",    "include", "import", "from",     "block",     "call",     "do",
        "autoescape", "trans",   "debug",  "endblock", "recursive", "pluralize"};
    if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) {
      return unsupported(fmt::format("tag '{}'", name));
    }
    return error(fmt::format("unknown tag '{}'", name));
  }

  Result<void> if_statement(Block& out) {
    Node node = begin(Node::Kind::kIf);
    for (;;) {
      ExprPtr condition;
      RUDDER_TRY(condition, tuple_expression());
      RUDDER_TRY_VOID(end_block());
      node.branches.emplace_back(std::move(condition), Block{});
      RUDDER_TRY_VOID(block({"endif", "elif", "else"}, node.branches.back().second));
      if (!take_word("elif")) break;
    }
    if (take_word("else")) {
      RUDDER_TRY_VOID(end_block());
      node.branches.emplace_back(nullptr, Block{});
      RUDDER_TRY_VOID(block({"endif"}, node.branches.back().second));
    }
    ++pos_;
    out.push_back(std::move(node));
    return end_block();
  }

  Result<void> for_statement(Block& out) {
    Node node = begin(Node::Kind::kFor);
    RUDDER_TRY(node.target, target(false));
    if (!take_word("in")) return error("expected 'in'");
    RUDDER_TRY(node.expr, tuple_expression(false));
    if (is_content(*node.expr)) out_.loops_over_content = true;
    if (take_word("if")) {
      RUDDER_TRY(node.condition, expression());
    }
    if (is_word("recursive")) return unsupported("a recursive loop");
    RUDDER_TRY_VOID(end_block());
    ++loops_;
    RUDDER_TRY_VOID(block({"endfor", "else"}, node.body));
    --loops_;
    if (take_word("else")) {
      RUDDER_TRY_VOID(end_block());
      RUDDER_TRY_VOID(block({"endfor"}, node.otherwise));
    }
    ++pos_;
    out.push_back(std::move(node));
    return end_block();
  }

  Result<void> set_statement(Block& out) {
    Node node = begin(Node::Kind::kSet);
    RUDDER_TRY(node.target, target(true));
    if (take_op("=")) {
      RUDDER_TRY(node.expr, tuple_expression());
      if (is_content(*node.expr) && node.target.field.empty()) {
        content_names_.insert(node.target.names[0]);
      }
      out.push_back(std::move(node));
      return end_block();
    }
    node.kind = Node::Kind::kSetBlock;
    RUDDER_TRY_VOID(filters(node.filters));
    RUDDER_TRY_VOID(end_block());
    RUDDER_TRY_VOID(block({"endset"}, node.body));
    ++pos_;
    out.push_back(std::move(node));
    return end_block();
  }

  Result<void> macro_statement(Block& out) {
    if (loops_ > 0 || in_macro_) return unsupported("a macro inside a loop or a macro");
    Node node = begin(Node::Kind::kMacro);
    node.macro = std::make_unique<MacroNode>();
    RUDDER_TRY(node.macro->name, expect_name());
    RUDDER_TRY_VOID(expect_op("("));
    while (!take_op(")")) {
      if (!node.macro->parameters.empty()) RUDDER_TRY_VOID(expect_op(","));
      RUDDER_TRY(std::string parameter, expect_name());
      ExprPtr fallback;
      if (take_op("=")) {
        RUDDER_TRY(fallback, expression());
      }
      node.macro->parameters.emplace_back(std::move(parameter), std::move(fallback));
    }
    RUDDER_TRY_VOID(end_block());
    in_macro_ = true;
    RUDDER_TRY_VOID(block({"endmacro"}, node.macro->body));
    in_macro_ = false;
    ++pos_;
    if (now().kind == Kind::kName) ++pos_;  // {% endmacro name %}
    out.push_back(std::move(node));
    return end_block();
  }

  Result<void> scope_statement(const std::string& name, Block& out) {
    Node node = begin(Node::Kind::kScope);
    while (name == "with" && now().kind != Kind::kBlockEnd) {
      if (!node.bindings.empty()) RUDDER_TRY_VOID(expect_op(","));
      RUDDER_TRY(Target bound, target(false));
      RUDDER_TRY_VOID(expect_op("="));
      ExprPtr value;
      RUDDER_TRY(value, expression());
      node.bindings.emplace_back(std::move(bound), std::move(value));
    }
    RUDDER_TRY_VOID(end_block());
    const std::string end = "end" + name;
    RUDDER_TRY_VOID(block({end}, node.body));
    ++pos_;
    out.push_back(std::move(node));
    return end_block();
  }

  Result<void> filter_statement(Block& out) {
    Node node = begin(Node::Kind::kFilter);
    Postfix first{Postfix::Kind::kFilter, {}, false, {}, {}, {}, {}, {}};
    RUDDER_TRY(first.name, expect_name());
    if (is_op("(")) RUDDER_TRY_VOID(arguments(first.arguments));
    node.filters.push_back(std::move(first));
    RUDDER_TRY_VOID(filters(node.filters));
    RUDDER_TRY_VOID(end_block());
    RUDDER_TRY_VOID(block({"endfilter"}, node.body));
    ++pos_;
    out.push_back(std::move(node));
    return end_block();
  }

  Result<void> filters(std::vector<Postfix>& out) {
    while (take_op("|")) {
      Postfix filter{Postfix::Kind::kFilter, {}, false, {}, {}, {}, {}, {}};
      RUDDER_TRY(filter.name, expect_name());
      if (is_op("(")) RUDDER_TRY_VOID(arguments(filter.arguments));
      out.push_back(std::move(filter));
    }
    return {};
  }

  Result<Target> target(bool allows_field) {
    Target target;
    const bool bracket = take_op("(");
    for (;;) {
      RUDDER_TRY(std::string name, expect_name());
      target.names.push_back(std::move(name));
      if (allows_field && target.names.size() == 1 && take_op(".")) {
        RUDDER_TRY(target.field, expect_name());
        return target;
      }
      if (!take_op(",")) break;
      target.unpacks = true;
      if (now().kind != Kind::kName || is_word("in")) break;
    }
    if (bracket) RUDDER_TRY_VOID(expect_op(")"));
    return target;
  }

  // Is this a message's content, or a name that was set from one?
  bool is_content(const Expr& expr) const {
    if (expr.kind == Expr::Kind::kName) {
      return expr.text == "content" || content_names_.contains(expr.text);
    }
    if (expr.kind != Expr::Kind::kPostfix) return false;
    const Postfix& last = expr.postfixes.back();
    if (last.kind == Postfix::Kind::kAttribute) return last.name == "content";
    return last.kind == Postfix::Kind::kItem && last.item->kind == Expr::Kind::kString &&
           last.item->text == "content";
  }

  int loops_ = 0;
  bool in_macro_ = false;
  std::set<std::string, std::less<>> content_names_;
  Template out_;
};

}  // namespace

Result<Template> parse(std::string_view source) {
  RUDDER_TRY(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace rudder::text::jinja
