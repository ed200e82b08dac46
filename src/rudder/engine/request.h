// Request: what the engine takes. Plain values, checked by validate_request, which is the only way
// to make one: it checks every field and every pair of fields. Any thread; the engine takes it by
// value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rudder/base/ids.h"
#include "rudder/base/result.h"
#include "rudder/constraint/constraint_spec.h"
#include "rudder/engine/thought_gate.h"
#include "rudder/lora/named_adapter.h"
#include "rudder/steer/capture/spec.h"
#include "rudder/step/sampling.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/site.h"
#include "rudder/tap/taps_spec.h"

namespace rudder::engine {

using RequestId = StrongId<struct RequestTag, uint64_t>;  // internal; never a client's string

// A choice ends when its last tokens are the same pattern so many times in a row.
struct RepetitionLimits {
  int32_t max_pattern = 0;  // tokens of the longest pattern looked for; 0: none is
  int32_t min_pattern = 0;  // of the shortest; 0 is 1
  int32_t min_count = 0;    // at least 2 where a pattern is looked for
};

// As the client wrote it, types right, values unchecked.
struct RequestParams {
  std::string client_id;  // echoed in logs and answers ("cmpl-..."): not a key of anything
  std::vector<int32_t> prompt;
  step::SamplingParams sampling;  // stop_ids: stop_token_ids only, eos is added by validation
  std::optional<uint64_t> seed;   // absent: drawn from the engine's entropy
  bool ignore_eos = false;
  std::optional<int32_t> max_tokens;  // absent: up to max_seq_len
  bool counts_output = true;          // false: what is sampled is no output, in usage and metrics
  std::vector<std::string> stop;      // stop strings
  bool include_stop = false;          // keep the stop string in the text
  // How the answer's thoughts can be told, in which no stop string is looked for; none: it is all
  // text.
  std::optional<ThoughtText> thoughts;
  RepetitionLimits repetition;
  bool skip_special_tokens = true;
  // Special tokens that have text all the same: the marks that the parser of the answer looks for.
  // Ascending.
  std::vector<int32_t> shown_special_ids;
  int32_t n = 1;                     // choices; choice i uses seed + i
  int32_t priority = 0;              // lower runs first, within a tenant
  int32_t tenant = 0;                // whose it is: tenants share prefill and compiles fairly
  bool disable_spec_decode = false;  // no tokens are guessed for it
  std::string cache_salt;            // keeps the prefix cache of tenants apart
  float timeout = 0;                 // seconds within which it must have begun to run; 0: no bound
  bool echo_prompt_text = false;
  // Which tokens may come next; all of them bind. Empty: any may. A grammar is compiled before the
  // request is submitted (Engine::compile).
  std::vector<constraint::ConstraintSpec> constraints;
  // Steering and capture of this prompt, made by steer::make_taps and capture::Dispatcher::apply.
  // The programs are kept in Engine::programs(), and the spec of `capture` is held, until the
  // request is submitted. `capture` says what is captured at taps.captured and who gets it.
  tap::TapsSpec taps;
  steer::capture::SpecId capture;  // 0: nothing is captured
  struct {
    bool events = false;  // of consumers are sent while the request runs
    bool wait = true;     // for consumers that are not done when a choice ends
    // The last event of a choice waits for the results of its captures and carries them. False when
    // only the operator captures.
    bool results = true;
  } capture_delivery;
  // Null: the model as it is.
  std::shared_ptr<const lora::NamedAdapter> adapter;
};

// What validation may assume about the model and the operator's limits.
struct RequestLimits {
  int32_t max_seq_len = 0;
  int32_t vocab_size = 0;
  int32_t max_choices = 128;
  int32_t max_stop_strings = 16;
  int32_t max_stop_string_bytes = 1024;
  int32_t max_stop_ids = 128;  // of the request
  int32_t max_logit_bias = step::kMaxLogitBias;
  int32_t max_logprobs = step::kMaxLogprobs;
  int32_t max_id_bytes = 512;  // client_id
  float max_timeout = 3600;    // seconds
  int32_t max_cache_salt_bytes = 512;
  int32_t max_pattern = 1024;           // tokens of a repetition's pattern, and of its count
  int64_t max_queued_tokens = 4 << 20;  // a request of more (n * prompt) could never be queued
  // End-of-sequence ids of the model: with max_stop_ids no more than step::kMaxStopIds.
  std::vector<int32_t> eos_ids;
  // What the executor can steer and capture.
  tap::Geometry geometry;
  tap::Limits taps;
  lora::TableSize adapters;  // and what it has room for of adapters
  // A controlled sequence may be served. After a fresh start it is computed again one token a step:
  // it would not end where these come more often.
  bool takes_controls = true;
};

// A request whose every field is in range; made by validate_request alone.
class Request {
 public:
  const RequestParams& params() const { return params_; }
  int32_t max_len() const { return max_len_; }  // prompt and output together
  // Blocks, tokens and choices it can cost at most, charged before it is queued.
  int64_t cost_tokens() const { return int64_t{params_.n} * max_len_; }
  int64_t prompt_tokens() const {
    return int64_t{params_.n} * static_cast<int64_t>(params_.prompt.size());
  }

 private:
  friend Result<Request> validate_request(RequestParams params, const RequestLimits& limits);
  Request() = default;

  RequestParams params_;
  int32_t max_len_ = 0;
};

// Where keys of prefix blocks begin: what a request was computed with that no token says. Salts of
// clients are UTF-8; that of an adapter begins with a byte that UTF-8 never has.
std::string root_salt(const RequestParams& params);

// Error.where is the field's name as OpenAI or vLLM spells it ("top_p", "max_tokens", "stop[2]").
Result<Request> validate_request(RequestParams params, const RequestLimits& limits);

}  // namespace rudder::engine
