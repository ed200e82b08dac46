// FairShares: divides the prompt tokens of a step among the tenants whose prompts could run, so
// that one with many long prompts does not keep another's waiting. Each gets what it asks for, or
// as much as those who get most. Where a step has too few tokens for all, those go first that have
// had the fewest. Normative text: docs/contracts/step.md, "Whose prompts run". Internal to the
// room; engine thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace rudder::sched {

class FairShares {
 public:
  // The prompt tokens that a tenant's sequences could run in a step.
  struct Demand {
    int32_t tenant = 0;
    int64_t running = 0;  // of sequences that have begun
    int64_t waiting = 0;  // of others, which may find no room
  };
  struct Share {
    int32_t tenant = 0;
    int32_t tokens = 0;
  };

  // In the order in which they are to be served; each demand has a share. What one leaves of its
  // share is for those behind it, so that the last may take what is left. `tokens` is the step's.
  const std::vector<Share>& divide(const std::vector<Demand>& demands, int32_t tokens);
  // The tenant has been given so many tokens of the step that was divided last.
  void note_served(const Share& share, int32_t tokens);

 private:
  struct Account {
    int64_t served = 0;  // tokens, or what those who never stopped asking have had
    bool idles = false;  // it left some of its last share
    int64_t wants = 0;   // scratch
  };

  std::unordered_map<int32_t, Account> accounts_;  // as many as there are tenants
  int64_t least_served_ = 0;                       // of those who asked in the last step
  std::vector<Share> shares_;
};

}  // namespace rudder::sched
