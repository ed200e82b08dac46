#include "rudder/pjrt/module_decoder.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/base/clock.h"
#include "rudder/base/log.h"
#include "rudder/cpu/tap_program.h"
#include "rudder/model/weight_budget.h"
#include "rudder/pjrt/device_weights.h"
#include "rudder/pjrt/modules.h"
#include "rudder/pjrt/pjrt_ops.h"
#include "rudder/pjrt/step_passes.h"

namespace rudder::pjrt {
namespace {

using model::ForwardBatch;
using tap::Site;
using tensor::DType;
using tensor::View;

// A pass on its way through the modules.
struct RunningPass {
  StepPass step;
  Buffer ids;
  Buffer positions;
  struct Group {
    Buffer slots;
    Buffer pages;
  };
  std::vector<Group> groups;
  Buffer rows;  // [rows, hidden] f32: the residual, in the end behind the final norm
};

View host_rows(std::vector<float>& values, int64_t width) {
  return {values.data(), DType::kF32, {std::ssize(values) / width, width}};
}

class ModuleDecoder final : public model::Decoder {
 public:
  ModuleDecoder(const model::OwnKvDecoderParts& parts, const ModuleSettings& settings)
      : ops_(static_cast<PjrtOps&>(parts.ops)),
        client_(ops_.client()),
        modules_(client_, settings.cache_folder) {}

  Result<void> prepare(const model::OwnKvDecoderParts& parts);
  Result<void> compile_first(const model::DecoderLimits& limits);

  View forward(const ForwardBatch& batch) override;
  View more_logits(const View& rows) override;

  // Nobody cuts a module in two, or reads the residual of a step.
  Begun begin(const ForwardBatch& /*batch*/) override { return {}; }
  View finish(const Begun& /*begun*/, const ForwardBatch& /*batch*/) override { return {}; }
  View hidden(int64_t /*num_tokens*/) const override { return {}; }

 private:
  using Rows = std::vector<float>;  // [T, .] of a step's tokens, on the host

  void describe(const model::OwnKvDecoderParts& parts);
  Result<void> allocate_kv();

  // A module with the weights that are its arguments.
  struct Ready {
    const Executable* module = nullptr;
    std::vector<const Buffer*> weights;
  };

  Result<void> start(const ForwardBatch& batch);
  Result<const Ready*> ready(Part part, int32_t layer, const PassShape& shape);
  Result<Buffer> run(RunningPass& pass, Part part, int32_t layer, const Buffer& input);
  Result<void> run_whole();
  Result<void> run_tapped(const ForwardBatch& batch);
  Result<void> run_opened_layer(const ForwardBatch& batch, int32_t layer);
  Result<Rows> map(Part part, int32_t layer, const Rows& rows, int64_t width);
  Result<Rows> read_rows();
  Result<void> write_rows(const Rows& rows);
  bool is_tapped(const ForwardBatch& batch, int32_t layer, Site site) const;
  void tap(const ForwardBatch& batch, int32_t layer, Site site, Rows& rows);
  void tap_rows(const ForwardBatch& batch, const ops::Taps& taps, const View& rows);
  Result<void> tap_residual(const ForwardBatch& batch, int32_t layer, Site site);
  Result<void> make_logits(std::span<const int32_t> tokens);

  PjrtOps& ops_;
  const Client& client_;
  Modules modules_;
  ModelShape shape_;
  PassLimits pass_limits_;
  DeviceWeights device_weights_;
  std::vector<float> layer_scales_;  // of outputs
  std::map<std::tuple<Part, int32_t, int64_t, int64_t, bool, int64_t>, Ready> ready_;
  // Keys, then values, of KV tensor 0, of 1, ...; of codes each with their scales.
  std::vector<Buffer> kv_;

