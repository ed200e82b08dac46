#include "rudder/testing/tape_ops.h"

#include <functional>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/testing/forwarding_ops.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

struct Tape final : ops::Graph {
  std::vector<std::function<void(ops::Ops&)>> calls;
};

class TapeOps final : public ForwardingOps, public ops::GraphOps {
 public:
  explicit TapeOps(std::unique_ptr<ops::Ops> inner) : ForwardingOps(std::move(inner)) {}

  std::string name() const override { return inner_->name() + "-tape"; }

  // Nothing of these is captured: memory is not given out, the host waits for nothing.
  Result<View> allocate(DType dtype, tensor::Shape shape) override {
    return outside_capture().allocate(dtype, shape);
  }
  Result<View> upload(const View& host, DType dtype) override {
    return outside_capture().upload(host, dtype);
  }
  Result<ops::LinearWeight> make_linear(std::span<const ops::LinearPart> parts) override {
    return outside_capture().make_linear(parts);
  }
  Result<View> allocate_staging(int64_t bytes) override {
    return outside_capture().allocate_staging(bytes);
  }
  void copy_in(const View& device, const View& staging) override {
    outside_capture().copy_in(device, staging);
  }
  void copy_out(const View& staging, const View& device) override {
    outside_capture().copy_out(staging, device);
  }
  std::unique_ptr<ops::Event> make_event() override { return inner_->make_event(); }
  void record(ops::Event& event) override { outside_capture().record(event); }
  Result<void> status() override { return inner_->status(); }

  ops::GraphOps* graph_ops() override { return this; }
  void begin_capture() override {
    RUDDER_CHECK(tape_ == nullptr, "a capture is under way");
    tape_ = std::make_unique<Tape>();
  }
  Result<std::unique_ptr<ops::Graph>> end_capture() override {
    RUDDER_CHECK(tape_ != nullptr, "nothing is captured");
    return std::move(tape_);
  }
  void replay(ops::Graph& graph) override {
    for (const auto& call : static_cast<Tape&>(graph).calls) call(outside_capture());
  }

 private:
  ops::Ops& outside_capture() {
    RUDDER_CHECK(tape_ == nullptr, "this cannot be captured");
    return *inner_;
  }

  void forward(Call call) override {
    if (tape_ == nullptr) {
      call(*inner_);
    } else {
      tape_->calls.push_back(std::move(call));
    }
  }

  std::unique_ptr<Tape> tape_;  // while a capture is under way
};

}  // namespace

std::unique_ptr<ops::Ops> make_tape_ops(std::unique_ptr<ops::Ops> inner) {
  return std::make_unique<TapeOps>(std::move(inner));
}

}  // namespace rudder::testing
