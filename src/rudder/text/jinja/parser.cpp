#include "rudder/text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "rudder/text/jinja/lexer.h"

namespace rudder::text::jinja {
namespace {

using Kind = Token::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Template> run() {
    RUDDER_TRY_VOID(block({}, out_.body));
    return std::move(out_);
  }

 private:
  // ---- tokens
  const Token& now() const { return tokens_[pos_]; }
  const Token& next() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  bool is_op(std::string_view text) const {
    return now().kind == Kind::kOperator && now().text == text;
  }
  bool is_word(std::string_view text) const {
    return now().kind == Kind::kName && now().text == text;
  }
  bool take_op(std::string_view text) {
    if (!is_op(text)) return false;
    ++pos_;
    return true;
  }
  bool take_word(std::string_view text) {
    if (!is_word(text)) return false;
    ++pos_;
    return true;
  }
  tl::unexpected<Error> error(std::string_view what) const {
    return fail(ErrorCode::kInvalidArgument, fmt::format("chat template: {}", what),
                fmt::format("line {}", now().line));
  }
  tl::unexpected<Error> unsupported(std::string_view what) const {
    return fail(ErrorCode::kUnsupported,
                fmt::format("chat template: {} is not in the supported subset of Jinja", what),
                fmt::format("line {}", now().line));
  }
  Result<void> expect_op(std::string_view text) {
    if (!take_op(text)) return error(fmt::format("expected '{}', found '{}'", text, now().text));
    return {};
  }
  Result<std::string> expect_name() {
    if (now().kind != Kind::kName)
      return error(fmt::format("expected a name, found '{}'", now().text));
    return tokens_[pos_++].text;
  }
  Result<void> end_block() {
    if (now().kind != Kind::kBlockEnd) return error(fmt::format("unexpected '{}'", now().text));
    ++pos_;
    return {};
  }

  struct Nested {
    explicit Nested(int& d) : depth(d) { ++depth; }
    ~Nested() { --depth; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    int& depth;
  };
  Result<void> check_depth() const {
    if (depth_ > kMaxParseDepth) {
      return fail(ErrorCode::kTooLarge, "chat template is nested too deep",
                  fmt::format("line {}", now().line));
    }
    return {};
  }

  // ---- statements

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

  // ---- expressions, loosest first

  std::unique_ptr<Expr> make(Expr::Kind kind) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = now().line;
    return expr;
  }

  bool ends_tuple() const {
    return now().kind == Kind::kBlockEnd || now().kind == Kind::kOutputEnd || is_op(")") ||
           is_word("in") || is_word("recursive") || is_op("=");
  }

  // a, b: a tuple without brackets.
  Result<ExprPtr> tuple_expression(bool ternary = true) {
    ExprPtr first;
    RUDDER_TRY(first, ternary ? expression() : or_expression());
    if (!is_op(",")) return first;
    auto tuple = make(Expr::Kind::kTuple);
    tuple->operands.push_back(std::move(first));
    while (take_op(",") && !ends_tuple()) {
      ExprPtr item;
      RUDDER_TRY(item, ternary ? expression() : or_expression());
      tuple->operands.push_back(std::move(item));
    }
    return ExprPtr(std::move(tuple));
  }

  Result<ExprPtr> expression() {
    const Nested nested(depth_);
    RUDDER_TRY_VOID(check_depth());
    ExprPtr value;
    RUDDER_TRY(value, or_expression());
    while (is_word("if")) {
      auto ternary = make(Expr::Kind::kTernary);
      ++pos_;
      ExprPtr condition, otherwise;
      RUDDER_TRY(condition, or_expression());
      if (take_word("else")) {
        RUDDER_TRY(otherwise, expression());
      }
      ternary->operands.push_back(std::move(condition));
      ternary->operands.push_back(std::move(value));
      if (otherwise != nullptr) ternary->operands.push_back(std::move(otherwise));
      value = std::move(ternary);
    }
    return value;
  }

  // One level of binary operators of equal strength: operands of `inner` joined by `take`.
  template <typename Take>
  Result<ExprPtr> chain(Expr::Kind kind, Result<ExprPtr> (Parser::*inner)(), const Take& take) {
    ExprPtr first;
    RUDDER_TRY(first, (this->*inner)());
    std::string op = take();
    if (op.empty()) return first;
    auto expr = make(kind);
    expr->operands.push_back(std::move(first));
    for (; !op.empty(); op = take()) {
      ExprPtr operand;
      RUDDER_TRY(operand, (this->*inner)());
      expr->operators.push_back(std::move(op));
      expr->operands.push_back(std::move(operand));
    }
    return ExprPtr(std::move(expr));
  }
  std::string take_any(std::initializer_list<std::string_view> ops) {
    for (const std::string_view op : ops) {
      if (take_op(op)) return std::string(op);
    }
    return {};
  }

