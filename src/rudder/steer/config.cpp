#include "rudder/steer/config.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "rudder/features/dictionary_image.h"
#include "rudder/tap/content_hash.h"

namespace rudder::steer {
namespace {

// Programs of one config that are kept; prompts of ever new shapes do not make them grow for ever.
constexpr size_t kMaxKeptPrograms = 64;

bool all_zero(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return value == 0; });
}

// Puts a program together: ops in order, the vectors of all of them one after another.
class ProgramBuilder {
 public:
  void reserve(size_t floats) { program_.vectors.reserve(floats); }

  void add_sum(std::span<const LoweredOp* const> adds) {
    const LoweredOp& first = *adds[0];
    const size_t begin = program_.vectors.size();
    const bool is_row = adds.size() == 1 && first.scale == 1;
    if (is_row) {
      append(first.v1.values());
    } else {
      append_sum(adds);
    }
    if (all_zero(std::span(program_.vectors).subspan(begin))) {
      program_.vectors.resize(begin);
      return;
    }
    tap::TapOp op;
    op.kind = tap::OpKind::kAdd;
    op.v1 = static_cast<int32_t>(begin);
    program_.ops.push_back({first.point, op});
  }

  // Clamps of one point and dictionary, behind one encode.
  void add_encode(std::span<const LoweredOp* const> clamps,
                  std::shared_ptr<const tap::DictionaryImage> image) {
    const auto same = [&](const auto& other) { return other->key == image->key; };
    const auto known = std::ranges::find_if(program_.dictionaries, same);
    tap::ProgramOp encode{clamps[0]->point, {}};
    encode.op.kind = tap::OpKind::kEncode;
    encode.op.v1 = static_cast<int32_t>(known - program_.dictionaries.begin());
    if (known == program_.dictionaries.end()) program_.dictionaries.push_back(std::move(image));
    const size_t first = program_.ops.size();
    program_.ops.push_back(encode);
    for (const LoweredOp* clamp : clamps) {
      if (clamp->full) program_.ops[first].op.lo = 1;
      if (clamp->feature == FeatureClamp::kNoFeature) continue;
      tap::TapOp op = clamp->op;
      op.kind = tap::OpKind::kEncoded;
      op.a = op.b = op.lo = op.sum = 0;  // the image has the activation
      op.norm = tap::FeatureNorm::kNone;
      op.feature = clamp->feature;
      op.gate_vector = place(clamp->gate);
      program_.ops.push_back({clamp->point, op});
    }
    program_.ops[first].op.run = static_cast<int32_t>(program_.ops.size() - first);
  }

  void add_op(const LoweredOp& lowered) {
    tap::TapOp op = lowered.op;
    op.v1 = place(lowered.v1);
    op.v2 = place(lowered.v2);
    op.gate_vector = place(lowered.gate);
    if (op.kind == tap::OpKind::kFeature) add_to_run(lowered.point, op);
    program_.ops.push_back({lowered.point, op});
  }

  tap::Program take() { return std::move(program_); }

 private:
  // All features that are clamped at a point are one run.
  void add_to_run(tap::Point point, tap::TapOp& op) {
    const bool continues = !program_.ops.empty() && program_.ops.back().point == point &&
                           program_.ops.back().op.kind == tap::OpKind::kFeature;
    if (!continues) {
      run_ = program_.ops.size();
      op.run = 1;
    } else {
      ++program_.ops[run_].op.run;
    }
  }

  void append(std::span<const float> values) {
    program_.vectors.insert(program_.vectors.end(), values.begin(), values.end());
    pad();
  }

  // The sum of scale * row over `adds`, in fp64, rounded once. By blocks: the sums stay in the
  // first cache, and the loops over a whole block have a length that the compiler knows.
  void append_sum(std::span<const LoweredOp* const> adds) {
    constexpr size_t kBlock = 256;
    std::array<double, kBlock> sums;
    std::array<float, kBlock> rounded;
    const size_t width = adds[0]->v1.values().size();
    for (size_t begin = 0; begin < width; begin += kBlock) {
      const size_t count = std::min(kBlock, width - begin);
      sums.fill(0);
      for (const LoweredOp* add : adds) {
        const float* row = add->v1.values().data() + begin;
        const double scale = add->scale;
        if (count == kBlock) {
          for (size_t i = 0; i < kBlock; ++i) sums[i] += scale * double{row[i]};
        } else {
          for (size_t i = 0; i < count; ++i) sums[i] += scale * double{row[i]};
        }
      }
      for (size_t i = 0; i < kBlock; ++i) rounded[i] = static_cast<float>(sums[i]);
      program_.vectors.insert(program_.vectors.end(), rounded.begin(),
                              rounded.begin() + static_cast<std::ptrdiff_t>(count));
    }
    pad();
  }

  void pad() {
    constexpr auto kAlign = static_cast<size_t>(tap::kVectorAlign);
    program_.vectors.resize((program_.vectors.size() + kAlign - 1) / kAlign * kAlign);
  }

  // A row that several ops share, an axis for all layers, is in the program once.
  int32_t place(const Row& row) {
    if (row.empty()) return tap::kNoVector;
    const auto [found, is_new] = placed_.try_emplace(row.values().data());
    if (is_new) {
      found->second = static_cast<int32_t>(program_.vectors.size());
      append(row.values());
    }
    return found->second;
  }

  tap::Program program_;
  size_t run_ = 0;  // the first op of the run at hand
  std::map<const float*, int32_t> placed_;
};

