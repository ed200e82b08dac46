// TapFields: turns the steering and capture fields of a generation request into the specs that
// the request carries, and hands to the engine what they name. Runs on the tokenise pool.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <optional>

#include "rudder/base/result.h"
#include "rudder/engine/request.h"
#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/text_prompts.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/library.h"
#include "rudder/steer/program_table.h"
#include "rudder/steer/selector.h"

namespace rudder::server {

struct TapServices {
  // Null: the server runs without it, and fields that ask for it are refused.
  const steer::Library* steering = nullptr;
  steer::capture::Dispatcher* captures = nullptr;
  steer::ProgramTable* programs = nullptr;  // of the engine; not null
  int32_t tenant = 0;                       // whose request it is
};

// Keeps known what a request's specs name. Held until the request is submitted.
struct TapsLease {
  std::shared_ptr<const tap::SequenceTaps> taps;
  std::shared_ptr<const steer::capture::CaptureSpec> capture;
};

// What selectors look at in a prompt of these tokens. Nobody says who wrote them.
steer::PromptShape shape_of(const std::vector<int32_t>& prompt, const text::Tokenizer& tokenizer);

// Sets taps and capture of `params`, whose prompt `shape` is of. `steering` and `capture` may be
// null.
Result<TapsLease> apply_taps(const steer::Config* steering,
                             std::shared_ptr<const steer::capture::CaptureSpec> capture,
                             const steer::PromptShape& shape, steer::ProgramTable& programs,
                             engine::RequestParams* params);

class TapFields {
 public:
  // Global steering and captures of the operator count too. Errors carry the JSON path.
  static Result<TapFields> read(FieldReader& reader, const boost::json::object& body,
                                const TapServices& services);

  // The steering half alone, around the capture of an endpoint that has one of its own; a client's
  // `capture` is refused there.
  static Result<TapFields> read_around(FieldReader& reader, const boost::json::object& body,
                                       const TapServices& services,
                                       std::shared_ptr<const steer::capture::CaptureSpec> capture);

  // The client wants the answer twice: without its own steering, then with it.
  bool is_pair() const { return is_pair_; }
  // Of a pair's first half: what the server steers by itself, and the same capture.
  TapFields plain() const;

  // Selectors ask who wrote which tokens of the prompt.
  bool needs_roles() const;
  // Selectors ask which generated tokens are thoughts.
  bool tells_thoughts() const;
  // Sets taps and capture of `params`, whose prompt is set; `tokenizer` says which of its tokens
  // are special. `has_roles`: prompt.roles were looked for. `thoughts`: of the answer, where it may
  // have some that can be told.
  Result<TapsLease> apply(const PromptText& prompt, const text::Tokenizer& tokenizer,
                          bool has_roles, const std::optional<steer::ThoughtMarks>& thoughts,
                          engine::RequestParams* params) const;

 private:
  Result<void> read_steering(FieldReader& reader, const boost::json::object& body,
                             const TapServices& services);

  Result<void> read_pair(FieldReader& reader, const boost::json::object& body,
                         const TapServices& services);
  static Result<std::optional<steer::capture::StopWhen>> read_stop(FieldReader& reader,
                                                                   const TapServices& services);

  steer::ProgramTable* programs_ = nullptr;
  std::shared_ptr<const steer::Config> steering_;  // null: none
  std::shared_ptr<const steer::Config> plain_;     // of a pair's first half, likewise
  bool is_pair_ = false;
  std::shared_ptr<const steer::capture::CaptureSpec> capture_;
  bool capture_wait_ = true;
};

}  // namespace rudder::server
