// A form, compiled with little fuel, and what it says of outputs: random ones that it allows, and
// whether it takes a text. Over a vocabulary of bytes and longer tokens (form_checker.h).
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>

#include "require.h"
#include "rudder/constraint/form_checker.h"

namespace rudder::fuzz {

class FormRun {
 public:
  static constexpr int64_t kWork = 2'000'000;  // of fuel: 20 ms without sanitizers
  static constexpr int64_t kBytes = int64_t{16} << 20;

  // An error that names what is wrong with the text, or a form that holds what its fuel allows.
  static Result<FormRun> compile(const constraint::GrammarSpec& spec);

  // The text of tokens that are allowed one after another; nothing when no end came in a while, or
  // the matcher gave up. A form that demands tokens by their ids has places that no text leaves;
  // any other has none.
  std::optional<std::string> walk(std::mt19937_64& choices, bool may_stick = false) const;
  // The text, byte by byte; nothing when the matcher gave up, as it may on ambiguous forms.
  std::optional<bool> accepts(std::string_view text) const;

  // All walks and texts together may take so many steps of the parser; behind them each gives up.
  // An ambiguous form takes a thousand times what others do. The same input takes the same.
  static constexpr uint64_t kSteps = 1'000'000;  // half a second without sanitizers, at most
  uint64_t steps() const { return *steps_; }

 private:
  class Try;  // one matcher at work

  explicit FormRun(std::shared_ptr<const constraint::Constraint> constraint)
      : constraint_(std::move(constraint)) {}

  std::shared_ptr<const constraint::Constraint> constraint_;
  std::shared_ptr<uint64_t> steps_ = std::make_shared<uint64_t>(0);  // that were taken
};

}  // namespace rudder::fuzz