  Result<ExprPtr> or_expression() {
    return chain(Expr::Kind::kOr, &Parser::and_expression,
                 [this] { return std::string(take_word("or") ? "or" : ""); });
  }
  Result<ExprPtr> and_expression() {
    return chain(Expr::Kind::kAnd, &Parser::not_expression,
                 [this] { return std::string(take_word("and") ? "and" : ""); });
  }
  Result<ExprPtr> not_expression() {
    if (!is_word("not")) return compare_expression();
    const Nested nested(depth_);
    RUDDER_TRY_VOID(check_depth());
    auto expr = make(Expr::Kind::kNot);
    ++pos_;
    ExprPtr operand;
    RUDDER_TRY(operand, not_expression());
    expr->operands.push_back(std::move(operand));
    return ExprPtr(std::move(expr));
  }
  Result<ExprPtr> compare_expression() {
    return chain(Expr::Kind::kCompare, &Parser::sum_expression, [this] {
      if (take_word("in")) return std::string("in");
      if (is_word("not") && next().kind == Kind::kName && next().text == "in") {
        pos_ += 2;
        return std::string("not in");
      }
      return take_any({"==", "!=", "<=", ">=", "<", ">"});
    });
  }
  Result<ExprPtr> sum_expression() {
    return chain(Expr::Kind::kChain, &Parser::concat_expression, [this] {
      return take_any({"+", "-"});
    });
  }
  Result<ExprPtr> concat_expression() {
    return chain(Expr::Kind::kChain, &Parser::product_expression,
                 [this] { return take_any({"~"}); });
  }
  Result<ExprPtr> product_expression() {
    return chain(Expr::Kind::kChain, &Parser::power_expression, [this] {
      return take_any({"*", "//", "/", "%"});
    });
  }
  Result<ExprPtr> power_expression() {
    return chain(Expr::Kind::kChain, &Parser::filtered_unary, [this] { return take_any({"**"}); });
  }
  Result<ExprPtr> filtered_unary() { return unary(true); }

  Result<ExprPtr> unary(bool with_filters) {
    ExprPtr value;
    if (is_op("-") || is_op("+")) {
      const Nested nested(depth_);
      RUDDER_TRY_VOID(check_depth());
      auto expr = make(is_op("-") ? Expr::Kind::kNegate : Expr::Kind::kPlus);
      ++pos_;
      ExprPtr operand;
      RUDDER_TRY(operand, unary(false));
      expr->operands.push_back(std::move(operand));
      value = std::move(expr);
    } else {
      RUDDER_TRY(value, primary());
    }
    return postfixes(std::move(value), with_filters);
  }

  Result<ExprPtr> postfixes(ExprPtr base, bool with_filters) {
    auto expr = make(Expr::Kind::kPostfix);
    for (;;) {
      Postfix postfix{Postfix::Kind::kCall, {}, false, {}, {}, {}, {}, {}};
      if (take_op(".")) {
        if (now().kind == Kind::kInteger) {
          postfix.kind = Postfix::Kind::kItem;
          RUDDER_TRY(postfix.item, primary());
        } else {
          postfix.kind = Postfix::Kind::kAttribute;
          RUDDER_TRY(postfix.name, expect_name());
        }
      } else if (take_op("[")) {
        RUDDER_TRY_VOID(subscript(postfix));
      } else if (is_op("(")) {
        RUDDER_TRY_VOID(arguments(postfix.arguments));
      } else if (with_filters && is_op("|")) {
        ++pos_;
        postfix.kind = Postfix::Kind::kFilter;
        RUDDER_TRY(postfix.name, expect_name());
        if (is_op("(")) RUDDER_TRY_VOID(arguments(postfix.arguments));
      } else if (with_filters && take_word("is")) {
        RUDDER_TRY_VOID(test(postfix));
      } else {
        break;
      }
      expr->postfixes.push_back(std::move(postfix));
    }
    if (expr->postfixes.empty()) return base;
    expr->operands.push_back(std::move(base));
    return ExprPtr(std::move(expr));
  }

  Result<void> test(Postfix& postfix) {
    postfix.kind = Postfix::Kind::kTest;
    postfix.negated = take_word("not");
    RUDDER_TRY(postfix.name, expect_name());
    if (is_op("(")) return arguments(postfix.arguments);
    const bool value = now().kind == Kind::kString || now().kind == Kind::kInteger ||
                       now().kind == Kind::kFloat || is_op("[") || is_op("{") ||
                       (now().kind == Kind::kName && !is_word("else") && !is_word("or") &&
                        !is_word("and") && !is_word("if") && !is_word("is") && !is_word("in") &&
                        !is_word("not") && !is_word("recursive"));
    if (!value) return {};
    ExprPtr argument;
    RUDDER_TRY(argument, unary(false));
    postfix.arguments.positional.push_back(std::move(argument));
    return {};
  }

