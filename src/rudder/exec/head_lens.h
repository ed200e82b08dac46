// HeadLens: the lens over the model's own final norm and head. It has ops of its own, so that it
// reads the weights beside the executor's steps and waits for none of them. Made by load_model; the
// thread of the consumer that reads uses it. Its weights live as long as the executor.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/tap/lens.h"

namespace rudder::exec {

class HeadLens final : public tap::Lens {
 public:
  // What it reads through: the head, or the part of it that each rank of a group has, in the order
  // of ranks.
  struct Weights {
    ops::NormSpec final_norm;
    std::vector<ops::LinearWeight> heads;
    model::ResidualWeights residual = {};  // of the last layer
  };

  // `ops` are those of ReaderOps::make_reader() of the backend that the weights lie on. `spec` is
  // the whole model's.
  static Result<std::unique_ptr<HeadLens>> make(std::unique_ptr<ops::Ops> ops,
                                                const model::ModelSpec& spec, Weights weights);
  // Bytes that make() allocates.
  static int64_t device_bytes(const model::ModelSpec& spec, int32_t num_ranks);

  Result<void> read(std::span<const float> rows, int32_t top,
                    std::vector<tap::LensToken>& out) override;
  Result<void> read_collapsed(std::span<const float> rows, std::span<const int32_t> made,
                              int32_t top, std::vector<tap::LensToken>& out) override;
  size_t rows_together() const override;

  // Nobody reads while it is held: the weights may change meanwhile. Any thread.
  using Held = std::unique_lock<std::mutex>;
  Held hold() { return Held(mutex_); }
  // While it is held: reads by that head from then on. Of a model on one rank.
  void set_head(const ops::LinearWeight& head) { weights_.heads = {head}; }

 private:
  HeadLens(std::unique_ptr<ops::Ops> ops, const model::ModelSpec& spec, Weights weights)
      : ops_(std::move(ops)), weights_(std::move(weights)), spec_(spec) {}

  Result<void> allocate();
  Result<void> read_all(std::span<const float> rows, std::span<const int32_t> made, int32_t top,
                        std::vector<tap::LensToken>& out);
  Result<void> read_some(std::span<const float> rows, std::span<const int32_t> made, int32_t top,
                         std::span<tap::LensToken> out);
  // rows_ become the collapsed ones of whole_.
  void collapse(std::span<const int32_t> made);
  // Of the first `num` rows: the likeliest tokens on the device.
  void score(int64_t num, int32_t top);
  void multiply(int64_t num, const ops::View& scale);

  const std::unique_ptr<ops::Ops> ops_;
  Weights weights_;
  const model::ModelSpec spec_;
  std::mutex mutex_;  // held by whoever reads, or changes weights
  std::unique_ptr<ops::Event> done_;
  ops::View rows_;                // [kRowsAtOnce, hidden] act
  ops::View whole_;               // [kRowsAtOnce, residual width] act, of several streams
  ops::View normed_;              // likewise, of what the head takes
  ops::View scale_;               // [kRowsAtOnce] f32, where it takes F8E4M3
  ops::View logits_;              // [kRowsAtOnce, vocab] f32
  std::vector<ops::View> parts_;  // of ranks: [kRowsAtOnce, their columns] f32
  ops::View tokens_;              // [kRowsAtOnce] i32: the score op wants one a row
  ops::View scored_;              // [kRowsAtOnce, 4] i32
  ops::View top_;                 // [kRowsAtOnce, kMaxLogprobs, 2] i32
  ops::View staged_rows_;         // the same in staging memory
  ops::View staged_whole_;
  ops::View staged_scored_;
  ops::View staged_top_;
};

}  // namespace rudder::exec
