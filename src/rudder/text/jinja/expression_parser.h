// The parser's lower half: the token cursor, and expressions by recursive descent. Statements are
// in parser.cpp, which derives from it.
#pragma once

#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/text/jinja/ast.h"
#include "rudder/text/jinja/lexer.h"

namespace rudder::text::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& now() const { return tokens_[pos_]; }
  const Token& next() const;
  bool is_op(std::string_view text) const;
  bool is_word(std::string_view text) const;
  bool take_op(std::string_view text);
  bool take_word(std::string_view text);
  tl::unexpected<Error> error(std::string_view what) const;
  tl::unexpected<Error> unsupported(std::string_view what) const;
  Result<void> expect_op(std::string_view text);
  Result<std::string> expect_name();

  // One level of nesting, for as long as it lives.
  struct Nested {
    explicit Nested(int& d) : depth(d) { ++depth; }
    ~Nested() { --depth; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    int& depth;
  };
  Result<void> check_depth() const;

  // Where a tuple without brackets may end, besides the end of a tag.
  enum class TupleIn { kTag, kBrackets, kForTarget, kForValues };
  // a, b: an expression, or a tuple of them. Without `ternary`, "x if y" is left alone.
  Result<ExprPtr> tuple_expression(TupleIn where, bool ternary);
  Result<ExprPtr> expression();
  Result<void> arguments(Arguments& out);
  Result<void> filter(std::vector<Postfix>& out);  // name(arguments), after its "|"
  bool ends_tuple(TupleIn where) const;

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0;
  std::set<std::string, std::less<>> names_;  // every name that is read
  std::set<std::string, std::less<>> words_;  // every string, every attribute's name

 private:
  std::unique_ptr<Expr> make(Expr::Kind kind) const;
  // One level of binary operators of equal strength: operands of `inner` joined by what `take`
  // takes.
  template <typename Take>
  Result<ExprPtr> chain(Expr::Kind kind, Result<ExprPtr> (ExpressionParser::*inner)(),
                        const Take& take);
  std::string take_any(std::initializer_list<std::string_view> ops);
  // From loose to tight.
  Result<ExprPtr> or_expression();
  Result<ExprPtr> and_expression();
  Result<ExprPtr> not_expression();
  Result<ExprPtr> compare_expression();
  Result<ExprPtr> sum_expression();
  Result<ExprPtr> concat_expression();
  Result<ExprPtr> product_expression();
  Result<ExprPtr> power_expression();
  Result<ExprPtr> filtered_unary();
  Result<ExprPtr> unary(bool with_filters);
  Result<void> postfixes(std::vector<Postfix>& out);
  Result<void> filters_and_tests(std::vector<Postfix>& out);
  Result<void> dotted_name(Postfix& postfix);
  Result<void> test(Postfix& postfix);
  Result<void> subscript(Postfix& postfix);
  Result<void> subscribed(Postfix& postfix);
  Result<ExprPtr> primary();
  Result<ExprPtr> number();
  Result<ExprPtr> name();
  Result<ExprPtr> list();
  Result<ExprPtr> dict();
};

}  // namespace rudder::text::jinja
