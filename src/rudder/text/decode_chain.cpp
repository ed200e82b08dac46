#include "rudder/text/decode_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "rudder/base/utf8.h"
#include "rudder/text/json_fields.h"

namespace rudder::text {
namespace {

using DecodeStages = std::vector<std::unique_ptr<DecodeStage>>;

Result<void> add_stages(const boost::json::value& node, const std::string& path, int depth,
                        DecodeStages& out) {
  RUDDER_TRY(const auto* object, as_object(node, path));
  RUDDER_TRY(const std::string type, string_field(*object, "type", path));
  if (type != "Sequence") {
    RUDDER_TRY(out.emplace_back(), make_decode_stage(*object, type, path));
    return {};
  }
  const auto* list = object->if_contains("decoders");
  if (list == nullptr || !list->is_array() || depth > 8) {
    return fail(ErrorCode::kCorruptFile, "must be a list", path + ".decoders");
  }
  size_t index = 0;
  for (const auto& item : list->get_array()) {
    RUDDER_TRY_VOID(
        add_stages(item, fmt::format("{}.decoders[{}]", path, index++), depth + 1, out));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const DecodeChain>> DecodeChain::parse(
    const boost::json::value& decoder, int32_t size,
    const std::function<std::string_view(int32_t)>& spelling) {
  const auto chain = std::make_shared<DecodeChain>();
  RUDDER_TRY_VOID(add_stages(decoder, "decoder", 0, chain->stages_));
  std::string ignored;
  bool in_alphabet = true;
  bool has_byte_tokens = false;
  for (int32_t id = 0; id < size; ++id) {
    ignored.clear();
    in_alphabet = in_alphabet && append_alphabet_bytes(spelling(id), ignored);
    has_byte_tokens = has_byte_tokens || byte_of(spelling(id));
  }
  for (const auto& stage : chain->stages_) {
    if (in_alphabet) stage->expect_alphabet();
    in_alphabet = in_alphabet && !stage->leaves_alphabet(has_byte_tokens);
  }
  return std::shared_ptr<const DecodeChain>(chain);
}

void DecodeChain::take(DecodeChainState& state, size_t stage, std::string_view piece, bool ends,
                       std::string& out) const {
  if (stage == stages_.size()) {
    out += piece;
    return;
  }
  stages_[stage]->take(
      state.stages[stage], piece, ends,
      [&, stage](std::string_view text, bool end) { take(state, stage + 1, text, end, out); });
}

void DecodeChain::finish(DecodeChainState& state, std::string& out) const {
  state.stages.resize(stages_.size());
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    stages_[stage]->finish(state.stages[stage], [&, stage](std::string_view text, bool end) {
      take(state, stage + 1, text, end, out);
    });
  }
}

void DecodeChain::push(DecodeChainState& state, std::string_view token, std::string& out) const {
  state.stages.resize(stages_.size());
  std::string text;
  take(state, 0, token, true, text);
  leave_out_prompt(state, text);
  out += text;
}

void DecodeChain::flush(DecodeChainState& state, std::string& out) const {
  std::string text;
  finish(state, text);
  leave_out_prompt(state, text);
  out += text;
}

void DecodeChain::end_prompt(DecodeChainState& state) const {
  DecodeChainState ended = state;
  finish(ended, state.prompt);
}

// Up to where the text is another than the prompt alone would have had: an unfinished character
// that the answer completes is the answer's.
void DecodeChain::leave_out_prompt(DecodeChainState& state, std::string& text) {
  if (state.prompt.empty() || text.empty()) return;
  const auto [in_text, in_prompt] =
      std::mismatch(text.begin(), text.end(), state.prompt.begin(), state.prompt.end());
  const bool is_all = in_text == text.end();
  auto same = static_cast<size_t>(in_text - text.begin());
  const auto is_inside = [&](size_t at) { return (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80; };
  while (same > 0 && same < text.size() && is_inside(same)) --same;
  text.erase(0, same);
  if (is_all) {
    state.prompt.erase(0, same);
  } else {
    state.prompt.clear();
  }
}

std::string DecodeChain::inside(std::string_view token) const {
  std::string text(token);
  for (const auto& stage : stages_) {
    if (find_invalid_utf8(text)) break;  // a byte of a character: later decoders see the whole one
    text = stage->inside(std::move(text));
  }
  return text;
}

}  // namespace rudder::text
