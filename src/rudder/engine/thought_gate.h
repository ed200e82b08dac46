// ThoughtGate: tells the thoughts at the beginning of an answer from the text behind them, by their
// marks: stop strings end no thoughts. One object for each choice, on the engine thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace rudder::engine {

// How an answer shows its thoughts.
struct ThoughtText {
  std::string begin;  // the mark before them
  std::string end;    // the mark behind them; not empty
  bool open = false;  // the answer begins inside of them, whether it says so or not
};

class ThoughtGate {
 public:
  explicit ThoughtGate(std::optional<ThoughtText> thoughts) : thoughts_(std::move(thoughts)) {}

  struct Parts {
    std::string thoughts;  // up to and with their end mark
    std::string rest;
  };
  // Whether there are thoughts, or may be some yet.
  bool is_shut() const { return thoughts_ && state_ != State::kRest; }
  // More of the text. What may become the mark before thoughts is held back until it is known.
  Parts push(std::string_view delta);
  // What is held back, once no more comes: no thoughts.
  std::string flush();

 private:
  enum class State : unsigned char { kStart, kThoughts, kRest };

  // Whether the text so far begins with the mark; kStart: that is not certain yet.
  State begun() const;

  const std::optional<ThoughtText> thoughts_;  // none: all is rest
  State state_ = State::kStart;
  std::string held_;  // of the beginning, or the end of the thoughts, as long as a mark
};

}  // namespace rudder::engine
