#include "rudder/remote/messages.h"

#include <algorithm>
#include <utility>

namespace rudder::remote {
namespace {

tl::unexpected<Error> no_dictionaries(std::string where) {
  return fail(ErrorCode::kUnsupported,
              "an engine in a process of its own (--engine-process) takes no dictionaries",
              std::move(where));
}

}  // namespace

Result<ProgramText> text_of(const tap::ContentKey& key, const tap::Program& program) {
  if (!program.dictionaries.empty()) return no_dictionaries("steering");
  return ProgramText{.key = key, .ops = program.ops, .vectors = program.vectors};
}

Result<std::vector<ProgramText>> texts_of(const std::vector<tap::TapSegment>& segments) {
  std::vector<ProgramText> texts;
  for (const tap::TapSegment& segment : segments) {
    const auto is_same = [&](const ProgramText& text) { return text.key == segment.content; };
    if (segment.program == nullptr || std::ranges::any_of(texts, is_same)) continue;
    RUDDER_TRY(ProgramText text, text_of(segment.content, *segment.program));
    texts.push_back(std::move(text));
  }
  return texts;
}

std::shared_ptr<const tap::Program> program_of(ProgramText text) {
  return std::make_shared<const tap::Program>(
      tap::Program{.ops = std::move(text.ops), .vectors = std::move(text.vectors)});
}

Result<StopText> text_of(const steer::capture::StopWhen& stop) {
  if (stop.watch.dictionary != nullptr) return no_dictionaries("stop_when");
  const auto values = stop.watch.vector.values();
  return StopText{.point = stop.watch.point,
                  .vector = {values.begin(), values.end()},
                  .above = stop.above,
                  .count = stop.count};
}

steer::capture::StopWhen stop_of(const StopText& text) {
  const std::shared_ptr<float[]> buffer(new float[text.vector.size()]);
  std::ranges::copy(text.vector, buffer.get());
  return {.watch = {.point = text.point,
                    .vector = {.buffer = buffer,
                               .begin = 0,
                               .width = static_cast<int32_t>(text.vector.size())}},
          .above = text.above,
          .count = text.count};
}

SpecText text_of(const steer::capture::CaptureSpec& spec) {
  SpecText text{.set = *spec.set, .offsets = spec.offsets, .asks = {}};
  for (const steer::capture::Ask& ask : spec.asks) {
    text.asks.push_back({.consumer = ask.consumer,
                         .points = ask.points,
                         .patterns = ask.patterns,
                         .stream = ask.stream,
                         .positions = ask.positions,
                         .listed = ask.listed,
                         .path = ask.path,
                         .by_operator = ask.by_operator});
  }
  return text;
}

steer::capture::CaptureSpec spec_of(const SpecText& text) {
  steer::capture::CaptureSpec spec;
  spec.set = std::make_shared<const tap::CaptureSet>(text.set);
  spec.offsets = text.offsets;
  for (const AskText& ask : text.asks) {
    spec.asks.push_back({.consumer = ask.consumer,
                         .points = ask.points,
                         .patterns = ask.patterns,
                         .stream = ask.stream,
                         .positions = ask.positions,
                         .listed = ask.listed,
                         .path = ask.path,
                         .options = nullptr,
                         .by_operator = ask.by_operator});
  }
  return spec;
}

}  // namespace rudder::remote
