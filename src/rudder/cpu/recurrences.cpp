#include "rudder/cpu/recurrences.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "rudder/base/check.h"

namespace rudder::cpu {
namespace {

using tensor::DType;
using tensor::View;

constexpr int64_t kChannelBlock = 256;
constexpr int64_t kColumnBlock = 32;  // of a head's state: 128 rows of them are 16 KiB
constexpr int64_t kTokenChunk = 64;
constexpr float kLengthEps = 1e-6f;

// One sequence of a step, as an op finds it.
struct SequencePart {
  int64_t begin = 0;  // tokens of the step
  int64_t end = 0;
  int32_t* num_tokens = nullptr;  // that the state is of; null: padding
  float* state = nullptr;
  float* kept = nullptr;  // rows, `kept_stride` floats apart
  int64_t kept_stride = 0;
  int64_t accepted = 0;  // kept rows that the state is moved over first
  int32_t position = 0;  // of its first token
  bool has_drafts = false;

  int64_t count() const { return end - begin; }
  const float* kept_row(int64_t i) const { return kept + i * kept_stride; }
};

std::vector<SequencePart> parts_of(const ops::StateAccess& access) {
  const ops::LayerState& layer = access.layer;
  RUDDER_CHECK(!access.batch.empty() && !layer.pool.empty(), "no states are given");
  const auto at = [](const View& view, int64_t i) { return view.as<const int32_t>()[i]; };
  std::vector<SequencePart> parts;
  for (int64_t seq = 0; seq < access.batch.state.num_rows(); ++seq) {
    SequencePart part{.begin = at(access.q_begin, seq), .end = at(access.q_begin, seq + 1)};
    const int32_t index = at(access.batch.state, seq);
    if (part.count() == 0) continue;
    if (index >= 0) {
      std::byte* const state = layer.pool.rows(index, 1).as<std::byte>() + layer.begin;
      part.num_tokens = reinterpret_cast<int32_t*>(state);
      part.state = reinterpret_cast<float*>(state + ops::kStateLine);
      part.position = at(access.positions, part.begin);
      part.has_drafts = at(access.batch.num_draft, seq) > 0;
      int64_t num_kept = 0;  // none where no drafts are taken
      if (!layer.kept.empty()) {
        const View rows = layer.kept.rows(at(access.table_row, seq), 1);
        num_kept = rows.shape[1];
        part.kept = reinterpret_cast<float*>(rows.as<std::byte>() + layer.kept_begin);
        part.kept_stride = rows.shape[2] / int64_t{sizeof(float)};
      }
      if (part.position > 0) {
        part.accepted = std::min<int64_t>(part.position - *part.num_tokens, num_kept);
      }
    }
    parts.push_back(part);
  }
  return parts;
}

// Once all of an op has run: what the states are of now.
void note_tokens(const std::vector<SequencePart>& parts) {
  for (const SequencePart& part : parts) {
    if (part.num_tokens == nullptr) continue;
    const int64_t moved = part.has_drafts ? 0 : part.count();
    *part.num_tokens = part.position + static_cast<int32_t>(moved);
  }
}

template <typename Body>
void for_each(ThreadPool* pool, int64_t count, const Body& body) {
  if (pool == nullptr || count == 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
  } else {
    pool->parallel_for(count, body);
  }
}

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// As torch has it: x itself where exp(x) would say nothing new.
float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

// Channels [first, first + width) of a sequence.
class ConvolvedBlock {
 public:
  ConvolvedBlock(const ops::ConvolveArgs& args, const SequencePart& part, int64_t first)
      : args_(args),
        part_(part),
        first_(first),
        width_(std::min(kChannelBlock, args.channels() - first)),
        past_(args.length - 1),
        window_(static_cast<size_t>(past_ * width_)) {}

  void run() {
    if (part_.num_tokens != nullptr) restore();
    for (int64_t t = 0; t < part_.count(); ++t) write(t);
    if (part_.num_tokens != nullptr && !part_.has_drafts) {
      move_window(part_.count(), [&](int64_t t) { return input(t); });
      store();
    }
  }

 private:
  // The window in front of the part's first token.
  void restore() {
    if (part_.position > 0) {
      for (int64_t i = 0; i < past_; ++i) std::copy_n(stored(i), width_, row(i));
    }
    if (part_.accepted > 0) {
      move_window(part_.accepted,
                  [&](int64_t i) { return i < 0 ? row(past_ + i) : part_.kept_row(i) + first_; });
    }
    store();
  }

