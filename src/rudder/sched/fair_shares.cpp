#include "rudder/sched/fair_shares.h"

#include <algorithm>
#include <utility>

#include "rudder/base/mutants.h"

namespace rudder::sched {

namespace {

// Fewer tokens of a prompt are no use: where a step has too few for all, tenants take turns.
constexpr int64_t kLeastShare = 16;

}  // namespace

const std::vector<FairShares::Share>& FairShares::divide(const std::vector<Demand>& demands,
                                                         int32_t tokens) {
  shares_.clear();
  int64_t least = INT64_MAX;
  for (const Demand& demand : demands) {
    Account& account = accounts_[demand.tenant];
    // Who did not ask has saved nothing up.
    account.served = std::max(account.served, least_served_);
    least = std::min(least, account.served);
    // Who waits for room leaves its share to others, but for a foot in the door.
    const int64_t waiting = account.idles ? std::min(demand.waiting, kLeastShare) : demand.waiting;
    account.wants = demand.running + waiting;
    shares_.push_back({.tenant = demand.tenant});
  }
  if (!demands.empty()) least_served_ = least;

  std::ranges::sort(shares_, {}, [&](const Share& s) { return accounts_[s.tenant].wants; });
  int64_t left = tokens;
  int64_t num_left = std::ssize(shares_);
  for (Share& share : shares_) {
    const int64_t most = std::max(kLeastShare, left / num_left--);
    share.tokens = static_cast<int32_t>(std::min(accounts_[share.tenant].wants, most));
    left = std::max<int64_t>(0, left - share.tokens);
  }
  std::ranges::sort(
      shares_, {}, [&](const Share& s) { return std::pair(accounts_[s.tenant].served, s.tenant); });
  if (RUDDER_MUTANT(kTenantsUnshared)) {
    std::ranges::sort(shares_, {}, &Share::tenant);
    for (Share& share : shares_) share.tokens = &share == shares_.data() ? tokens : 0;
  }
  return shares_;
}

void FairShares::note_served(const Share& share, int32_t tokens) {
  Account& account = accounts_[share.tenant];
  account.served += tokens;
  account.idles = tokens < share.tokens;
}

}  // namespace rudder::sched
