// What a row of a prompt file asks for. A row is the body of a request to the server: of
// /v1/chat/completions with "messages", of /v1/completions with "prompt" or "prompt_ids". Fields
// mean the same and are refused alike. For `rudder generate`; main thread.
#pragma once

#include <boost/json/fwd.hpp>

#include "model_session.h"
#include "prompt_file.h"
#include "rudder/base/result.h"
#include "rudder/engine/engine.h"
#include "rudder/server/http/auth.h"
#include "rudder/server/model.h"
#include "rudder/server/steering/tap_fields.h"
#include "rudder/steer/capture/result.h"
#include "sampling_flags.h"

namespace rudder::apps {

// To be held until the request is submitted: what it names stays there.
struct RowRequest {
  engine::Request request;
  server::TapsLease taps;
  engine::FormLease form;
};

class RowRequests {
 public:
  // `flags` are the values of fields that a row does not have. The session outlives it.
  // kInvalidArgument: the chat template's dialect is not known.
  static Result<RowRequests> create(const ModelSession& session, const SamplingFlags& flags);

  // Waits where the row's grammar has to be compiled. `chat`: a plain line is a user message.
  // kUnsupported: the answer would be more than one text; other errors are the server's, and name
  // the field.
  Result<RowRequest> read(const PromptLine& line, bool chat) const;

 private:
  RowRequests(const ModelSession& session, const SamplingFlags& flags, server::ServerModel model)
      : session_(session), flags_(flags), model_(std::move(model)) {}

  const ModelSession& session_;
  const SamplingFlags& flags_;
  server::ServerModel model_;
  server::ApiKeys keys_{{}};
};

// As the row's "capture_results", where there are any.
Result<void> add_capture_results(const steer::capture::CaptureResults& results,
                                 boost::json::object* row);

}  // namespace rudder::apps
