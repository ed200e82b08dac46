#include "rudder/exec/resident_model.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "rudder/base/progress.h"
#include "rudder/model/loader.h"

namespace rudder::exec {
namespace {

// The whole pages of the host's own memory go back to the system; they read as zeros from then on.
void give_back_pages(const ops::View& view) {
  if (view.empty()) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto data = reinterpret_cast<uintptr_t>(view.data);
  const uintptr_t begin = (data + page - 1) / page * page;
  const uintptr_t end = (data + view.bytes()) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

// Of every device: ops of its settings that hold what is not packed, and the weights.
class ResidentModel::Loaded final : public ReadyWeights {
 public:
  explicit Loaded(ResidentModel& model) : model_(model) {}

  Result<void> add(const weights::Checkpoint& checkpoint, const HeldMemory& device) {
    One& one = all_.emplace_back();
    one.ops = device.ops->reader_ops()->make_reader();
    if (one.ops == nullptr) return fail(ErrorCode::kInternal, "no loader of weights can be opened");
    one.weights = std::make_unique<model::Weights>();
    RUDDER_TRY(*one.weights,
               model::load_weights(checkpoint, model_.spec_, *one.ops, ProgressFn(), device.stage));
    RUDDER_TRY(one.parts,
               model::parts_of(checkpoint, model_.spec_, {}, device.stage, *one.weights));
    return model::check_same_form(device.parts, one.parts);
  }

  void put_in_place() override {
    const auto lens = model_.lens_ == nullptr ? HeadLens::Held() : model_.lens_->hold();
    for (size_t i = 0; i < all_.size(); ++i) {
      model::take_values(model_.devices_[i].parts, all_[i].parts);
    }
    all_.clear();
    model_.has_weights_ = true;
    model_.tell_lens();
  }

 private:
  struct One {
    std::unique_ptr<ops::Ops> ops;
    std::unique_ptr<model::Weights> weights;  // `parts` points into it
    model::WeightParts parts;
  };
  ResidentModel& model_;
  std::vector<One> all_;  // by device
};

Result<void> ResidentModel::can_change() const {
  for (const HeldMemory& device : devices_) {
    if (!device.ops->is_host() || device.ops->reader_ops() == nullptr) {
      return fail(
          ErrorCode::kUnsupported,
          fmt::format("the backend {} keeps its memory as it is while it runs", device.ops->name()),
          "device");
    }
    if (!ops::rank_of(*device.ops).is_alone()) {
      return fail(ErrorCode::kUnsupported, "the ranks of a group keep their memory as it is",
                  "tensor-parallel-size");
    }
  }
  return {};
}

Result<std::unique_ptr<ReadyWeights>> ResidentModel::read(const weights::Checkpoint& checkpoint) {
  RUDDER_TRY_VOID(can_change());
  auto loaded = std::make_unique<Loaded>(*this);
  for (const HeldMemory& device : devices_) RUDDER_TRY_VOID(loaded->add(checkpoint, device));
  RUDDER_TRY_VOID(checkpoint.check_unchanged());
  return std::unique_ptr<ReadyWeights>(std::move(loaded));
}

void ResidentModel::give_back_sequences() {
  for (const HeldMemory& device : devices_) {
    for (const ops::View& view : device.sequences) give_back_pages(view);
  }
}

void ResidentModel::give_back_weights() {
  const auto lens = lens_ == nullptr ? HeadLens::Held() : lens_->hold();
  for (const HeldMemory& device : devices_) {
    for (const model::WeightParts::Product& product : device.parts.products) {
      product.weight->packed.reset();
    }
    for (const model::WeightParts::Values& values : device.parts.values) {
      give_back_pages(*values.view);
    }
  }
  has_weights_ = false;
  tell_lens();
}

// The lens has copies of the heads that it reads by.
void ResidentModel::tell_lens() {
  if (lens_ == nullptr) return;
  for (const HeldMemory& device : devices_) {
    if (!device.stage.is_last()) continue;
    lens_->set_head(device.weights->head);  // of the first replica
    return;
  }
}

}  // namespace rudder::exec
