#include "rudder/draft/token_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rudder/step/sampling.h"

namespace rudder::draft {
namespace {

using Ranks = std::vector<int32_t>;  // of a draft and those that it follows

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), "");
}

std::string tuple_text(const Ranks& ranks) {
  return fmt::format("({}{})", fmt::join(ranks, ", "), ranks.size() == 1 ? "," : "");
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<std::vector<Ranks>> list() {
    std::vector<Ranks> drafts;
    RUDDER_TRY_VOID(expect('['));
    while (!takes(']')) {
      RUDDER_TRY(Ranks draft, tuple());
      drafts.push_back(std::move(draft));
      if (takes(',')) continue;
      RUDDER_TRY_VOID(expect(']'));
      break;
    }
    if (next() != '\0') return wrong("the end");
    return drafts;
  }

 private:
  Result<Ranks> tuple() {
    Ranks ranks;
    RUDDER_TRY_VOID(expect('('));
    while (!takes(')')) {
      RUDDER_TRY(const int32_t rank, number());
      ranks.push_back(rank);
      if (takes(',')) continue;
      RUDDER_TRY_VOID(expect(')'));
      break;
    }
    if (ranks.empty()) return wrong("a rank");
    return ranks;
  }

  Result<int32_t> number() {
    next();
    int32_t value = 0;
    const char* const end = text_.data() + text_.size();
    const auto [stop, error] = std::from_chars(text_.data() + at_, end, value);
    if (error != std::errc() || value < 0) return wrong("a rank");
    at_ = static_cast<size_t>(stop - text_.data());
    return value;
  }

  // Behind spaces; 0 at the end.
  char next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool takes(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  Result<void> expect(char c) {
    if (takes(c)) return {};
    return wrong(fmt::format("'{}'", c));
  }
  tl::unexpected<Error> wrong(std::string_view wanted) const {
    return refuse(fmt::format("{} is expected at byte {} of '{}'", wanted, at_, text_));
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<step::RankedTree> read_token_tree(std::string_view text) {
  RUDDER_TRY(std::vector<Ranks> drafts, Reader(text).list());
  if (drafts.empty() || drafts.size() > size_t{step::kMaxTreeDrafts}) {
    return refuse(
        fmt::format("{} drafts, a tree has 1 to {}", drafts.size(), step::kMaxTreeDrafts));
  }
  std::ranges::sort(drafts, {}, [](const Ranks& ranks) { return std::pair(ranks.size(), ranks); });
  step::RankedTree out;
  std::map<Ranks, int32_t> rows = {{{}, 0}};
  for (const Ranks& draft : drafts) {
    const int32_t rank = draft.back();
    if (rank >= step::kMaxLogprobs) {
      return refuse(fmt::format("{} has a rank of {}, they are below {}", tuple_text(draft), rank,
                                step::kMaxLogprobs));
    }
    const Ranks parent(draft.begin(), draft.end() - 1);
    const auto found = rows.find(parent);
    if (found == rows.end()) {
      return refuse(
          fmt::format("{} follows {}, which is missing", tuple_text(draft), tuple_text(parent)));
    }
    out.tree.add(found->second);
    out.ranks.push_back(rank);
    if (!rows.emplace(draft, out.tree.size()).second) {
      return refuse(fmt::format("{} is there twice", tuple_text(draft)));
    }
  }
  return out;
}

}  // namespace rudder::draft
