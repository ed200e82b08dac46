#include "rudder/text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

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

bool ExpressionParser::ends_tuple() const {
  return now().kind == Kind::kBlockEnd || now().kind == Kind::kOutputEnd || is_op(")") ||
         is_word("in") || is_word("recursive") || is_op("=");
}

Result<ExprPtr> ExpressionParser::tuple_expression(bool ternary) {
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

Result<ExprPtr> ExpressionParser::expression() {
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

Result<ExprPtr> ExpressionParser::postfixes(ExprPtr base, bool with_filters) {
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

Result<void> ExpressionParser::test(Postfix& postfix) {
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

Result<void> ExpressionParser::subscript(Postfix& postfix) {
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

Result<void> ExpressionParser::arguments(Arguments& out) {
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

Result<ExprPtr> ExpressionParser::primary() {
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

Result<ExprPtr> ExpressionParser::bracketed() {
  ++pos_;
  if (take_op(")")) return ExprPtr(make(Expr::Kind::kTuple));
  ExprPtr value;
  RUDDER_TRY(value, tuple_expression());
  RUDDER_TRY_VOID(expect_op(")"));
  return value;
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
