#include "bench/bench_constraint.h"

#include <chrono>

namespace rudder::apps {
namespace {

using Duration = std::chrono::duration<double, std::micro>;

class BusyMatcher final : public constraint::Matcher {
 public:
  explicit BusyMatcher(double mask_us) : mask_us_(mask_us) {}

  Result<void> restrict(std::span<uint32_t>) override {
    const auto end = std::chrono::steady_clock::now() + mask_us_;
    while (std::chrono::steady_clock::now() < end) {
    }
    return {};
  }
  Result<void> advance(int32_t) override { return {}; }

 private:
  const Duration mask_us_;
};

class BusyConstraint final : public constraint::Constraint {
 public:
  explicit BusyConstraint(double mask_us) : mask_us_(mask_us) {}
  std::unique_ptr<constraint::Matcher> start() const override {
    return std::make_unique<BusyMatcher>(mask_us_);
  }

 private:
  const double mask_us_;
};

}  // namespace

void BenchConstraintSettings::declare(SettingsTable& table) {
  table.section("constraint");
  table.add("constrain", &constrain,
            "Sample every token under a mask that allows all of them: what masks cost.");
  table.add("mask-us", &mask_us, 0.0, 1e6,
            "Microseconds that working out each mask takes, as a grammar would.");
}

std::shared_ptr<const constraint::Constraint> BenchConstraintSettings::make() const {
  if (!constrain) return nullptr;
  return std::make_shared<BusyConstraint>(mask_us);
}

}  // namespace rudder::apps