// Clamps of features at one point: those that need one column each, then a run a dictionary that is
// encoded whole, with all of its clamps.
void add_clamps(std::span<const LoweredOp* const> clamps, const Model& model,
                ProgramBuilder& builder) {
  std::vector<const features::Dictionary*> encoded;
  for (const LoweredOp* clamp : clamps) {
    if (clamp->encodes && std::ranges::find(encoded, clamp->dictionary.get()) == encoded.end()) {
      encoded.push_back(clamp->dictionary.get());
    }
  }
  const auto is_carried = [](const LoweredOp* clamp) {
    return clamp->op.kind == tap::OpKind::kCarried;
  };
  const auto carried = std::ranges::find_if(clamps, is_carried);
  if (carried != clamps.end()) builder.add_op(**carried);
  for (const LoweredOp* clamp : clamps) {
    if (is_carried(clamp)) continue;
    const auto found = std::ranges::find(encoded, clamp->dictionary.get());
    if (clamp->dictionary == nullptr || found == encoded.end()) builder.add_op(*clamp);
  }
  for (const features::Dictionary* dictionary : encoded) {
    std::vector<const LoweredOp*> own;
    std::ranges::copy_if(clamps, std::back_inserter(own), [&](const LoweredOp* clamp) {
      return clamp->dictionary.get() == dictionary;
    });
    builder.add_encode(own,
                       features::image_of(*dictionary, model.hash_secret, model.dictionary_dtype));
  }
}

// Of clamps of one feature in their order, those that count: the last one, since what a request
// asks for stands behind what its server does. A min and a max that leave a range between them both
// do.
std::vector<const LoweredOp*> counting_clamps(std::vector<const LoweredOp*> clamps) {
  std::ranges::stable_sort(clamps, {}, &LoweredOp::spec);
  std::vector<const LoweredOp*> counting;
  for (const LoweredOp* clamp : clamps) {
    const auto is_bound = [](const LoweredOp* op, tap::FeatureEdit edit) {
      return op->op.kind == tap::OpKind::kFeature && op->op.edit == edit;
    };
    const auto leaves_range = [&](const LoweredOp* before) {
      return (is_bound(before, tap::FeatureEdit::kMin) && is_bound(clamp, tap::FeatureEdit::kMax) &&
              before->op.value <= clamp->op.value) ||
             (is_bound(before, tap::FeatureEdit::kMax) && is_bound(clamp, tap::FeatureEdit::kMin) &&
              before->op.value >= clamp->op.value);
    };
    std::erase_if(counting, [&](const LoweredOp* before) { return !leaves_range(before); });
    counting.push_back(clamp);
  }
  std::erase_if(counting, &LoweredOp::changes_nothing);
  return counting;
}

void keep_counting_clamps(std::vector<const LoweredOp*>& chosen) {
  using Key = std::tuple<int32_t, const features::Dictionary*, int32_t>;
  std::map<Key, std::vector<const LoweredOp*>> clamps;
  for (const LoweredOp* op : chosen) {
    if (op->clamped == nullptr) continue;
    clamps[{op->point.index(), op->clamped, op->clamped_feature}].push_back(op);
  }
  std::set<const LoweredOp*> counting;
  for (const auto& [key, of_feature] : clamps) {
    const auto kept = counting_clamps(of_feature);
    counting.insert(kept.begin(), kept.end());
  }
  std::erase_if(chosen, [&](const LoweredOp* op) {
    return op->clamped != nullptr && !counting.contains(op);
  });
}

// Of an op that folds into no sum.
int num_vectors(const LoweredOp& op) {
  const int own =
      op.encodes ? 0 : static_cast<int>(!op.v1.empty()) + static_cast<int>(!op.v2.empty());
  return own + static_cast<int>(!op.gate.empty());
}

tap::Program make_program(const Lowered& lowered, const Model& model, uint64_t active) {
  ProgramBuilder builder;
  std::vector<const LoweredOp*> chosen;
  size_t floats = 0;  // of the vectors, at most: what ops share lies there once
  for (const LoweredOp& op : lowered.ops) {
    if ((active >> static_cast<unsigned>(op.selector) & 1U) == 0) continue;
    const bool joins = !chosen.empty() && chosen.back()->folds && chosen.back()->point == op.point;
    const int vectors = op.folds ? (joins ? 0 : 1) : num_vectors(op);
    floats += static_cast<size_t>(vectors * (model.geometry.width(op.point) + tap::kVectorAlign));
    chosen.push_back(&op);
  }
  keep_counting_clamps(chosen);
  builder.reserve(floats);
  for (size_t begin = 0; begin < chosen.size();) {
    size_t end = begin + 1;
    if (chosen[begin]->group == Group::kFeature) {
      while (end < chosen.size() && chosen[end]->group == Group::kFeature &&
             chosen[end]->point == chosen[begin]->point) {
        ++end;
      }
      add_clamps(std::span(chosen).subspan(begin, end - begin), model, builder);
      begin = end;
      continue;
    }
    if (!chosen[begin]->folds) {
      builder.add_op(*chosen[begin++]);
      continue;
    }
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
  tap::Program program = make_program(lowered_, *model_, active);
  if (!program.empty()) {
    made.key = tap::content_key(model_->hash_secret, program, model_->geometry);
    made.program = std::make_shared<const tap::Program>(std::move(program));
  }
  if (programs_.size() < kMaxKeptPrograms) programs_.emplace_back(active, made);
  return made;
}

}  // namespace rudder::steer