  // Of the last step.
  std::vector<RunningPass> passes_;
  int64_t num_tokens_ = 0;
  std::vector<float> logits_;  // [max_logits_rows, vocab]
  std::vector<float> read_;    // logits of one pass
};

void ModuleDecoder::describe(const model::OwnKvDecoderParts& parts) {
  shape_.spec = parts.spec;
  shape_.numbers = ops_.numbers() == DType::kF32 ? Elt::kF32 : Elt::kBF16;
  shape_.has_codes = ops_.kv_format().has_codes();
  shape_.embed_scale = model::table_scale(parts.spec.embed_scale, model::table_dtype(ops_));
  shape_.max_seq_len = parts.limits.max_seq_len;
  shape_.num_blocks = parts.num_blocks;
  shape_.block_size = parts.block_size;
  shape_.num_groups = parts.num_groups;
  pass_limits_.block_size = parts.block_size;
  pass_limits_.max_pages =
      (parts.limits.max_seq_len + parts.block_size - 1) / int64_t{parts.block_size};
  pass_limits_.group_layers.assign(static_cast<size_t>(parts.num_groups), 1);
  // One tensor for each layer of a block and each shape of keys that is there.
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> tensors;
  for (size_t i = 0; i < parts.kv.size(); ++i) {
    const model::LayerInBlock& layer = parts.kv[i];
    const model::KvGeometry kept =
        kv_geometry(parts.spec.layers[model::kv_layer_of(parts.spec, i)]);
    const auto [found, is_new] =
        tensors.emplace(std::tuple(layer.index, kept.num_kv_heads, kept.head_dim), shape_.num_kv);
    if (is_new) ++shape_.num_kv;
    shape_.kv_index.push_back(found->second);
    shape_.kv_group.push_back(layer.group);
    pass_limits_.group_layers[static_cast<size_t>(layer.group)] = layer.layers;
  }
}

Result<void> ModuleDecoder::prepare(const model::OwnKvDecoderParts& parts) {
  RUDDER_TRY_VOID(check_spec(parts.spec));
  describe(parts);
  RUDDER_TRY(device_weights_, DeviceWeights::take(shape_, parts.weights, client_));
  for (const model::LayerWeights& layer : parts.weights.layers) {
    layer_scales_.push_back(layer.scale);
  }
  RUDDER_TRY_VOID(allocate_kv());
  logits_.resize(static_cast<size_t>(parts.limits.max_logits_rows) *
                 static_cast<size_t>(parts.spec.vocab));
  return {};
}

// For every number of rows and the shortest contexts.
Result<void> ModuleDecoder::compile_first(const model::DecoderLimits& limits) {
  const SteadyClock clock;
  const int64_t start = clock.now_us();
  const int64_t pages = page_bucket(1, pass_limits_.max_pages);
  const auto compile = [&](std::span<const int32_t> buckets, int64_t most,
                           bool is_chunk) -> Result<void> {
    for (const int32_t rows : buckets) {
      if (rows > bucket_of(buckets, most)) break;
      PassShape shape = {.rows = rows, .pages = pages, .is_chunk = is_chunk};
      RUDDER_TRY_VOID(ready(Part::kPass, 0, shape));
      shape = {.rows = rows, .logits_rows = is_chunk ? 1 : rows};
      RUDDER_TRY_VOID(ready(Part::kHead, 0, shape));
    }
    return {};
  };
  RUDDER_TRY_VOID(compile(kRowBuckets, limits.max_logits_rows, false));
  RUDDER_TRY_VOID(compile(kChunkBuckets, limits.max_tokens, true));
  log_info("{} modules compiled and {} read from files in {:.1f} s", modules_.num_compiled(),
           modules_.num_loaded(), static_cast<double>(clock.now_us() - start) * 1e-6);
  return {};
}

// Zeros, made by the device.
Result<void> ModuleDecoder::allocate_kv() {
  for (int32_t i = 0; i < shape_.num_kv; ++i) {
    const std::vector<Type> types = shape_.kv_types(i);
    for (size_t made = 0; made < 2 * types.size(); ++made) {  // of keys, and of values
      HloText text;
      const Value zeros = text.constant(0, types[made % types.size()]);
      RUDDER_TRY(const Executable* const module, modules_.get(text.finish({&zeros, 1})));
      RUDDER_TRY(std::vector<Buffer> buffers, module->run({}, 1));
      kv_.push_back(std::move(buffers.front()));
    }
  }
  return {};
}

// Cuts the step and sends its passes to the device.
Result<void> ModuleDecoder::start(const ForwardBatch& batch) {
  passes_.clear();
  num_tokens_ = batch.ids.num_rows();
  for (StepPass& step : cut_step(batch, pass_limits_)) {
    RunningPass& pass = passes_.emplace_back();
    pass.step = std::move(step);
    const PassShape& shape = pass.step.shape;
    const auto upload = [&](std::vector<int32_t>& values, tensor::Shape dims) {
      return client_.upload({values.data(), DType::kI32, dims});
    };
    RUDDER_TRY(pass.ids, upload(pass.step.ids, {shape.rows}));
    RUDDER_TRY(pass.positions, upload(pass.step.positions, {shape.rows}));
    for (StepPass::Group& group : pass.step.groups) {
      RunningPass::Group& sent = pass.groups.emplace_back();
      RUDDER_TRY(sent.slots, upload(group.slots, {shape.rows, 2}));
      RUDDER_TRY(sent.pages, shape.is_chunk ? upload(group.pages, {shape.pages})
                                            : upload(group.pages, {shape.rows, shape.pages}));
    }
  }
  return {};
}

Result<const ModuleDecoder::Ready*> ModuleDecoder::ready(Part part, int32_t layer,
                                                         const PassShape& shape) {
  Ready& ready = ready_[{part, layer, shape.rows, shape.pages, shape.is_chunk, shape.logits_rows}];
  if (ready.module != nullptr) return &ready;
  RUDDER_TRY(ready.module, modules_.get(module_text(shape_, part, shape, layer)));
  for (const WeightRef& ref : weight_list(shape_, part, layer)) {
    ready.weights.push_back(&device_weights_.of(ref));
  }
  return &ready;
}

// One module over the pass: what it makes of its input; the KV is changed where it lies.
Result<Buffer> ModuleDecoder::run(RunningPass& pass, Part part, int32_t layer,
                                  const Buffer& input) {
  PassShape shape = pass.step.shape;
  if (!reads_kv(part)) shape = {.rows = shape.rows};
  RUDDER_TRY(const Ready* const ready, this->ready(part, layer, shape));
  std::vector<const Buffer*> arguments = {&input};
  std::vector<size_t> kv;
  if (reads_kv(part)) {
    const auto own = static_cast<size_t>(shape_.kv_group[static_cast<size_t>(layer)]);
    const auto index = static_cast<size_t>(shape_.kv_index[static_cast<size_t>(layer)]);
    arguments.push_back(&pass.positions);
    for (size_t g = 0; g < pass.groups.size(); ++g) {
      if (part != Part::kPass && g != own) continue;
      arguments.push_back(&pass.groups[g].slots);
      arguments.push_back(&pass.groups[g].pages);
    }
    for (size_t i = 0; i < kv_.size(); ++i) {
      if (part == Part::kPass || i / (kv_.size() / static_cast<size_t>(shape_.num_kv)) == index)
        kv.push_back(i);
    }
  }
  arguments.insert(arguments.end(), ready->weights.begin(), ready->weights.end());
  for (const size_t i : kv) arguments.push_back(&kv_[i]);
  RUDDER_TRY(std::vector<Buffer> made, ready->module->run(arguments, kv.size() + 1));
  for (size_t i = 0; i < kv.size(); ++i) kv_[kv[i]] = std::move(made[i]);
  return std::move(made.back());
}

Result<void> ModuleDecoder::run_whole() {
  for (RunningPass& pass : passes_) {
    RUDDER_TRY(pass.rows, run(pass, Part::kPass, 0, pass.ids));
  }
  return {};
}

bool ModuleDecoder::is_tapped(const ForwardBatch& batch, int32_t layer, Site site) const {
  if (batch.tap_table == nullptr) return false;
  return batch.tapped == nullptr || batch.tapped->has({layer, site});
}

void ModuleDecoder::tap_rows(const ForwardBatch& batch, const ops::Taps& taps, const View& rows) {
  const int64_t width = rows.shape[1];
  for (int64_t row = 0; row < rows.num_rows(); ++row) {
    cpu::run_taps(taps, row, rows.as<float>() + row * width, width);
  }
  model::encode_at(ops_, batch, taps, rows);
}

// Behind the last layer's mixer only rows of logits count, unless the step keeps all: as in the
// decoder of macro-ops.
void ModuleDecoder::tap(const ForwardBatch& batch, int32_t layer, Site site, Rows& rows) {
  if (!is_tapped(batch, layer, site)) return;
  const int64_t width = std::ssize(rows) / num_tokens_;
  const int32_t point = tap::Point{layer, site}.index();
  const bool is_behind = site != Site::kResidPre && site != Site::kAttnIn && site != Site::kAttnZ;
  const bool is_last = layer + 1 == std::ssize(shape_.spec.layers);
  if (!is_last || !is_behind || batch.keep_all_rows) {
    tap_rows(batch, {batch.tap_table, &batch.taps, point}, host_rows(rows, width));
    return;
  }
  const std::span<const int32_t> picked(batch.logits_rows.as<int32_t>(),
                                        static_cast<size_t>(batch.logits_rows.num_rows()));
  if (picked.empty()) return;
  Rows some;
  for (const int32_t row : picked) {
    const auto from = rows.begin() + row * width;
    some.insert(some.end(), from, from + width);
  }
  tap_rows(batch, {batch.tap_table, &batch.rows_taps, point}, host_rows(some, width));
  for (size_t i = 0; i < picked.size(); ++i) {
    std::copy_n(some.begin() + static_cast<int64_t>(i) * width, width,
                rows.begin() + picked[i] * width);
  }
}

// [T, hidden] of what all passes have in `rows`.
Result<ModuleDecoder::Rows> ModuleDecoder::read_rows() {
  const auto width = static_cast<size_t>(shape_.spec.hidden);
  Rows rows(static_cast<size_t>(num_tokens_) * width);
  Rows whole;
  for (const RunningPass& pass : passes_) {
    whole.resize(static_cast<size_t>(pass.step.shape.rows) * width);
    RUDDER_TRY_VOID(pass.rows.read(whole.data(), whole.size() * sizeof(float)));
    for (size_t i = 0; i < pass.step.tokens.size(); ++i) {
      std::copy_n(whole.data() + i * width, width,
                  rows.data() + static_cast<size_t>(pass.step.tokens[i]) * width);
    }
  }
  return rows;
}

Result<void> ModuleDecoder::write_rows(const Rows& rows) {
  const auto width = static_cast<size_t>(shape_.spec.hidden);
  for (RunningPass& pass : passes_) {
    Rows whole(static_cast<size_t>(pass.step.shape.rows) * width);
    for (size_t i = 0; i < pass.step.tokens.size(); ++i) {
      std::copy_n(rows.data() + static_cast<size_t>(pass.step.tokens[i]) * width, width,
                  whole.data() + i * width);
    }
    RUDDER_TRY(pass.rows, client_.upload(host_rows(whole, shape_.spec.hidden)));
  }
  return {};
}

// A part of a layer over the rows of all passes, [T, .] to [T, width].
Result<ModuleDecoder::Rows> ModuleDecoder::map(Part part, int32_t layer, const Rows& rows,
                                               int64_t width) {
  const auto in_width = static_cast<size_t>(std::ssize(rows) / num_tokens_);
  const auto out_width = static_cast<size_t>(width);
  Rows out(static_cast<size_t>(num_tokens_) * out_width);
  for (RunningPass& pass : passes_) {
    const auto count = static_cast<size_t>(pass.step.shape.rows);
    Rows whole(count * in_width);
    for (size_t i = 0; i < pass.step.tokens.size(); ++i) {
      std::copy_n(rows.data() + static_cast<size_t>(pass.step.tokens[i]) * in_width, in_width,
                  whole.data() + i * in_width);
    }
    RUDDER_TRY(const Buffer input,
               client_.upload(host_rows(whole, static_cast<int64_t>(in_width))));
    RUDDER_TRY(const Buffer made, run(pass, part, layer, input));
    whole.resize(count * out_width);
    RUDDER_TRY_VOID(made.read(whole.data(), whole.size() * sizeof(float)));
    for (size_t i = 0; i < pass.step.tokens.size(); ++i) {
      std::copy_n(whole.data() + i * out_width, out_width,
                  out.data() + static_cast<size_t>(pass.step.tokens[i]) * out_width);
    }
  }
  return out;
}

Result<void> ModuleDecoder::tap_residual(const ForwardBatch& batch, int32_t layer, Site site) {
  if (!is_tapped(batch, layer, site)) return {};
  RUDDER_TRY(Rows rows, read_rows());
  tap(batch, layer, site, rows);
  return write_rows(rows);
}

// A layer with taps inside: each of its parts by itself.
Result<void> ModuleDecoder::run_opened_layer(const ForwardBatch& batch, int32_t layer) {
  const model::LayerSpec& spec = shape_.spec.layers[static_cast<size_t>(layer)];
  const int64_t hidden = shape_.spec.hidden;
  const auto add = [&](Rows& to, const Rows& delta) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += delta[i];
  };
  const auto scale = [&](Rows& rows) {
    for (float& value : rows) value *= shape_.spec.branch_scale;
  };
  RUDDER_TRY(Rows x, read_rows());
  RUDDER_TRY(Rows in, map(Part::kReadMixer, layer, x, hidden));
  tap(batch, layer, Site::kAttnIn, in);
  RUDDER_TRY(Rows mixed, map(Part::kMix, layer, in, attention_of(spec)->q_width()));
  tap(batch, layer, Site::kAttnZ, mixed);
  RUDDER_TRY(Rows delta, map(Part::kMixed, layer, mixed, hidden));
  scale(delta);
  tap(batch, layer, Site::kAttnOut, delta);
  add(x, delta);
  tap(batch, layer, Site::kResidMid, x);
  RUDDER_TRY(in, map(Part::kReadMlp, layer, x, hidden));
  tap(batch, layer, Site::kMlpIn, in);
  RUDDER_TRY(Rows act, map(Part::kMlpAct, layer, in, gated_mlp_of(spec)->width));
  tap(batch, layer, Site::kMlpAct, act);
  RUDDER_TRY(delta, map(Part::kMlpOut, layer, act, hidden));
  scale(delta);
  tap(batch, layer, Site::kMlpOut, delta);
  add(x, delta);
  for (float& value : x) value *= layer_scales_[static_cast<size_t>(layer)];
  return write_rows(x);
}

Result<void> ModuleDecoder::run_tapped(const ForwardBatch& batch) {
  constexpr Site kInside[] = {Site::kAttnIn, Site::kAttnZ,  Site::kAttnOut, Site::kResidMid,
                              Site::kMlpIn,  Site::kMlpAct, Site::kMlpOut};
  for (RunningPass& pass : passes_) {
    RUDDER_TRY(pass.rows, run(pass, Part::kEmbed, 0, pass.ids));
  }
  const auto last = static_cast<int32_t>(std::ssize(shape_.spec.layers)) - 1;
  for (int32_t layer = 0; layer <= last; ++layer) {
    RUDDER_TRY_VOID(tap_residual(batch, layer, Site::kResidPre));
    const bool is_opened =
        std::ranges::any_of(kInside, [&](Site site) { return is_tapped(batch, layer, site); });
    if (is_opened) {
      RUDDER_TRY_VOID(run_opened_layer(batch, layer));
    } else {
      for (RunningPass& pass : passes_) {
        RUDDER_TRY(pass.rows, run(pass, Part::kLayer, layer, pass.rows));
      }
    }
    RUDDER_TRY_VOID(tap_residual(batch, layer, Site::kResidPost));
  }
  for (RunningPass& pass : passes_) {
    RUDDER_TRY(pass.rows, run(pass, Part::kEnd, 0, pass.rows));
  }
  return tap_residual(batch, last, Site::kFinalNorm);
}

// Of tokens of the last step, in order, from the first row of logits_ on.
Result<void> ModuleDecoder::make_logits(std::span<const int32_t> tokens) {
  constexpr size_t kMost = std::end(kRowBuckets)[-1];
  const auto vocab = static_cast<size_t>(shape_.spec.vocab);
  RUDDER_CHECK(tokens.size() * vocab <= logits_.size(), "{} rows of logits", tokens.size());
  for (const RunningPass& pass : passes_) {
    std::vector<int32_t> rows;  // of the pass
    std::vector<size_t> to;     // row of logits
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto found = std::ranges::find(pass.step.tokens, tokens[i]);
      if (found == pass.step.tokens.end()) continue;
      rows.push_back(static_cast<int32_t>(found - pass.step.tokens.begin()));
      to.push_back(i);
    }
    for (size_t first = 0; first < rows.size(); first += kMost) {
      const size_t count = std::min(kMost, rows.size() - first);
      PassShape shape = {.rows = pass.step.shape.rows};
      shape.logits_rows = bucket_of(kRowBuckets, static_cast<int64_t>(count));
      std::vector<int32_t> picked(static_cast<size_t>(shape.logits_rows), 0);
      std::copy_n(rows.begin() + static_cast<int64_t>(first), count, picked.begin());
      RUDDER_TRY(const Ready* const ready, this->ready(Part::kHead, 0, shape));
      RUDDER_TRY(const Buffer sent, client_.upload(tensor::host_view(picked)));
      const Buffer* const arguments[] = {&pass.rows, &sent, ready->weights.front()};
      RUDDER_TRY(const std::vector<Buffer> made, ready->module->run(arguments, 1));
      read_.resize(picked.size() * vocab);
      RUDDER_TRY_VOID(made.front().read(read_.data(), read_.size() * sizeof(float)));
      for (size_t i = 0; i < count; ++i) {
        std::copy_n(read_.data() + i * vocab, vocab, logits_.data() + to[first + i] * vocab);
      }
    }
  }
  return {};
}