  // To before token `count` of those that `inputs` has; negative ones are of the window.
  template <typename Inputs>
  void move_window(int64_t count, const Inputs& inputs) {
    std::vector<float> moved(window_.size());
    for (int64_t i = 0; i < past_; ++i) {
      std::copy_n(inputs(count - past_ + i), width_, moved.data() + i * width_);
    }
    window_ = std::move(moved);
  }

  void store() {
    for (int64_t i = 0; i < past_; ++i) std::copy_n(row(i), width_, stored(i));
  }

  void write(int64_t t) {
    std::array<float, kChannelBlock> sums = {};
    if (!args_.bias.empty()) {
      std::copy_n(args_.bias.as<const float>() + first_, width_, sums.begin());
    }
    const float* const weight = args_.weight.as<const float>() + first_ * args_.length;
    for (int64_t j = 0; j < args_.length; ++j) {
      const float* const in = input(t - past_ + j);
      for (int64_t c = 0; c < width_; ++c) {
        sums[static_cast<size_t>(c)] += weight[c * args_.length + j] * in[c];
      }
    }
    float* const out = args_.out.as<float>() + (part_.begin + t) * args_.channels() + first_;
    for (int64_t c = 0; c < width_; ++c) {
      const float y = sums[static_cast<size_t>(c)];
      out[c] = args_.silu ? y * sigmoid(y) : y;
    }
  }

  const float* input(int64_t t) {
    if (t < 0) return row(past_ + t);
    return args_.x.as<const float>() + (part_.begin + t) * args_.x.shape[1] + first_;
  }
  float* row(int64_t i) { return window_.data() + i * width_; }
  float* stored(int64_t i) { return part_.state + i * args_.channels() + first_; }

  const ops::ConvolveArgs& args_;
  const SequencePart& part_;
  const int64_t first_;
  const int64_t width_;
  const int64_t past_;  // inputs of the window
  std::vector<float> window_;
};

// What a recurrence reads of one token.
struct RecurRow {
  const float* q;
  const float* k;
  const float* v;
  const float* a;
  const float* b;  // null: there is none
};

// The recurrence of one value head of one sequence.
class RecurredHead {
 public:
  RecurredHead(const ops::RecurArgs& args, const SequencePart& part, int64_t head)
      : args_(args),
        part_(part),
        head_(head),
        key_head_(head / (args.value_heads / args.key_heads)),
        keys_(args.key_dim),
        values_(args.value_dim) {}

  void run() {
    std::vector<float> own;  // of padding, and of tokens that may be wrong
    const auto size = static_cast<size_t>(keys_ * values_);
    if (part_.num_tokens == nullptr) {
      own.assign(size, 0.0f);
      return walk(
          part_.count(), own.data(), [&](int64_t t) { return live_row(t); }, true);
    }
    float* const state = part_.state + head_ * keys_ * values_;
    if (part_.position == 0) std::fill_n(state, size, 0.0f);
    walk(
        part_.accepted, state, [&](int64_t i) { return kept_row(i); }, false);
    if (part_.has_drafts) own.assign(state, state + size);
    walk(
        part_.count(), part_.has_drafts ? own.data() : state,
        [&](int64_t t) { return live_row(t); }, true);
  }

 private:
  RecurRow live_row(int64_t t) const {
    const float* const qkv = args_.qkv.as<const float>() + (part_.begin + t) * args_.qkv.shape[1];
    const auto row_of = [&](const View& rows) {
      return rows.as<const float>() + (part_.begin + t) * rows.shape[1];
    };
    return {qkv + args_.q_begin, qkv + args_.k_begin, qkv + args_.v_begin,
            row_of(args_.gates) + args_.a_begin,
            args_.b.begin < 0 ? nullptr : row_of(args_.b_rows()) + args_.b.begin};
  }
  RecurRow kept_row(int64_t i) const {
    const float* const q = part_.kept_row(i);
    const float* const k = q + args_.key_heads * keys_;
    const float* const v = k + args_.key_heads * keys_;
    const float* const a = v + args_.value_heads * values_;
    return {q, k, v, a, args_.b.begin < 0 ? nullptr : a + args_.a_width()};
  }

  template <typename Rows>
  void walk(int64_t count, float* state, const Rows& rows, bool writes) {
    for (int64_t begin = 0; begin < count; begin += kTokenChunk) {
      const int64_t size = std::min(kTokenChunk, count - begin);
      queries_.resize(static_cast<size_t>(size * keys_));
      factors_.resize(queries_.size());
      decays_.resize(queries_.size());
      for (int64_t i = 0; i < size; ++i) prepare(i, rows(begin + i));
      for (int64_t column = 0; column < values_; column += kColumnBlock) {
        const int64_t width = std::min(kColumnBlock, values_ - column);
        for (int64_t i = 0; i < size; ++i) {
          float* const out = writes ? args_.out.as<float>() +
                                          (part_.begin + begin + i) * args_.out.shape[1] +
                                          head_ * values_ + column
                                    : nullptr;
          const float* const v = rows(begin + i).v + head_ * values_ + column;
          if (width == kColumnBlock) {
            step(i, kColumnBlock, v, state + column, out);
          } else {
            step(i, width, v, state + column, out);
          }
        }
      }
    }
  }

