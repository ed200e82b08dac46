// Constraint: says which tokens may come next in an output. A grammar, a list of allowed tokens and
// a list of forbidden words are constraints; the engine knows only this interface. A Constraint is
// compiled before its request is submitted (never on the engine thread); it is immutable, and the
// request's choices share it. A Matcher is the state of one choice in it. The engine owns matchers
// and calls them on the engine thread or a helper thread: never two calls of one matcher at once,
// but different matchers at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "rudder/base/result.h"
#include "rudder/base/token_mask.h"

namespace rudder::constraint {

using rudder::mask_words;

// An Error of either function ends the matcher's choice, and nothing else, with it.
class Matcher {
 public:
  virtual ~Matcher() = default;

  // Clears the bits of tokens that may not come next and sets none, so that several matchers
  // restrict one mask in turn. `words` has mask_words(vocab_size) of them.
  virtual Result<void> restrict(std::span<uint32_t> words) = 0;
  // Goes on by a token that was sampled under the mask of restrict(). Not called for the token that
  // ends the choice, by a stop id or by its length.
  virtual Result<void> advance(int32_t token) = 0;

  // A trial: end_trial() takes back every token since begin_trial(), also after an Error, at a cost
  // that does not grow with the output. One may begin within another and ends before it: so a trial
  // goes along the branches of a tree.
  virtual void begin_trial() = 0;
  virtual void end_trial() = 0;

  // Some mask or token took so long, also within a trial, that no more of them are to be tried.
  virtual bool is_dear() const { return false; }
};

class Constraint {
 public:
  virtual ~Constraint() = default;
  // The constraint outlives its matchers.
  virtual std::unique_ptr<Matcher> start() const = 0;
};

}  // namespace rudder::constraint
