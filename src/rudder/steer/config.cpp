#include "rudder/steer/config.h"

#include <algorithm>
#include <bit>
#include <map>
#include <span>

#include "rudder/steer/content_hash.h"

namespace rudder::steer {
namespace {

// Programs of one config that are kept; prompts of ever new shapes do not make them grow for ever.
constexpr size_t kMaxKeptPrograms = 64;

// out = the sum of scale * row over `adds`, in fp64, rounded once. Blocks keep the sums in
// registers or at least in the first cache.
void sum_scaled(std::span<const LoweredOp* const> adds, std::span<float> out) {
  constexpr size_t kBlock = 256;
  std::array<double, kBlock> sums;
  for (size_t begin = 0; begin < out.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, out.size() - begin);
    sums.fill(0);
    for (const LoweredOp* add : adds) {
      const float* row = add->v1.values().data() + begin;
      for (size_t i = 0; i < count; ++i) sums[i] += add->scale * double{row[i]};
    }
    for (size_t i = 0; i < count; ++i) out[begin + i] = static_cast<float>(sums[i]);
  }
}

bool all_zero(std::span<const float> values) {
  uint32_t bits = 0;
  for (const float value : values) bits |= std::bit_cast<uint32_t>(value) << 1;  // not of the sign
  return bits == 0;
}

// Puts a program together: ops in order, the vectors of all of them one after another.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(const tap::Geometry& geometry) : geometry_(geometry) {}

  void reserve(size_t floats) { program_.vectors.reserve(floats); }

  void add_sum(std::span<const LoweredOp* const> adds) {
    const LoweredOp& first = *adds[0];
    const size_t begin = program_.vectors.size();
    const std::span<float> out = new_vector(geometry_.width(first.point));
    if (adds.size() == 1 && first.scale == 1) {
      std::ranges::copy(first.v1.values(), out.begin());
    } else {
      sum_scaled(adds, out);
    }
    if (all_zero(out)) {
      program_.vectors.resize(begin);
      return;
    }
    tap::TapOp op;
    op.kind = tap::OpKind::kAdd;
    op.v1 = static_cast<int32_t>(begin);
    program_.ops.push_back({first.point, op});
  }

  void add_op(const LoweredOp& lowered) {
    tap::TapOp op = lowered.op;
    op.v1 = place(lowered.v1);
    op.v2 = place(lowered.v2);
    op.gate_vector = place(lowered.gate);
    program_.ops.push_back({lowered.point, op});
  }

  tap::Program take() { return std::move(program_); }

 private:
  std::span<float> new_vector(int32_t width) {
    const size_t begin = program_.vectors.size();
    const auto length = static_cast<size_t>(width);
    constexpr auto kAlign = static_cast<size_t>(tap::kVectorAlign);
    program_.vectors.resize(begin + (length + kAlign - 1) / kAlign * kAlign);
    return std::span(program_.vectors).subspan(begin, length);
  }

  // A row that several ops share, an axis for all layers, is in the program once.
  int32_t place(const Row& row) {
    if (row.empty()) return tap::kNoVector;
    const auto [found, is_new] = placed_.try_emplace(row.values().data());
    if (is_new) {
      found->second = static_cast<int32_t>(program_.vectors.size());
      std::ranges::copy(row.values(), new_vector(row.width).begin());
    }
    return found->second;
  }

  const tap::Geometry& geometry_;
  tap::Program program_;
  std::map<const float*, int32_t> placed_;
};

tap::Program make_program(const Lowered& lowered, const tap::Geometry& geometry, uint64_t active) {
  ProgramBuilder builder(geometry);
  std::vector<const LoweredOp*> chosen;
  size_t floats = 0;  // of the sums, which are most of most programs
  for (const LoweredOp& op : lowered.ops) {
    if ((active >> static_cast<unsigned>(op.selector) & 1U) == 0) continue;
    const bool joins = !chosen.empty() && chosen.back()->folds && chosen.back()->point == op.point;
    if (op.folds && !joins) {
      floats += static_cast<size_t>(geometry.width(op.point) + tap::kVectorAlign);
    }
    chosen.push_back(&op);
  }
  builder.reserve(floats);
  for (size_t begin = 0; begin < chosen.size();) {
    if (!chosen[begin]->folds) {
      builder.add_op(*chosen[begin++]);
      continue;
    }
    size_t end = begin + 1;
    while (end < chosen.size() && chosen[end]->folds &&
           chosen[end]->point == chosen[begin]->point) {
      ++end;
    }
    builder.add_sum(std::span(chosen).subspan(begin, end - begin));
    begin = end;
  }
  return builder.take();
}

}  // namespace

Result<std::shared_ptr<const Config>> Config::build(std::shared_ptr<const Model> model,
                                                    std::vector<OpSpec> specs) {
  RUDDER_TRY(Lowered lowered, lower(model->geometry, specs));
  return std::shared_ptr<const Config>(
      new Config(std::move(model), std::move(specs), std::move(lowered)));
}

KeyedProgram Config::program(uint64_t active) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [choice, program] : programs_) {
    if (choice == active) return program;
  }
  KeyedProgram made;
  tap::Program program = make_program(lowered_, model_->geometry, active);
  if (!program.empty()) {
    made.key = content_key(model_->hash_secret, program, model_->geometry);
    made.program = std::make_shared<const tap::Program>(std::move(program));
  }
  if (programs_.size() < kMaxKeptPrograms) programs_.emplace_back(active, made);
  return made;
}

}  // namespace rudder::steer