  // Normed q and k, the decay of each key channel and beta of token i of the chunk.
  void prepare(int64_t i, const RecurRow& row) {
    float* const q = queries_.data() + i * keys_;
    float* const k = factors_.data() + i * keys_;
    std::copy_n(row.q + key_head_ * keys_, keys_, q);
    std::copy_n(row.k + key_head_ * keys_, keys_, k);
    if (args_.rule == ops::RecurRule::kDelta) {
      make_unit(q, 1.0f / std::sqrt(static_cast<float>(keys_)));
      make_unit(k, 1.0f);
    }
    const float rate = std::exp(args_.a_log.as<const float>()[head_]);
    const auto step_of = [&](int64_t channel) {
      const float s = softplus(row.a[channel] + args_.step_bias.as<const float>()[channel]);
      return std::min(std::max(s, args_.limits.low), args_.limits.high);
    };
    float* const decay = decays_.data() + i * keys_;
    float s = 0;
    if (args_.limits.decay_floor < 0) {
      for (int64_t c = 0; c < keys_; ++c) {
        const int64_t channel = head_ * keys_ + c;
        const float a = row.a[channel] + args_.step_bias.as<const float>()[channel];
        decay[c] = std::exp(args_.limits.decay_floor * sigmoid(rate * a));
      }
    } else if (args_.a_by_channel) {
      for (int64_t c = 0; c < keys_; ++c) decay[c] = std::exp(-rate * step_of(head_ * keys_ + c));
    } else {
      s = step_of(head_);
      std::fill_n(decay, keys_, std::exp(-rate * s));
    }
    betas_[static_cast<size_t>(i)] = row.b == nullptr ? s : sigmoid(row.b[head_]);
  }

  void make_unit(float* x, float scale) const {
    float square = 0;
    for (int64_t c = 0; c < keys_; ++c) square += x[c] * x[c];
    const float factor = 1.0f / std::sqrt(square + kLengthEps);
    for (int64_t c = 0; c < keys_; ++c) x[c] = x[c] * factor * scale;
  }

  // Token i of the chunk, of `width` columns of the state.
  [[gnu::always_inline]] void step(int64_t i, int64_t width, const float* v, float* state,
                                   float* out) const {
    const float* const q = queries_.data() + i * keys_;
    const float* const k = factors_.data() + i * keys_;
    const float* const decay = decays_.data() + i * keys_;
    const float beta = betas_[static_cast<size_t>(i)];
    std::array<float, kColumnBlock> delta = {};
    for (int64_t c = 0; c < keys_; ++c) {
      float* const row = state + c * values_;
      for (int64_t j = 0; j < width; ++j) row[j] *= decay[c];
      if (args_.rule == ops::RecurRule::kSum) continue;
      for (int64_t j = 0; j < width; ++j) delta[static_cast<size_t>(j)] += k[c] * row[j];
    }
    for (int64_t j = 0; j < width; ++j) {
      delta[static_cast<size_t>(j)] = beta * (v[j] - delta[static_cast<size_t>(j)]);
    }
    std::array<float, kColumnBlock> sums = {};
    for (int64_t c = 0; c < keys_; ++c) {
      float* const row = state + c * values_;
      for (int64_t j = 0; j < width; ++j) {
        row[j] += k[c] * delta[static_cast<size_t>(j)];
        sums[static_cast<size_t>(j)] += q[c] * row[j];
      }
    }
    if (out == nullptr) return;
    const float skip = args_.skip.empty() ? 0.0f : args_.skip.as<const float>()[head_];
    for (int64_t j = 0; j < width; ++j) out[j] = sums[static_cast<size_t>(j)] + skip * v[j];
  }

