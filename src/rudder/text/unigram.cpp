#include "rudder/text/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <cmath>

#include "rudder/base/utf8.h"
#include "rudder/text/bpe.h"
#include "rudder/text/json_fields.h"

namespace rudder::text {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score, as in the reference
constexpr size_t kMaxNodes = size_t{1} << 24;
constexpr size_t kKeptSteps = size_t{1} << 16;

}  // namespace

Result<Unigram> Unigram::parse(const boost::json::value& model) {
  RUDDER_TRY(const auto* object, as_object(model, "model"));
  Unigram unigram;
  RUDDER_TRY(unigram.byte_fallback_, bool_field(*object, "byte_fallback", false, "model"));
  RUDDER_TRY_VOID(unigram.parse_vocab(*object));
  if (const auto* unk = object->if_contains("unk_id"); unk == nullptr || unk->is_null()) {
    return fail(ErrorCode::kUnsupported, "Unigram without an unknown token is not supported",
                "model.unk_id");
  }
  RUDDER_TRY(const int64_t unknown, int_field(*object, "unk_id", 0, unigram.count() - 1, "model"));
  unigram.unknown_id_ = static_cast<int32_t>(unknown);
  return unigram;
}

Result<void> Unigram::parse_vocab(const boost::json::object& model) {
  const auto* field = model.if_contains("vocab");
  if (field == nullptr || !field->is_array() || field->get_array().empty() ||
      field->get_array().size() > static_cast<size_t>(kMaxTokenId)) {
    return fail(ErrorCode::kCorruptFile, "must be a list of tokens and scores", "model.vocab");
  }
  const boost::json::array& vocab = field->get_array();
  size_t bytes = 0;
  for (const boost::json::value& entry : vocab) {
    const auto* const pair = entry.if_array();
    const auto at = static_cast<int32_t>(scores_.size());
    const bool is_pair =
        pair != nullptr && pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_number();
    const double score = is_pair ? (*pair)[1].to_number<double>() : NAN;
    if (!std::isfinite(score)) {
      return fail(ErrorCode::kCorruptFile, "must be a token and its score",
                  fmt::format("model.vocab[{}]", at));
    }
    const std::string_view token = (*pair)[0].get_string();
    tokens_.set(at, token);
    scores_.push_back(score);
    longest_ = std::max(longest_, token.size());
    bytes += token.size();
  }
  if (bytes >= kMaxNodes) {
    return fail(ErrorCode::kUnsupported, fmt::format("tokens of {} bytes in all", bytes),
                "model.vocab");
  }
  unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
  edges_.assign(std::bit_ceil(bytes * 2 + 2), Edge{});
  ends_.assign(1, -1);
  index_.reserve(vocab.size());
  // Of a token that is there twice the last entry counts, as in the reference.
  for (int32_t id = 0; id < tokens_.size(); ++id) add_to_trie(id);
  for (int32_t id = tokens_.size() - 1; id >= 0; --id) index_.insert(tokens_.get(id), id);
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = find(fmt::format("<0x{:02X}>", byte));
  }
  return {};
}

Unigram::Edge& Unigram::edge_of(uint32_t from) {
  const size_t mask = edges_.size() - 1;
  size_t i = (from * uint64_t{0x9E3779B97F4A7C15} >> 32) & mask;
  while (edges_[i].from != UINT32_MAX && edges_[i].from != from) i = (i + 1) & mask;
  return edges_[i];
}

uint32_t Unigram::child(uint32_t node, uint8_t byte) const {
  const Edge& edge = const_cast<Unigram*>(this)->edge_of(node << 8 | byte);
  return edge.from == UINT32_MAX ? 0 : edge.to;
}

void Unigram::add_to_trie(int32_t id) {
  uint32_t node = 0;
  for (const char c : tokens_.get(id)) {
    Edge& edge = edge_of(node << 8 | static_cast<uint8_t>(c));
    if (edge.from == UINT32_MAX) {
      edge = {node << 8 | static_cast<uint8_t>(c), static_cast<uint32_t>(ends_.size())};
      ends_.push_back(-1);
    }
    node = edge.to;
  }
  if (node != 0) ends_[node] = id;
}

// steps[i]: how the best tokens of the first i bytes end. Of equal sums the first that is found
// stays, as in the reference.
void Unigram::find_steps(std::string_view piece, std::vector<Step>& steps) const {
  steps.assign(piece.size() + 1, Step{});
  for (size_t begin = 0; begin < piece.size();) {
    const size_t letter = utf8_length(static_cast<unsigned char>(piece[begin]));
    const double before = steps[begin].score;
    const auto offer = [&](size_t end, double score, int32_t id) {
      Step& step = steps[end];
      if (step.id >= 0 && score <= step.score) return;
      step = {score, id, static_cast<uint32_t>(begin)};
    };
    bool has_letter = false;
    uint32_t node = 0;
    for (size_t end = begin; end < piece.size();) {
      node = child(node, static_cast<uint8_t>(piece[end++]));
      if (node == 0) break;
      if (ends_[node] < 0) continue;
      offer(end, scores_[static_cast<size_t>(ends_[node])] + before, ends_[node]);
      has_letter = has_letter || end - begin == letter;
    }
    if (!has_letter) offer(begin + letter, unknown_score_ + before, unknown_id_);
    begin += letter;
  }
}

void Unigram::append_unknown(std::string_view run, std::vector<int32_t>& out) const {
  if (const int32_t id = find(run); id >= 0) {
    out.push_back(id);
    return;
  }
  const auto id_of = [this](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (byte_fallback_ &&
      std::all_of(run.begin(), run.end(), [&](char byte) { return id_of(byte) >= 0; })) {
    std::transform(run.begin(), run.end(), std::back_inserter(out), id_of);
    return;
  }
  out.push_back(unknown_id_);
}

void Unigram::encode(std::string_view piece, std::vector<int32_t>& out, size_t max_ids) const {
  // No more bytes than give one token too many.
  const size_t room = max_ids - std::min(max_ids, out.size());
  if (room < piece.size() / longest_) {
    size_t end = (room + 1) * longest_;
    while (end < piece.size() && (static_cast<unsigned char>(piece[end]) & 0xC0) == 0x80) ++end;
    piece = piece.substr(0, end);
  }
  if (piece.empty()) return;
  thread_local std::vector<Step> steps;
  find_steps(piece, steps);
  std::vector<size_t> ends;  // of tokens, backwards; those of a run of unknown ones once
  for (size_t end = piece.size(); end > 0; end = steps[end].begin) {
    const bool goes_on =
        !ends.empty() && steps[ends.back()].id == unknown_id_ && steps[end].id == unknown_id_;
    if (goes_on) {
      steps[ends.back()].begin = steps[end].begin;
    } else {
      ends.push_back(end);
    }
  }
  for (size_t i = ends.size(); i-- > 0;) {
    const Step& step = steps[ends[i]];
    if (step.id == unknown_id_) {
      append_unknown(piece.substr(step.begin, ends[i] - step.begin), out);
    } else {
      out.push_back(step.id);
    }
  }
  if (steps.capacity() > kKeptSteps) steps = {};
}

}  // namespace rudder::text
