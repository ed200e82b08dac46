#include "rudder/steer/row_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::steer {
namespace {

// What a program takes of the table.
struct Need {
  int64_t rows = 0;
  int64_t ops = 0;
  int64_t floats = 0;
};

int64_t aligned(int64_t floats) {
  return (floats + tap::kVectorAlign - 1) / tap::kVectorAlign * tap::kVectorAlign;
}

// Without its dictionaries, which programs share.
Need need_of(const tap::Program& program) {
  return {1, static_cast<int64_t>(program.ops.size()), aligned(std::ssize(program.vectors))};
}

}  // namespace

RowTable::RowTable(const tap::Limits& limits)
    : limits_(limits),
      rows_(static_cast<size_t>(std::max(limits.num_rows, 1))),
      ops_(limits.num_ops),
      floats_(limits.num_floats / tap::kVectorAlign * tap::kVectorAlign) {
  for (int32_t row = limits.num_rows - 1; row > 0; --row) free_rows_.push_back(row);
  by_key_.reserve(rows_.size());
  edits_.reserve(2 * rows_.size());
}

Result<void> RowTable::could_ever_fit(const tap::Limits& limits,
                                      std::span<const tap::TapSegment> segments) {
  Need need;
  std::vector<tap::ContentKey> dictionaries;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].program == nullptr) continue;
    const auto before = segments.first(i);
    if (std::ranges::find(before, segments[i].content, &tap::TapSegment::content) != before.end()) {
      continue;
    }
    const Need one = need_of(*segments[i].program);
    need = {need.rows + one.rows, need.ops + one.ops, need.floats + one.floats};
    for (const auto& image : segments[i].program->dictionaries) {
      if (std::ranges::find(dictionaries, image->key) != dictionaries.end()) continue;
      dictionaries.push_back(image->key);
      need.floats += aligned(image->num_floats());
    }
  }
  const auto over = [](int64_t needed, int64_t limit, std::string_view what) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("this steering needs {} {}, the server's steering table has {}", needed,
                            what, limit),
                "steering");
  };
  const int64_t floats = limits.num_floats / tap::kVectorAlign * tap::kVectorAlign;
  if (need.rows > std::max(limits.num_rows - 1, 0)) {
    return over(need.rows, std::max(limits.num_rows - 1, 0), "rows");
  }
  if (need.ops > limits.num_ops) return over(need.ops, limits.num_ops, "ops");
  if (need.floats > floats) return over(need.floats, floats, "vector elements");
  return {};
}

int32_t RowTable::find(const tap::ContentKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? 0 : found->second;
}

bool RowTable::lease(std::span<const tap::TapSegment> segments, std::vector<int32_t>& rows) {
  const bool idle = held_ == 0;
  if (try_lease(segments, rows)) return true;
  if (!idle) return false;
  // Nothing else is held and still it does not fit: the holes are too small. An empty table has
  // one.
  for (int32_t row = 1; row < limits_.num_rows; ++row) {
    if (!rows_[static_cast<size_t>(row)].key.none()) evict(row);
  }
  drop_idle_dictionaries();
  return try_lease(segments, rows);
}

bool RowTable::try_lease(std::span<const tap::TapSegment> segments, std::vector<int32_t>& rows) {
  rows.assign(segments.size(), 0);
  // Rows that are present are held first, so that making room for the rest does not evict them.
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].program == nullptr) continue;
    rows[i] = find(segments[i].content);
    if (rows[i] != 0) hold(rows[i]);
  }
  const size_t hits = static_cast<size_t>(std::ranges::count_if(rows, [](int32_t r) { return r; }));
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].program == nullptr || rows[i] != 0) continue;
    rows[i] = find(segments[i].content);  // an earlier segment of this sequence may have placed it
    if (rows[i] == 0) rows[i] = place(segments[i].content, segments[i].program, true);
    if (rows[i] == 0) {
      release(rows);
      rows.assign(segments.size(), 0);
      return false;
    }
    hold(rows[i]);
  }
  counts_.hits += static_cast<int64_t>(hits);
  return true;
}

void RowTable::hold(int32_t row) {
  Entry& entry = rows_[static_cast<size_t>(row)];
  if (entry.users++ == 0) {
    ++held_;
    held_ops_ += entry.num_ops;
    held_floats_ += entry.num_floats;
    for (const tap::ContentKey& key : entry.dictionaries) {
      Kept& kept = dictionaries_.at(key);
      if (kept.held++ == 0) held_floats_ += kept.num_floats;
    }
  }
}

void RowTable::release(std::span<const int32_t> rows) {
  for (const int32_t row : rows) {
    if (row == 0) continue;
    Entry& entry = rows_[static_cast<size_t>(row)];
    RUDDER_CHECK(entry.users > 0, "row {} is released more often than it was leased", row);
    entry.last_use = ++clock_;
    if (--entry.users == 0) {
      --held_;
      held_ops_ -= entry.num_ops;
      held_floats_ -= entry.num_floats;
      for (const tap::ContentKey& key : entry.dictionaries) {
        Kept& kept = dictionaries_.at(key);
        kept.last_use = clock_;
        if (--kept.held == 0) held_floats_ -= kept.num_floats;
      }
    }
  }
}

