// What is thrown in the middle of the engine's work ends what the contract says (engine.E5, E6):
// sinks, constraints, an executor. Token ids are tiny_tokenizer's.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/log.h"
#include "rudder/engine/engine_core.h"
#include "rudder/testing/named_grammars.h"
#include "rudder/testing/scripted_executor.h"
#include "rudder/testing/tiny_tokenizer.h"
#include "rudder/testing/virtual_clock.h"

namespace rudder::engine {
namespace {

// A scripted executor whose launches and supplies may be told what to do first.
class HookedExecutor final : public step::Executor {
 public:
  explicit HookedExecutor(std::vector<int32_t> script) : inner_(std::move(script)) {}

  step::Capacity capacity() const override { return inner_.capacity(); }
  Result<step::Ticket> launch(std::shared_ptr<const step::StepPlan> plan) override {
    if (on_launch) on_launch();
    return inner_.launch(std::move(plan));
  }
  Result<void> supply(step::Ticket ticket, std::span<const uint32_t> masks) override {
    if (on_supply) RUDDER_TRY_VOID(on_supply());
    return inner_.supply(ticket, masks);
  }
  Result<step::StepResult> collect(step::Ticket ticket) override { return inner_.collect(ticket); }
  bool ready(step::Ticket ticket) override { return inner_.ready(ticket); }

  std::function<void()> on_launch;
  std::function<Result<void>()> on_supply;

 private:
  testing::ScriptedExecutor inner_;
};

// Allows every token; throws where it is told to.
struct Thrower final : constraint::Constraint {
  enum class Where : uint8_t { kNowhere, kStart, kRestrict, kAdvance };
  struct State final : constraint::Matcher {
    explicit State(Where from) : where(from) {}
    Result<void> restrict(std::span<uint32_t>) override {
      if (where == Where::kRestrict) throw std::runtime_error("restrict");
      return {};
    }
    Result<void> advance(int32_t) override {
      if (where == Where::kAdvance) throw 42;  // nothing that derives from std::exception
      return {};
    }
    void begin_trial() override {}
    void end_trial() override {}
    const Where where;
  };

  explicit Thrower(Where from) : where(from) {}
  std::unique_ptr<constraint::Matcher> start() const override {
    if (where == Where::kStart) throw std::bad_alloc();
    return std::make_unique<State>(where);
  }
  const Where where;
};

class ContainmentTest : public ::testing::Test {
 protected:
  // What the choices of one request got.
  struct Got {
    size_t tokens = 0;
    std::vector<Event> last;
  };

  void SetUp() override {
    set_log_level(LogLevel::kOff);
    auto executor = std::make_unique<HookedExecutor>(std::vector<int32_t>{2, 3, 4, 5});
    executor_ = executor.get();
    auto core = EngineCore::create({.executor = std::move(executor),
                                    .tokenizer = testing::tiny_tokenizer(),
                                    .clock = std::make_shared<testing::VirtualClock>(),
                                    .model_identity = "test",
                                    .eos_ids = {testing::kTinyEos},
                                    .grammars = std::make_unique<testing::NamedGrammars>()},
                                   {}, {});
    ASSERT_TRUE(core) << core.error().to_string();
    core_ = std::move(*core);
  }
  void TearDown() override { set_log_level(LogLevel::kInfo); }

  static RequestParams params(int32_t max_tokens) {
    RequestParams params;
    params.prompt = {2, 3, 4, 5, 2};
    params.max_tokens = max_tokens;
    params.seed = 7;
    return params;
  }

  // `before` sees each event first, and may throw.
  RequestId submit(RequestParams params, const std::function<void(const Event&)>& before = {}) {
    auto request = validate_request(std::move(params), core_->limits());
    EXPECT_TRUE(request) << request.error().to_string();
    auto id = core_->submit(std::move(*request), [this, before](Event&& event) {
      Got& got = got_[event.id];
      if (before) before(event);
      got.tokens += event.tokens.size();
      if (event.finish) got.last.push_back(std::move(event));
    });
    EXPECT_TRUE(id) << id.error().to_string();
    return id.value_or(RequestId());
  }

  void run() {
    for (int turn = 0; core_->step(); ++turn) ASSERT_LT(turn, 1000);
    EXPECT_TRUE(core_->scheduler().idle());
    EXPECT_EQ(core_->stats().blocks_in_use, 0);
    EXPECT_EQ(core_->num_open(), 0);
    EXPECT_EQ(core_->queue_load().requests, 0);
  }

