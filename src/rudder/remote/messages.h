// What passes between the front and an engine process: the engine's plain messages (ADR 0022) with
// what must be handed over beside them. Numbers of requests, grammars and questions are the
// front's. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rudder/base/plain_bytes.h"
#include "rudder/constraint/grammar_source.h"
#include "rudder/constraint/grammar_spec.h"
#include "rudder/engine/event.h"
#include "rudder/engine/request.h"
#include "rudder/engine/stats.h"
#include "rudder/lora/adapter.h"
#include "rudder/steer/capture/spec.h"
#include "rudder/steer/capture/stats.h"
#include "rudder/tap/program.h"

namespace rudder {

// Of a request's adapter its key travels, beside the parameters.
template <>
struct PlainBytes<std::shared_ptr<const lora::NamedAdapter>> {
  static void write(std::string& /*out*/, const std::shared_ptr<const lora::NamedAdapter>&) {}
  static bool read(std::string_view& /*in*/, std::shared_ptr<const lora::NamedAdapter>& adapter) {
    adapter = nullptr;
    return true;
  }
};

template <>
inline constexpr uint64_t kNumValues<ErrorCode> = static_cast<uint64_t>(ErrorCode::kInternal) + 1;
template <>
inline constexpr uint64_t kNumValues<tensor::DType> = static_cast<uint64_t>(tensor::DType::kBool) +
                                                      1;
template <>
inline constexpr uint64_t kNumValues<engine::FinishReason> =
    static_cast<uint64_t>(engine::FinishReason::kError) + 1;

}  // namespace rudder

namespace rudder::remote {

// A program without dictionaries.
struct ProgramText {
  tap::ContentKey key;
  std::vector<tap::ProgramOp> ops;
  std::vector<float> vectors;
};

// steer::capture::StopWhen of a vector.
struct StopText {
  tap::CapturePoint point;
  std::vector<float> vector;
  double above = 0;
  int32_t count = 1;
};

// What a request captures, as it was asked for: the engine process makes the spec.
struct CaptureText {
  std::string field;  // JSON; empty: none
  std::optional<StopText> stop;
};

// A matrix of an adapter, from byte `begin` of its memory on.
struct MatrixText {
  uint64_t begin = 0;
  tensor::DType dtype = tensor::DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
};
// lora::Delta.
struct DeltaText {
  int32_t target = 0;
  float scale = 1;
  MatrixText a;
  MatrixText b;
  std::vector<float> gains = {};
  std::vector<float> offsets = {};
};

// To the engine process.
struct Submit {
  uint64_t id = 0;
  engine::RequestParams params;       // without adapter, and without the number of its capture
  std::vector<ProgramText> programs;  // that its taps name
  std::optional<CaptureText> capture;
  std::optional<lora::AdapterKey> adapter;  // that the process was told of
};
struct Cancel {
  uint64_t id = 0;
};
struct Compile {
  uint64_t id = 0;
  constraint::GrammarSpec spec;
  int32_t tenant = 0;
};
struct Pin {
  uint64_t id = 0;
  std::vector<ProgramText> programs;
};
struct Unpin {
  std::vector<tap::ContentKey> programs;
};
struct AskCapture {
  uint64_t id = 0;
  CaptureText capture;
};
struct AskPulse {
  uint64_t id = 0;
};
struct ResetPrefixCache {};
// An adapter's content; its memory follows in parts.
struct AdapterText {
  std::string name;
  std::string path;
  lora::AdapterKey key = {};
  int32_t max_rank = 0;
  uint64_t bytes = 0;  // of its memory
  std::vector<DeltaText> deltas;
};
struct AdapterBytes {  // the next ones
  lora::AdapterKey key = {};
  std::string bytes;
};
struct ForgetAdapter {
  lora::AdapterKey key = {};
};
using ToEngine = std::variant<Submit, Cancel, Compile, Pin, Unpin, AskCapture, AskPulse,
                              ResetPrefixCache, AdapterText, AdapterBytes, ForgetAdapter>;

// From it.
struct Ready {  // the first message of one that serves
  engine::RequestLimits limits;
  bool captures = false;  // it has a dispatcher
  std::string dtype;      // of the weights in its memory
};
struct NotReady {  // the only message of one that does not
  Error error;
};
struct Events {
  uint64_t id = 0;
  std::vector<engine::Event> events;  // at least one
};
struct Refused {  // of a Submit; no event comes
  uint64_t id = 0;
  Error error;
};
struct Answer {  // to a Compile or a Pin
  uint64_t id = 0;
  std::optional<Error> error;
};
// steer::capture::Ask without what the consumer made of its own fields.
struct AskText {
  int32_t consumer = 0;
  std::vector<int32_t> points;
  std::vector<tap::CapturePattern> patterns;
  std::optional<int32_t> stream;
  steer::capture::Positions positions = steer::capture::Positions::kLastPrompt;
  std::vector<int32_t> listed;
  std::string path;
  bool by_operator = false;
};
// steer::capture::CaptureSpec, as far as a prompt is checked against it.
struct SpecText {
  tap::CaptureSet set;
  std::vector<int64_t> offsets;
  std::vector<AskText> asks;
};
struct CaptureMade {  // to an AskCapture
  uint64_t id = 0;
  std::optional<Error> error;
  std::optional<SpecText> spec;  // none: nothing is captured
};
struct Pulse {      // four times a second, and as the answer to an AskPulse
  uint64_t id = 0;  // of the latest question that is answered
  engine::EngineStats stats;
  std::optional<Error> illness;  // engine::Engine::health
  int32_t retry_after_s = 1;
  constraint::GrammarStats grammars;
  steer::capture::CaptureStats captures;
};
using FromEngine = std::variant<Ready, NotReady, Events, Refused, Answer, CaptureMade, Pulse>;

// What of a request's programs, stop and adapter travels. kUnsupported: a dictionary.
Result<std::vector<ProgramText>> texts_of(const std::vector<tap::TapSegment>& segments);
Result<ProgramText> text_of(const tap::ContentKey& key, const tap::Program& program);
Result<StopText> text_of(const steer::capture::StopWhen& stop);
steer::capture::StopWhen stop_of(const StopText& text);
std::shared_ptr<const tap::Program> program_of(ProgramText text);
SpecText text_of(const steer::capture::CaptureSpec& spec);
steer::capture::CaptureSpec spec_of(const SpecText& text);

}  // namespace rudder::remote
