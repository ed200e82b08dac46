#include "rudder/text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/text/jinja/numbers.h"
#include "rudder/text/jinja/parser.h"

namespace rudder::text::jinja {
namespace {
using Kind = Token::Kind;
}  // namespace

const Token& ExpressionParser::next() const {
  return tokens_[std::min(pos_ + 1, tokens_.size() - 1)];
}
bool ExpressionParser::is_op(std::string_view text) const {
  return now().kind == Kind::kOperator && now().text == text;
}
bool ExpressionParser::is_word(std::string_view text) const {
  return now().kind == Kind::kName && now().text == text;
}
bool ExpressionParser::take_op(std::string_view text) {
  if (!is_op(text)) return false;
  ++pos_;
  return true;
}
bool ExpressionParser::take_word(std::string_view text) {
  if (!is_word(text)) return false;
  ++pos_;
  return true;
}
tl::unexpected<Error> ExpressionParser::error(std::string_view what) const {
  return fail(ErrorCode::kInvalidArgument, fmt::format("chat template: {}", what),
              fmt::format("line {}", now().line));
}
tl::unexpected<Error> ExpressionParser::unsupported(std::string_view what) const {
  return fail(ErrorCode::kUnsupported,
              fmt::format("chat template: {} is not in the supported subset of Jinja", what),
              fmt::format("line {}", now().line));
}
Result<void> ExpressionParser::expect_op(std::string_view text) {
  if (!take_op(text)) return error(fmt::format("expected '{}', found '{}'", text, now().text));
  return {};
}
Result<std::string> ExpressionParser::expect_name() {
  if (now().kind != Kind::kName)
    return error(fmt::format("expected a name, found '{}'", now().text));
  return tokens_[pos_++].text;
}
Result<void> ExpressionParser::check_depth() const {
  if (depth_ > kMaxParseDepth) {
    return fail(ErrorCode::kTooLarge, "chat template is nested too deep",
                fmt::format("line {}", now().line));
  }
  return {};
}

std::unique_ptr<Expr> ExpressionParser::make(Expr::Kind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = now().line;
  return expr;
}

bool ExpressionParser::ends_tuple(TupleIn where) const {
  return now().kind == Kind::kOutputEnd || now().kind == Kind::kBlockEnd || is_op(")") ||
         (where == TupleIn::kForTarget && is_word("in")) ||
         (where == TupleIn::kForValues && is_word("recursive"));
}

Result<ExprPtr> ExpressionParser::tuple_expression(TupleIn where, bool ternary) {
  auto tuple = make(Expr::Kind::kTuple);
  bool is_tuple = false;
  while (!ends_tuple(where)) {
    ExprPtr item;
    RUDDER_TRY(item, ternary ? expression() : or_expression());
    tuple->operands.push_back(std::move(item));
    if (!take_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return ExprPtr(std::move(tuple));
  if (!tuple->operands.empty()) return std::move(tuple->operands[0]);
  if (where != TupleIn::kBrackets) return error("expected an expression");
  return ExprPtr(std::move(tuple));
}

// a if b else c
Result<ExprPtr> ExpressionParser::expression() {
  const Nested nested(depth_);
  RUDDER_TRY_VOID(check_depth());
  ExprPtr value;
  RUDDER_TRY(value, or_expression());
  for (int turn = 0; take_word("if"); ++turn) {
    if (turn > kMaxParseDepth) return error("too many conditions");
    auto expr = make(Expr::Kind::kTernary);
    ExprPtr condition;
    RUDDER_TRY(condition, or_expression());
    expr->operands.push_back(std::move(condition));
    expr->operands.push_back(std::move(value));
    if (take_word("else")) {
      ExprPtr otherwise;
      RUDDER_TRY(otherwise, expression());
      expr->operands.push_back(std::move(otherwise));
    }
    value = std::move(expr);
  }
  return value;
}

template <typename Take>
Result<ExprPtr> ExpressionParser::chain(Expr::Kind kind,
                                        Result<ExprPtr> (ExpressionParser::*inner)(),
                                        const Take& take) {
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
std::string ExpressionParser::take_any(std::initializer_list<std::string_view> ops) {
  for (const std::string_view op : ops) {
    if (take_op(op)) return std::string(op);
  }
  return {};
}

Result<ExprPtr> ExpressionParser::or_expression() {
  return chain(Expr::Kind::kOr, &ExpressionParser::and_expression,
               [this] { return std::string(take_word("or") ? "or" : ""); });
}
Result<ExprPtr> ExpressionParser::and_expression() {
  return chain(Expr::Kind::kAnd, &ExpressionParser::not_expression,
               [this] { return std::string(take_word("and") ? "and" : ""); });
}
Result<ExprPtr> ExpressionParser::not_expression() {
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
Result<ExprPtr> ExpressionParser::compare_expression() {
  return chain(Expr::Kind::kCompare, &ExpressionParser::sum_expression, [this] {
    if (take_word("in")) return std::string("in");
    if (is_word("not") && next().kind == Kind::kName && next().text == "in") {
      pos_ += 2;
      return std::string("not in");
    }
    return take_any({"==", "!=", "<=", ">=", "<", ">"});
  });
}
Result<ExprPtr> ExpressionParser::sum_expression() {
  return chain(Expr::Kind::kChain, &ExpressionParser::concat_expression, [this] {
    return take_any({"+", "-"});
  });
}
Result<ExprPtr> ExpressionParser::concat_expression() {
  return chain(Expr::Kind::kChain, &ExpressionParser::product_expression,
               [this] { return take_any({"~"}); });
}
Result<ExprPtr> ExpressionParser::product_expression() {
  return chain(Expr::Kind::kChain, &ExpressionParser::power_expression, [this] {
    return take_any({"*", "//", "/", "%"});
  });
}
Result<ExprPtr> ExpressionParser::power_expression() {
  return chain(Expr::Kind::kChain, &ExpressionParser::filtered_unary,
               [this] { return take_any({"**"}); });
}
Result<ExprPtr> ExpressionParser::filtered_unary() {
  return unary(true);
}

Result<ExprPtr> ExpressionParser::unary(bool with_filters) {
  auto expr = make(Expr::Kind::kPostfix);
  ExprPtr value;
  if (is_op("-") || is_op("+")) {
    const Nested nested(depth_);
    RUDDER_TRY_VOID(check_depth());
    auto sign = make(is_op("-") ? Expr::Kind::kNegate : Expr::Kind::kPlus);
    ++pos_;
    ExprPtr operand;
    RUDDER_TRY(operand, unary(false));
    sign->operands.push_back(std::move(operand));
    value = std::move(sign);
  } else {
    RUDDER_TRY(value, primary());
  }
  RUDDER_TRY_VOID(postfixes(expr->postfixes));
  if (with_filters) RUDDER_TRY_VOID(filters_and_tests(expr->postfixes));
  if (expr->postfixes.empty()) return value;
  expr->operands.push_back(std::move(value));
  return ExprPtr(std::move(expr));
}

// .name, [item] and (arguments)
Result<void> ExpressionParser::postfixes(std::vector<Postfix>& out) {
  for (;;) {
    Postfix postfix;
    postfix.line = now().line;
    if (take_op(".")) {
      if (now().kind == Kind::kInteger) {
        postfix.kind = Postfix::Kind::kItem;
        RUDDER_TRY(postfix.item, number());
      } else {
        postfix.kind = Postfix::Kind::kAttribute;
        RUDDER_TRY(postfix.name, expect_name());
        words_.insert(postfix.name);
      }
    } else if (is_op("[")) {
      RUDDER_TRY_VOID(subscript(postfix));
    } else if (is_op("(")) {
      RUDDER_TRY_VOID(arguments(postfix.arguments));
    } else {
      return {};
    }
    out.push_back(std::move(postfix));
  }
}

// |filter, is test, and calls of what these gave
Result<void> ExpressionParser::filters_and_tests(std::vector<Postfix>& out) {
  for (;;) {
    if (take_op("|")) {
      RUDDER_TRY_VOID(filter(out));
      continue;
    }
    Postfix postfix;
    postfix.line = now().line;
    if (take_word("is")) {
      RUDDER_TRY_VOID(test(postfix));
    } else if (is_op("(")) {
      RUDDER_TRY_VOID(arguments(postfix.arguments));
    } else {
      return {};
    }
    out.push_back(std::move(postfix));
  }
}

Result<void> ExpressionParser::dotted_name(Postfix& postfix) {
  RUDDER_TRY(postfix.name, expect_name());
  while (take_op(".")) {
    RUDDER_TRY(const std::string part, expect_name());
    postfix.name += "." + part;
  }
  return {};
}

Result<void> ExpressionParser::filter(std::vector<Postfix>& out) {
  Postfix postfix;
  postfix.kind = Postfix::Kind::kFilter;
  postfix.line = now().line;
  RUDDER_TRY_VOID(dotted_name(postfix));
  if (is_op("(")) RUDDER_TRY_VOID(arguments(postfix.arguments));
  out.push_back(std::move(postfix));
  return {};
}

Result<void> ExpressionParser::test(Postfix& postfix) {
  postfix.kind = Postfix::Kind::kTest;
  postfix.negated = take_word("not");
  RUDDER_TRY_VOID(dotted_name(postfix));
  if (is_op("(")) return arguments(postfix.arguments);
  const bool value =
      now().kind == Kind::kString || now().kind == Kind::kInteger || now().kind == Kind::kFloat ||
      is_op("[") || is_op("{") ||
      (now().kind == Kind::kName && !is_word("else") && !is_word("or") && !is_word("and"));
  if (!value) return {};
  if (is_word("is")) return error("tests cannot be chained with 'is'");
  auto expr = make(Expr::Kind::kPostfix);
  ExprPtr argument;
  RUDDER_TRY(argument, primary());
  RUDDER_TRY_VOID(postfixes(expr->postfixes));
  if (!expr->postfixes.empty()) {
    expr->operands.push_back(std::move(argument));
    argument = std::move(expr);
  }
  postfix.arguments.positional.push_back(std::move(argument));
  return {};
}

// [a], [a:b:c], or [a, b]: a tuple
Result<void> ExpressionParser::subscript(Postfix& postfix) {
  auto tuple = make(Expr::Kind::kTuple);
  RUDDER_TRY_VOID(expect_op("["));
  bool is_slice = false;
  size_t count = 0;
  for (; !is_op("]"); ++count) {
    if (count > 0) RUDDER_TRY_VOID(expect_op(","));
    RUDDER_TRY_VOID(subscribed(postfix));
    is_slice |= postfix.kind == Postfix::Kind::kSlice;
    if (postfix.item != nullptr) tuple->operands.push_back(std::move(postfix.item));
  }
  RUDDER_TRY_VOID(expect_op("]"));
  if (is_slice && count > 1) return error("a slice among other subscripts");
  if (is_slice) return {};
  postfix.kind = Postfix::Kind::kItem;
  if (count == 1) {
    postfix.item = std::move(tuple->operands[0]);
  } else {
    postfix.item = std::move(tuple);
  }
  return {};
}

Result<void> ExpressionParser::subscribed(Postfix& postfix) {
  if (!is_op(":")) {
    RUDDER_TRY(postfix.item, expression());
    if (!is_op(":")) return {};
  }
  postfix.kind = Postfix::Kind::kSlice;
  postfix.begin = std::move(postfix.item);
  RUDDER_TRY_VOID(expect_op(":"));
  const auto given = [this] { return !is_op(":") && !is_op("]") && !is_op(","); };
  if (given()) {
    RUDDER_TRY(postfix.end, expression());
  }
  if (take_op(":") && given()) {
    RUDDER_TRY(postfix.step, expression());
  }
  return {};
}

Result<void> ExpressionParser::arguments(Arguments& out) {
  RUDDER_TRY_VOID(expect_op("("));
  for (bool first = true; !is_op(")"); first = false) {
    if (!first) {
      RUDDER_TRY_VOID(expect_op(","));
      if (is_op(")")) break;
    }
    if (take_op("*")) {
      if (out.unpacked != nullptr || out.unpacked_named != nullptr) return error("a second '*'");
      RUDDER_TRY(out.unpacked, expression());
    } else if (take_op("**")) {
      if (out.unpacked_named != nullptr) return error("a second '**'");
      RUDDER_TRY(out.unpacked_named, expression());
    } else if (now().kind == Kind::kName && next().kind == Kind::kOperator && next().text == "=") {
      if (out.unpacked_named != nullptr) return error("an argument after '**'");
      std::string name = now().text;
      const bool repeated = std::any_of(out.named.begin(), out.named.end(),
                                        [&name](const auto& known) { return known.first == name; });
      if (repeated) return error(fmt::format("the argument '{}' is given twice", name));
      pos_ += 2;
      ExprPtr value;
      RUDDER_TRY(value, expression());
      out.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!out.named.empty() || out.unpacked != nullptr || out.unpacked_named != nullptr) {
        return error("a positional argument after a named one");
      }
      ExprPtr value;
      RUDDER_TRY(value, expression());
      out.positional.push_back(std::move(value));
    }
  }
  return expect_op(")");
}

Result<ExprPtr> ExpressionParser::primary() {
  const Token& token = now();
  if (token.kind == Kind::kName) return name();
  if (token.kind == Kind::kString) {
    auto expr = make(Expr::Kind::kString);
    while (now().kind == Kind::kString) expr->text += tokens_[pos_++].text;
    words_.insert(expr->text);
    return ExprPtr(std::move(expr));
  }
  if (token.kind == Kind::kInteger || token.kind == Kind::kFloat) return number();
  if (take_op("(")) {
    ExprPtr value;
    RUDDER_TRY(value, tuple_expression(TupleIn::kBrackets, true));
    RUDDER_TRY_VOID(expect_op(")"));
    return value;
  }
  if (is_op("[")) return list();
  if (is_op("{")) return dict();
  return error(fmt::format("unexpected '{}'", token.text));
}

Result<ExprPtr> ExpressionParser::number() {
  const Token& token = now();
  auto expr = make(token.kind == Kind::kInteger ? Expr::Kind::kInteger : Expr::Kind::kFloat);
  if (token.kind == Kind::kInteger) {
    try {
      expr->integer = parse_int(token.text, 0).value_or(0);
    } catch (const TemplateError&) {
      return unsupported("an integer of more than 128 bits");
    }
  } else {
    expr->number = parse_float(token.text).value_or(0);
  }
  ++pos_;
  return ExprPtr(std::move(expr));
}

Result<ExprPtr> ExpressionParser::name() {
  const std::string& text = now().text;
  auto expr = make(Expr::Kind::kName);
  if (text == "true" || text == "True" || text == "false" || text == "False") {
    expr->kind = Expr::Kind::kBool;
    expr->boolean = text[0] == 't' || text[0] == 'T';
  } else if (text == "none" || text == "None") {
    expr->kind = Expr::Kind::kNone;
  } else {
    expr->text = text;
    names_.insert(text);
  }
  ++pos_;
  return ExprPtr(std::move(expr));
}

Result<ExprPtr> ExpressionParser::list() {
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

Result<ExprPtr> ExpressionParser::dict() {
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

}  // namespace rudder::text::jinja
