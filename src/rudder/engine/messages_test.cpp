// What passes between those who submit requests and the engine is values: each of these messages
// could cross a process. Decided when this file is compiled.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/base/plain.h"
#include "rudder/constraint/constraint_spec.h"
#include "rudder/engine/engine.h"
#include "rudder/tap/program.h"

namespace rudder {

// A request shares the version of its adapter: numbers under a key, and counts (ADR 0099).
template <>
struct IsPlain<std::shared_ptr<const lora::NamedAdapter>> : std::true_type {};

}  // namespace rudder

namespace rudder::engine {
namespace {

// To the engine: a request, and what is handed over for it beforehand.
static_assert(kIsPlain<RequestParams>);
static_assert(kIsPlain<constraint::GrammarSpec>);
static_assert(kIsPlain<tap::ContentKey>);
// A program shares the images of its dictionaries, each a key and numbers (ADR 0044). The rest of
// it is plain.
struct ProgramMembers {
  std::vector<tap::ProgramOp> ops;
  std::vector<float> vectors;
};
static_assert(kIsPlain<ProgramMembers>);
static_assert(sizeof(tap::Program) ==
              sizeof(ProgramMembers) + sizeof(decltype(tap::Program::dictionaries)));
// From it.
static_assert(kIsPlain<Event>);
static_assert(kIsPlain<Error>);
static_assert(kIsPlain<RequestLimits>);
static_assert(kIsPlain<EngineStats>);

// A Request is its parameters and a number: nothing else travels with them.
struct RequestMembers {
  RequestParams params;
  int32_t max_len = 0;
};
static_assert(sizeof(Request) == sizeof(RequestMembers));

// The judge itself: one member that is not plain, however deep, is found.
struct Deep {
  int32_t number = 0;
  std::vector<std::pair<std::string, std::optional<double>>> list;
};
template <typename T>
struct Holds {
  Deep deep;
  std::vector<std::optional<T>> held;
};
struct Virtual {
  virtual ~Virtual() = default;
};
class Private {
 public:
  explicit Private(int* live) : live_(live) {}
  int* live_;
};
static_assert(kIsPlain<Deep> && kIsPlain<Holds<Deep>> && kIsPlain<Holds<RequestId>>);
static_assert(!kIsPlain<Holds<int*>>);
static_assert(!kIsPlain<Holds<std::shared_ptr<const int>>>);
static_assert(!kIsPlain<Holds<std::unique_ptr<int>>>);
static_assert(!kIsPlain<Holds<std::weak_ptr<int>>>);
static_assert(!kIsPlain<Holds<std::function<void()>>>);
static_assert(!kIsPlain<Holds<void (*)()>>);
static_assert(!kIsPlain<Holds<std::span<const int>>>);
static_assert(!kIsPlain<Holds<std::string_view>>);
static_assert(!kIsPlain<Holds<std::reference_wrapper<int>>>);
static_assert(!kIsPlain<Holds<Virtual>> && !kIsPlain<Holds<Private>>);
static_assert(!kIsPlain<std::variant<int, std::shared_ptr<int>>>);
// What messages become on the engine's side, and the sink that stays with the submitter.
static_assert(!kIsPlain<tap::SequenceTaps> && !kIsPlain<steer::capture::CaptureSpec>);
static_assert(!kIsPlain<EventSink>);

}  // namespace
}  // namespace rudder::engine
