#include "rudder/steer/segments.h"

#include <algorithm>

#include "rudder/tap/content_hash.h"

namespace rudder::steer {
namespace {

// Longer than any window reaches, short enough that positions after it can be counted.
constexpr int32_t kLongPrompt = tap::kNoEnd / 2;

struct Choice {
  int32_t begin = 0;
  uint64_t active = 0;
};

// Which selectors select the tokens from each border on; the first begins at 0.
std::vector<Choice> choices_of(const std::vector<std::vector<tap::PositionRange>>& selected) {
  std::vector<int32_t> borders = {0};
  for (const auto& ranges : selected) {
    for (const tap::PositionRange& range : ranges) {
      borders.push_back(range.begin);
      if (range.end != tap::kNoEnd) borders.push_back(range.end);
    }
  }
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());

  std::vector<Choice> choices;
  choices.reserve(borders.size());
  for (const int32_t border : borders) choices.push_back({border, 0});
  for (size_t i = 0; i < selected.size(); ++i) {
    size_t at = 0;
    for (const tap::PositionRange& range : selected[i]) {
      while (choices[at].begin < range.begin) ++at;
      for (; at < choices.size() && choices[at].begin < range.end; ++at) {
        choices[at].active |= uint64_t{1} << i;
      }
    }
  }
  return choices;
}

tap::SequenceTaps taps_of(const Config& config, const PromptShape& shape,
                          const std::vector<Choice>& choices) {
  tap::SequenceTaps taps;
  taps.needs_whole_prompt = config.needs_whole_prompt();
  taps.is_controlled = config.is_controlled();
  for (const Choice& choice : choices) {
    const KeyedProgram keyed = config.program(choice.active);
    tap::TapSegment segment{choice.begin, keyed.key, keyed.program};
    if (keyed.program != nullptr && config.is_scheduled(choice.active)) {
      taps.is_scheduled = true;
      segment.content = tap::mix_key(config.model().hash_secret, keyed.key,
                                     static_cast<uint64_t>(shape.prompt_len));
    }
    if (taps.segments.empty() || taps.segments.back().content != segment.content) {
      taps.segments.push_back(std::move(segment));
    }
  }
  if (taps.segments.size() == 1 && taps.segments[0].content.none()) taps.segments.clear();
  return taps;
}

// The taps of a sequence all of whose generated tokens are `generated`.
Result<tap::SequenceTaps> taps_where(const Config& config, const PromptShape& shape,
                                     Role generated) {
  std::vector<std::vector<tap::PositionRange>> selected;
  for (const Selector& selector : config.selectors()) {
    RUDDER_TRY(std::vector<tap::PositionRange> ranges, select(selector, shape, generated));
    selected.push_back(std::move(ranges));
  }
  return taps_of(config, shape, choices_of(selected));
}

// Each list begins at 0; none is empty.
void add_thoughts(const ThoughtMarks& marks, tap::SequenceTaps in_thoughts,
                  tap::SequenceTaps& taps) {
  if (taps.segments.empty() && in_thoughts.segments.empty()) return;
  if (taps.segments.empty()) taps.segments.push_back({});
  if (in_thoughts.segments.empty()) in_thoughts.segments.push_back({});
  taps.is_scheduled = taps.is_scheduled || in_thoughts.is_scheduled;
  taps.thoughts = tap::Thoughts{.begin_token = marks.begin_token,
                                .end_token = marks.end_token,
                                .open = marks.open,
                                .segments = std::move(in_thoughts.segments)};
}

}  // namespace

Result<tap::SequenceTaps> make_taps(const Config& config, const PromptShape& shape) {
  RUDDER_TRY(tap::SequenceTaps taps, taps_where(config, shape, Role::kAssistant));
  if (!shape.thoughts || std::ranges::none_of(config.selectors(), tells_thoughts)) return taps;
  RUDDER_TRY(tap::SequenceTaps in_thoughts, taps_where(config, shape, Role::kReasoning));
  add_thoughts(*shape.thoughts, std::move(in_thoughts), taps);
  return taps;
}

std::vector<KeyedProgram> usual_programs(const Config& config) {
  PromptShape shape;
  shape.prompt_len = kLongPrompt;
  std::vector<std::vector<tap::PositionRange>> selected;
  for (const Selector& selector : config.selectors()) {
    // A selector by role selects nothing here: what it does depends on the chat.
    Result<std::vector<tap::PositionRange>> ranges = select(selector, shape);
    selected.push_back(ranges ? std::move(*ranges) : std::vector<tap::PositionRange>());
  }
  std::vector<KeyedProgram> programs;
  for (const Choice& choice : choices_of(selected)) {
    // The key of a scheduled program is another for every length of a prompt.
    if (config.is_scheduled(choice.active)) continue;
    KeyedProgram keyed = config.program(choice.active);
    if (keyed.program == nullptr) continue;
    if (std::ranges::find(programs, keyed.key, &KeyedProgram::key) == programs.end()) {
      programs.push_back(std::move(keyed));
    }
  }
  return programs;
}

}  // namespace rudder::steer