int32_t RowTable::place(const tap::ContentKey& key,
                        const std::shared_ptr<const tap::Program>& program, bool may_evict_pinned) {
  const Need need = need_of(*program);
  // Evicting everything would not make room: then nothing is evicted.
  if (held_ + 1 >= limits_.num_rows || held_ops_ + need.ops > limits_.num_ops ||
      held_floats_ + need.floats + floats_not_held(*program) > floats_.size()) {
    return 0;
  }
  while (free_rows_.empty()) {
    if (!evict_one(may_evict_pinned)) return 0;
  }
  int64_t first_op = ops_.allocate(need.ops);
  while (first_op < 0) {
    if (!evict_one(may_evict_pinned)) return 0;
    first_op = ops_.allocate(need.ops);
  }
  std::vector<step::TableDictionary> dictionaries;
  const bool has_dictionaries = place_dictionaries(*program, may_evict_pinned, dictionaries);
  const int64_t first_float = has_dictionaries ? make_room(need.floats, may_evict_pinned) : -1;
  if (first_float < 0) {
    drop(*program, dictionaries);
    ops_.free(first_op, need.ops);
    return 0;
  }
  const int32_t row = free_rows_.back();
  free_rows_.pop_back();
  Entry& entry = rows_[static_cast<size_t>(row)];
  entry = {key,
           0,
           static_cast<int32_t>(need.ops),
           static_cast<int32_t>(first_op),
           need.floats,
           first_float,
           ++clock_,
           {}};
  for (const auto& image : program->dictionaries) entry.dictionaries.push_back(image->key);
  by_key_.emplace(key, row);
  for (const step::TableDictionary& dictionary : dictionaries) {
    if (!dictionary.is_new) continue;
    counts_.upload_bytes += dictionary.image->num_floats() * static_cast<int64_t>(sizeof(float));
  }
  edits_.push_back({row, entry.first_op, first_float, program, std::move(dictionaries)});
  ++counts_.uploads;
  counts_.upload_bytes += need.ops * static_cast<int64_t>(sizeof(tap::TapOp)) +
                          need.floats * static_cast<int64_t>(sizeof(float));
  return row;
}

int64_t RowTable::make_room(int64_t count, bool may_evict_pinned) {
  int64_t begin = floats_.allocate(count);
  while (begin < 0) {
    if (!evict_one(may_evict_pinned)) return -1;
    begin = floats_.allocate(count);
  }
  return begin;
}

int64_t RowTable::floats_not_held(const tap::Program& program) const {
  int64_t floats = 0;
  for (const auto& image : program.dictionaries) {
    const auto found = dictionaries_.find(image->key);
    if (found == dictionaries_.end() || found->second.held == 0) {
      floats += aligned(image->num_floats());
    }
  }
  return floats;
}

bool RowTable::place_dictionaries(const tap::Program& program, bool may_evict_pinned,
                                  std::vector<step::TableDictionary>& dictionaries) {
  // Those that are present are counted first, so that making room for the rest does not drop them.
  dictionaries.assign(program.dictionaries.size(), {-1, false, nullptr});
  for (size_t i = 0; i < dictionaries.size(); ++i) {
    const auto found = dictionaries_.find(program.dictionaries[i]->key);
    if (found == dictionaries_.end()) continue;
    ++found->second.rows;
    dictionaries[i] = {found->second.first_float, false, program.dictionaries[i]};
  }
  for (size_t i = 0; i < dictionaries.size(); ++i) {
    if (dictionaries[i].image != nullptr) continue;
    const int64_t floats = aligned(program.dictionaries[i]->num_floats());
    const int64_t begin = make_room(floats, may_evict_pinned);
    if (begin < 0) return false;
    dictionaries_[program.dictionaries[i]->key] = {begin, floats, 1, 0, ++clock_};
    dictionaries[i] = {begin, true, program.dictionaries[i]};
  }
  return true;
}

// What place_dictionaries() did: no edit brings those that were new.
void RowTable::drop(const tap::Program& program,
                    std::span<const step::TableDictionary> dictionaries) {
  for (size_t i = 0; i < dictionaries.size(); ++i) {
    if (dictionaries[i].image == nullptr) continue;
    const auto found = dictionaries_.find(program.dictionaries[i]->key);
    --found->second.rows;
    if (!dictionaries[i].is_new) continue;
    floats_.free(found->second.first_float, found->second.num_floats);
    dictionaries_.erase(found);
  }
}

void RowTable::drop_idle_dictionaries() {
  std::erase_if(dictionaries_, [&](const auto& entry) {
    const Kept& kept = entry.second;
    if (kept.rows > 0) return false;
    floats_.free(kept.first_float, kept.num_floats);
    return true;
  });
}

