// PatchSweep: activation patching over a grid. It captures the clean run, then runs the corrupted
// prompt once for each cell with the clean rows put in at the cell's point and positions, and
// measures the answer tokens behind it. Each run is a request of its own to the engine: it has a
// place in the queue and its tenant's share like any other, a few of them at a time. Lives on its
// connection's I/O thread; the engine's sinks keep it alive until their last events.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rudder/server/context.h"
#include "rudder/server/http/exchange.h"
#include "rudder/server/http/io_thread.h"
#include "rudder/server/steering/patch_sweep_request.h"
#include "rudder/steer/op_spec.h"

namespace rudder::server {

class PatchSweep final : public EventReceiver,
                         public Endable,
                         public std::enable_shared_from_this<PatchSweep> {
 public:
  PatchSweep(ServerContext& context, std::shared_ptr<Exchange> exchange, PatchSweepRequest request,
             std::shared_ptr<ActivityMark> mark);

  void start();
  void on_event(uint32_t source, engine::Event&& event) override;
  void on_batch_end() override {}
  void on_failure(const Error& error) override;
  int64_t due_us() const override { return kNever; }
  void on_due(int64_t) override {}
  void end_now() override;  // the server stops

 private:
  // Run 0 captures the clean prompt. Then, for each answer token, the clean prompt, the corrupted
  // one, and each cell.
  int64_t num_runs() const;
  Result<void> submit(int64_t run);
  Result<std::shared_ptr<const steer::Config>> patched(const SweepCell& cell) const;
  Result<void> keep_rows(const engine::Event& event);
  void submit_more();
  void succeed();
  void fail(const ApiError& error);
  void cancel_all();
  void close();

  ServerContext& context_;
  const std::shared_ptr<Exchange> exchange_;
  const PatchSweepRequest request_;
  const std::shared_ptr<const steer::Model> model_;  // of the library
  std::shared_ptr<ActivityMark> mark_;
  ByteCharge charge_;  // of the clean rows
  // Rows of the clean prompt at a point: [tokens, width], and how far apart they lie.
  struct CleanRows {
    std::shared_ptr<const float[]> buffer;
    int64_t begin = 0;
    int64_t stride = 0;
    int32_t width = 0;
  };
  std::map<int32_t, CleanRows> rows_;          // by tap::Point::index()
  std::map<uint32_t, engine::RequestId> ids_;  // of runs that have not ended
  std::vector<double> logprobs_;               // by run
  int64_t next_run_ = 0;
  engine::Usage usage_;
  bool closed_ = false;
};

// What the measured tokens' log-probabilities come to: a difference of logits, or a probability.
// [clean, corrupted, each cell].
std::vector<double> sweep_metrics(const PatchSweepRequest& request,
                                  const std::vector<double>& logprobs);
// The answer's document.
std::string sweep_document(const PatchSweepRequest& request, const std::vector<double>& metrics,
                           const engine::Usage& usage, const text::Tokenizer& tokenizer);
// Heat maps of the grids, one below another; a cell's colour is the share of the metric that the
// patch restored: 0 the corrupted run, 1 the clean one.
std::string sweep_svg(const PatchSweepRequest& request, const std::vector<double>& metrics,
                      const std::vector<std::string>& labels);

}  // namespace rudder::server
