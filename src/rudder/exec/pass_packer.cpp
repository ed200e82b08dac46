#include "rudder/exec/pass_packer.h"

#include <algorithm>

namespace rudder::exec {

PassPacker::PassPacker(const step::Capacity& capacity, size_t group, int32_t shift)
    : capacity_(capacity),
      group_(group),
      shift_(shift),
      written_(static_cast<size_t>(capacity.num_slots)) {}

void PassPacker::clear() {
  packed.clear();
  packed.kv_slot.resize(1);
}

void PassPacker::open(const GuessAsk& ask) {
  const int32_t row = ask.id.value;
  packed.edits.opened.push_back({.slot = row, .has_counts = 0});
  Written& written = written_[static_cast<size_t>(row)];
  if (written.generation != ask.slot->generation) written = {ask.slot->generation, 0};
  const step::GroupTable& blocks = ask.slot->blocks[group_];
  for (; written.num_blocks < blocks.size(); ++written.num_blocks) {
    packed.edits.blocks.push_back(
        {.row = row,
         .index = static_cast<int32_t>(written.num_blocks),
         .block = blocks[written.num_blocks] * capacity_.kv_groups[0].layers});
  }
}

void PassPacker::add_tokens(const GuessAsk& ask, int32_t begin, std::span<const int32_t> tokens) {
  int32_t position = begin - shift_;
  for (const int32_t token : tokens) {
    packed.ids.push_back(token);
    packed.positions.push_back(position);
    add_kv_slot(ask, position++);
  }
  add_sequence(ask, static_cast<int32_t>(tokens.size()), position);
}

void PassPacker::add_kv_slot(const GuessAsk& ask, int32_t offset) {
  const int32_t size = capacity_.block_size;
  const step::BlockId block = ask.slot->blocks[group_][static_cast<size_t>(offset / size)];
  packed.kv_slot[0].push_back(block * capacity_.kv_groups[0].layers * size + offset % size);
}

void PassPacker::add_sequence(const GuessAsk& ask, int32_t num_tokens, int32_t kv_len) {
  packed.q_begin.push_back(static_cast<int32_t>(packed.ids.size()));
  packed.kv_len.push_back(kv_len);
  packed.table_row.push_back(ask.id.value);
  if (packed.ancestors.empty()) packed.max_q_len = std::max(packed.max_q_len, num_tokens);
  packed.max_kv_len = std::max(packed.max_kv_len, kv_len);
}

void PassPacker::add_tail(const GuessAsk& ask, int32_t q_len, int32_t num_ahead) {
  packed.ids.resize(packed.ids.size() + static_cast<size_t>(q_len), 0);
  packed.positions.resize(packed.ids.size(), 0);
  packed.kv_slot[0].resize(packed.ids.size(), -1);
  add_sequence(ask, q_len, std::max(ask.slot->kv_len + 1 + num_ahead - shift_, q_len));
  ops::SampleRow row;
  row.slot = ask.id.value;
  row.temperature = 0;
  row.max_len = ask.slot->max_len;
  row.num_guess = ask.num_guess;
  packed.logits_rows.push_back(static_cast<int32_t>(packed.ids.size()) - 1);
  packed.sample_rows.push_back(row);
}

}  // namespace rudder::exec