  // The request has all of its tokens; one that is submitted now gets its own, too.
  void expect_unharmed(RequestId id, size_t tokens) {
    EXPECT_EQ(got_[id].tokens, tokens);
    ASSERT_EQ(got_[id].last.size(), 1u);
    EXPECT_EQ(got_[id].last[0].finish, FinishReason::kLength);
    const RequestId next = submit(params(3));
    run();
    EXPECT_EQ(got_[next].tokens, 3u);
    EXPECT_TRUE(core_->health());
  }
  // Each choice has one last event, and it is that error.
  void expect_failed(RequestId id, size_t choices, ErrorCode code) {
    ASSERT_EQ(got_[id].last.size(), choices);
    for (const Event& event : got_[id].last) {
      EXPECT_EQ(event.finish, FinishReason::kError);
      ASSERT_TRUE(event.error);
      EXPECT_EQ(event.error->code, code) << event.error->to_string();
    }
  }

  HookedExecutor* executor_ = nullptr;
  std::unique_ptr<EngineCore> core_;
  std::map<RequestId, Got> got_;
};

TEST_F(ContainmentTest, ASinkThatThrowsEndsItsRequestAlone) {
  const RequestId other = submit(params(20));
  int events = 0;
  RequestParams two = params(20);
  two.n = 2;
  const RequestId bad = submit(two, [&](const Event& event) {
    if (!event.finish && ++events == 5) throw std::runtime_error("sink");
  });
  run();
  expect_failed(bad, 2, ErrorCode::kInternal);
  EXPECT_EQ(got_[bad].tokens, 4u);
  expect_unharmed(other, 20);
}

TEST_F(ContainmentTest, ASinkThatThrowsAtTheLastEventGetsAnErrorInItsPlace) {
  const RequestId other = submit(params(20));
  const RequestId bad = submit(params(2), [](const Event& event) {
    if (event.finish == FinishReason::kLength) throw std::bad_alloc();
  });
  run();
  expect_failed(bad, 1, ErrorCode::kOverloaded);
  expect_unharmed(other, 20);
}

TEST_F(ContainmentTest, ASinkThatAlwaysThrowsIsGivenUp) {
  const RequestId other = submit(params(20));
  int calls = 0;
  const RequestId bad = submit(params(20), [&](const Event&) {
    ++calls;
    throw 42;
  });
  run();
  EXPECT_TRUE(got_[bad].last.empty());
  EXPECT_EQ(calls, 2);  // its first token and its last event
  expect_unharmed(other, 20);
}

TEST_F(ContainmentTest, AConstraintThatThrowsEndsItsRequestAlone) {
  using Where = Thrower::Where;
  for (const auto& [where, code] : {std::pair(Where::kStart, ErrorCode::kOverloaded),
                                    std::pair(Where::kRestrict, ErrorCode::kInternal),
                                    std::pair(Where::kAdvance, ErrorCode::kInternal)}) {
    const RequestId other = submit(params(12));
    RequestParams constrained = params(12);
    constrained.constraints = {
        testing::name_constraint(std::make_shared<Thrower>(Where::kNowhere))};
    std::vector<RequestId> fine;  // enough choices for helpers to share the masks
    for (int i = 0; i < 5; ++i) fine.push_back(submit(constrained));
    constrained.constraints = {testing::name_constraint(std::make_shared<Thrower>(where))};
    const RequestId bad = submit(constrained);
    run();
    expect_failed(bad, 1, code);
    for (const RequestId id : fine) EXPECT_EQ(got_[id].tokens, 12u);
    expect_unharmed(other, 12);
  }
}

TEST_F(ContainmentTest, AnExecutorThatThrowsEndsEveryRequestWithOneError) {
  const RequestId first = submit(params(20));
  for (int turn = 0; turn < 5; ++turn) core_->step();
  executor_->on_launch = [] { throw std::runtime_error("launch"); };
  const RequestId second = submit(params(20));
  run();
  expect_failed(first, 1, ErrorCode::kInternal);
  expect_failed(second, 1, ErrorCode::kInternal);
  EXPECT_FALSE(core_->health());
  EXPECT_EQ(core_->would_accept({.tokens = 1}).error().code, ErrorCode::kUnavailable);
}

// The step's masks are refused while the tokens of the step before it wait to be handed out.
TEST_F(ContainmentTest, AnExecutorThatDiesAsItGetsMasksEndsEveryRequest) {
  RequestParams constrained = params(20);
  constrained.constraints = {
      testing::name_constraint(std::make_shared<Thrower>(Thrower::Where::kNowhere))};
  const RequestId first = submit(constrained);
  const RequestId second = submit(params(20));
  for (int turn = 0; turn < 5; ++turn) core_->step();
  executor_->on_supply = []() -> Result<void> { return fail(ErrorCode::kInternal, "gone"); };
  run();
  expect_failed(first, 1, ErrorCode::kInternal);
  expect_failed(second, 1, ErrorCode::kInternal);
  EXPECT_FALSE(core_->health());
}

}  // namespace
}  // namespace rudder::engine