View ModuleDecoder::forward(const ForwardBatch& batch) {
  Result<void> done = start(batch);
  if (done) {
    const bool is_tapped =
        batch.tap_table != nullptr && (batch.tapped == nullptr || batch.tapped->size() > 0);
    done = is_tapped ? run_tapped(batch) : run_whole();
  }
  ops_.fault(done);
  if (!done || batch.logits_rows.num_rows() == 0) return {};
  return more_logits(batch.logits_rows);
}

View ModuleDecoder::more_logits(const View& rows) {
  ops_.fault(make_logits({rows.as<int32_t>(), static_cast<size_t>(rows.num_rows())}));
  return {logits_.data(), DType::kF32, {rows.num_rows(), shape_.spec.vocab}};
}

}  // namespace

Result<std::unique_ptr<model::Decoder>> make_module_decoder(const model::OwnKvDecoderParts& parts,
                                                            const ModuleSettings& settings) {
  auto decoder = std::make_unique<ModuleDecoder>(parts, settings);
  RUDDER_TRY_VOID(decoder->prepare(parts));
  if (settings.compiles_at_start) RUDDER_TRY_VOID(decoder->compile_first(parts.limits));
  return std::unique_ptr<model::Decoder>(std::move(decoder));
}

}  // namespace rudder::pjrt