  Result<void> subscript(Postfix& postfix) {
    postfix.kind = Postfix::Kind::kItem;
    if (!is_op(":")) {
      RUDDER_TRY(postfix.item, expression());
    }
    if (take_op("]")) return {};
    postfix.kind = Postfix::Kind::kSlice;
    postfix.begin = std::move(postfix.item);
    RUDDER_TRY_VOID(expect_op(":"));
    if (!is_op(":") && !is_op("]")) {
      RUDDER_TRY(postfix.end, expression());
    }
    if (take_op(":") && !is_op("]")) {
      RUDDER_TRY(postfix.step, expression());
    }
    return expect_op("]");
  }

  Result<void> arguments(Arguments& out) {
    RUDDER_TRY_VOID(expect_op("("));
    for (bool first = true; !take_op(")"); first = false) {
      if (!first) {
        RUDDER_TRY_VOID(expect_op(","));
        if (take_op(")")) break;
      }
      if (is_op("*") || is_op("**")) return unsupported("argument unpacking");
      if (now().kind == Kind::kName && next().kind == Kind::kOperator && next().text == "=") {
        std::string name = now().text;
        pos_ += 2;
        ExprPtr value;
        RUDDER_TRY(value, expression());
        out.named.emplace_back(std::move(name), std::move(value));
      } else {
        if (!out.named.empty()) return error("a positional argument after a named one");
        ExprPtr value;
        RUDDER_TRY(value, expression());
        out.positional.push_back(std::move(value));
      }
    }
    return {};
  }

  Result<ExprPtr> primary() {
    const Token& token = now();
    if (token.kind == Kind::kName) return name();
    if (token.kind == Kind::kString) {
      auto expr = make(Expr::Kind::kString);
      while (now().kind == Kind::kString) expr->text += tokens_[pos_++].text;
      return ExprPtr(std::move(expr));
    }
    if (token.kind == Kind::kInteger || token.kind == Kind::kFloat) {
      auto expr = make(token.kind == Kind::kInteger ? Expr::Kind::kInteger : Expr::Kind::kFloat);
      const char* end = token.text.data() + token.text.size();
      const auto result = token.kind == Kind::kInteger
                              ? std::from_chars(token.text.data(), end, expr->integer)
                              : std::from_chars(token.text.data(), end, expr->number);
      if (result.ec != std::errc()) return error(fmt::format("bad number '{}'", token.text));
      ++pos_;
      return ExprPtr(std::move(expr));
    }
    if (is_op("(")) return bracketed();
    if (is_op("[")) return list();
    if (is_op("{")) return dict();
    return error(fmt::format("unexpected '{}'", token.text));
  }

  Result<ExprPtr> name() {
    const std::string& text = now().text;
    auto expr = make(Expr::Kind::kName);
    if (text == "true" || text == "True" || text == "false" || text == "False") {
      expr->kind = Expr::Kind::kBool;
      expr->boolean = text[0] == 't' || text[0] == 'T';
    } else if (text == "none" || text == "None") {
      expr->kind = Expr::Kind::kNone;
    } else {
      expr->text = text;
      out_.names.insert(text);
    }
    ++pos_;
    return ExprPtr(std::move(expr));
  }

  Result<ExprPtr> bracketed() {
    ++pos_;
    if (take_op(")")) return ExprPtr(make(Expr::Kind::kTuple));
    ExprPtr value;
    RUDDER_TRY(value, tuple_expression());
    RUDDER_TRY_VOID(expect_op(")"));
    return value;
  }

  Result<ExprPtr> list() {
    auto expr = make(Expr::Kind::kList);
    ++pos_;
    for (bool first = true; !take_op("]"); first = false) {
      if (!first) {
        RUDDER_TRY_VOID(expect_op(","));
        if (take_op("]")) break;
      }
      ExprPtr item;
      RUDDER_TRY(item, expression());
      expr->operands.push_back(std::move(item));
    }
    return ExprPtr(std::move(expr));
  }

  Result<ExprPtr> dict() {
    auto expr = make(Expr::Kind::kDict);
    ++pos_;
    for (bool first = true; !take_op("}"); first = false) {
      if (!first) {
        RUDDER_TRY_VOID(expect_op(","));
        if (take_op("}")) break;
      }
      ExprPtr key, value;
      RUDDER_TRY(key, expression());
      RUDDER_TRY_VOID(expect_op(":"));
      RUDDER_TRY(value, expression());
      expr->operands.push_back(std::move(key));
      expr->operands.push_back(std::move(value));
    }
    return ExprPtr(std::move(expr));
  }

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0;
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