  const ops::RecurArgs& args_;
  const SequencePart& part_;
  const int64_t head_;
  const int64_t key_head_;
  const int64_t keys_;
  const int64_t values_;
  std::vector<float> queries_;  // [chunk, keys], as the two below
  std::vector<float> factors_;  // keys, normed
  std::vector<float> decays_;
  std::array<float, kTokenChunk> betas_ = {};
};

// Rows of the tokens that may be wrong: runs of the inputs side by side.
struct KeptRun {
  const View& rows;
  int64_t begin = 0;
  int64_t count = 0;
};

void keep_inputs(const std::vector<SequencePart>& parts, std::initializer_list<KeptRun> runs) {
  for (const SequencePart& part : parts) {
    if (part.num_tokens == nullptr || !part.has_drafts) continue;
    for (int64_t t = 0; t < part.count(); ++t) {
      float* to = part.kept + t * part.kept_stride;
      for (const KeptRun& run : runs) {
        const int64_t row = (part.begin + t) * run.rows.shape[1];
        to = std::copy_n(run.rows.as<const float>() + row + run.begin, run.count, to);
      }
    }
  }
}

float gate_factor(ops::GateFunction function, float gate) {
  switch (function) {
    case ops::GateFunction::kSigmoid:
      return sigmoid(gate);
    case ops::GateFunction::kSilu:
      return gate * sigmoid(gate);
    case ops::GateFunction::kItself:
      return gate;
  }
  RUDDER_CHECK(false, "gate {}", static_cast<int>(function));
}

void gate_row(const ops::GateRowsArgs& args, int64_t t) {
  const int64_t width = args.out.shape[1];
  const float* const x = args.x.as<const float>() + t * args.x.shape[1];
  const float* const gate = args.gate.as<const float>() + t * args.gate.shape[1] + args.gate_begin;
  float* const out = args.out.as<float>() + t * width;
  for (int64_t i = 0; i < width && args.gates_first; ++i) {
    out[i] = x[i] * gate_factor(args.function, gate[i]);
  }
  const float* const in = args.gates_first ? out : x;
  const bool norms = !args.norm.empty();
  const int64_t run = norms ? args.run : width;
  for (int64_t begin = 0; begin < width; begin += run) {
    float factor = 1;
    if (norms) {
      double square = 0;
      for (int64_t i = begin; i < begin + run; ++i) square += double{in[i]} * double{in[i]};
      factor = static_cast<float>(
          1 / std::sqrt(square / static_cast<double>(run) + double{args.norm.eps}));
    }
    for (int64_t i = begin; i < begin + run; ++i) {
      float value = in[i] * factor;
      if (norms) value *= args.norm.weight.as<const float>()[i % args.norm.weight.num_rows()];
      if (!args.gates_first) value *= gate_factor(args.function, gate[i]);
      out[i] = value;
    }
  }
}

}  // namespace

void Recurrences::convolve(const ops::ConvolveArgs& args) {
  RUDDER_CHECK(args.x.dtype == DType::kF32 && args.x.shape[1] >= args.channels() &&
               args.weight.num_rows() == args.channels() * args.length);
  const std::vector<SequencePart> parts = parts_of(args.state);
  const int64_t blocks = (args.channels() + kChannelBlock - 1) / kChannelBlock;
  for_each(pool_, std::ssize(parts) * blocks, [&](int64_t i) {
    const SequencePart& part = parts[static_cast<size_t>(i / blocks)];
    ConvolvedBlock(args, part, i % blocks * kChannelBlock).run();
  });
  keep_inputs(parts, {{args.x, 0, args.channels()}});
  note_tokens(parts);
}

void Recurrences::recur(const ops::RecurArgs& args) {
  RUDDER_CHECK(args.qkv.dtype == DType::kF32 && args.value_heads % args.key_heads == 0 &&
               args.out.shape[1] == int64_t{args.value_heads} * args.value_dim);
  const std::vector<SequencePart> parts = parts_of(args.state);
  for_each(pool_, std::ssize(parts) * args.value_heads, [&](int64_t i) {
    RecurredHead(args, parts[static_cast<size_t>(i / args.value_heads)], i % args.value_heads)
        .run();
  });
  const int64_t key_width = int64_t{args.key_heads} * args.key_dim;
  keep_inputs(parts, {{args.qkv, args.q_begin, key_width},
                      {args.qkv, args.k_begin, key_width},
                      {args.qkv, args.v_begin, int64_t{args.value_heads} * args.value_dim},
                      {args.gates, args.a_begin, args.a_width()},
                      {args.b_rows(), std::max<int64_t>(args.b.begin, 0),
                       args.b.begin < 0 ? 0 : args.value_heads}});
  note_tokens(parts);
}

void Recurrences::gate_rows(const ops::GateRowsArgs& args) {
  RUDDER_CHECK(args.x.dtype == DType::kF32 && args.x.shape[1] >= args.out.shape[1] &&
               args.gate.shape[1] >= args.gate_begin + args.out.shape[1] &&
               (args.norm.empty() || args.out.shape[1] % args.run == 0));
  for_each(pool_, args.x.shape[0], [&](int64_t t) { gate_row(args, t); });
}

}  // namespace rudder::cpu