// The row that was used longest ago among those that nobody holds, or a dictionary that no row
// names any more; pinned rows come after all others.
bool RowTable::evict_one(bool may_evict_pinned) {
  int32_t victim = 0;
  std::pair<bool, uint64_t> age;
  for (int32_t row = 1; row < limits_.num_rows; ++row) {
    const Entry& entry = rows_[static_cast<size_t>(row)];
    if (entry.key.none() || entry.users > 0) continue;
    const std::pair<bool, uint64_t> its{is_pinned(entry.key), entry.last_use};
    if (its.first && !may_evict_pinned) continue;
    if (victim == 0 || its < age) {
      victim = row;
      age = its;
    }
  }
  auto idle = dictionaries_.end();
  for (auto at = dictionaries_.begin(); at != dictionaries_.end(); ++at) {
    if (at->second.rows > 0) continue;
    if (idle == dictionaries_.end() || at->second.last_use < idle->second.last_use) idle = at;
  }
  const bool drops_idle = idle != dictionaries_.end() &&
                          (victim == 0 || age.first || idle->second.last_use <= age.second);
  if (drops_idle) {
    floats_.free(idle->second.first_float, idle->second.num_floats);
    dictionaries_.erase(idle);
    return true;
  }
  if (victim == 0) return false;
  evict(victim);
  return true;
}

void RowTable::evict(int32_t row) {
  Entry& entry = rows_[static_cast<size_t>(row)];
  RUDDER_CHECK(entry.users == 0, "row {} is evicted while {} hold it", row, entry.users);
  by_key_.erase(entry.key);
  ops_.free(entry.first_op, entry.num_ops);
  floats_.free(entry.first_float, entry.num_floats);
  for (const tap::ContentKey& key : entry.dictionaries) --dictionaries_.at(key).rows;
  entry = {};
  free_rows_.push_back(row);
  edits_.push_back({row, 0, 0, nullptr});
  ++counts_.evictions;
}

void RowTable::pin(const KeyedProgram& program) {
  if (pins_[program.key]++ > 0) return;
  if (find(program.key) == 0) place(program.key, program.program, false);
}

void RowTable::unpin(const tap::ContentKey& key) {
  const auto found = pins_.find(key);
  RUDDER_CHECK(found != pins_.end(), "a program is unpinned that is not pinned");
  if (--found->second == 0) pins_.erase(found);
}

void RowTable::take_edits(std::vector<step::TapEdit>& edits) {
  std::ranges::move(edits_, std::back_inserter(edits));
  edits_.clear();
}

RowTable::Stats RowTable::stats() const {
  Stats stats = counts_;
  stats.rows = std::max(limits_.num_rows - 1, 0);
  stats.held = held_;
  stats.cached = static_cast<int32_t>(by_key_.size()) - held_;
  stats.pinned = static_cast<int32_t>(pins_.size());
  for (const auto& [key, count] : pins_) stats.pinned_resident += find(key) != 0 ? 1 : 0;
  stats.floats = floats_.size();
  stats.floats_used = floats_.used();
  return stats;
}

Result<void> RowTable::check_integrity() const {
  const auto broken = [](std::string message) {
    return fail(ErrorCode::kInternal, std::move(message));
  };
  std::vector<std::pair<int64_t, int64_t>> floats;
  std::vector<std::pair<int64_t, int64_t>> ops;
  int32_t held = 0;
  size_t filled = 0;
  for (int32_t row = 1; row < limits_.num_rows; ++row) {
    const Entry& entry = rows_[static_cast<size_t>(row)];
    if (entry.key.none()) continue;
    ++filled;
    if (entry.users > 0) ++held;
    if (find(entry.key) != row) return broken(fmt::format("row {} is not found by its key", row));
    if (entry.num_floats > 0) floats.emplace_back(entry.first_float, entry.num_floats);
    if (entry.num_ops > 0) ops.emplace_back(entry.first_op, entry.num_ops);
  }
  for (const auto& [key, kept] : dictionaries_) {
    floats.emplace_back(kept.first_float, kept.num_floats);
    const auto rows = std::ranges::count_if(rows_, [&key = key](const Entry& entry) {
      return std::ranges::find(entry.dictionaries, key) != entry.dictionaries.end();
    });
    if (rows != kept.rows) return broken("a dictionary counts rows that it has not");
  }
  if (held != held_) return broken(fmt::format("{} rows are held, {} are counted", held, held_));
  if (filled != by_key_.size() || filled + free_rows_.size() + 1 != rows_.size()) {
    return broken("rows are lost");
  }
  for (auto* ranges : {&floats, &ops}) {
    std::ranges::sort(*ranges);
    int64_t used = 0;
    for (size_t i = 0; i < ranges->size(); ++i) {
      const auto& [begin, length] = (*ranges)[i];
      used += length;
      if (i > 0 && (*ranges)[i - 1].first + (*ranges)[i - 1].second > begin) {
        return broken("two rows share space");
      }
    }
    if (used != (ranges == &floats ? floats_ : ops_).used()) return broken("space is lost");
  }
  return {};
}

}  // namespace rudder::steer
