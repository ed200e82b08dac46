// DeviceFeatureReader: reads captured rows as features of dictionaries on the device. Like the lens
// it has ops of its own, so that it runs beside the executor's steps and waits for none of them.
// Made by load_model; the thread of the consumer that asks uses it. All memory that it reads is its
// own.
//
// Encoders lie in memory that is allocated at start. A dictionary is put there when it is first
// asked for; where there is no room, those that were asked for longest ago go.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/base/range_pool.h"
#include "rudder/features/feature_reader.h"
#include "rudder/ops/ops.h"
#include "rudder/tap/dictionary_head.h"

namespace rudder::exec {

struct FeatureBounds {
  int64_t dictionary_bytes = 0;                // that encoders may take
  int32_t widest = 0;                          // row that is captured
  tensor::DType dtype = tensor::DType::kBF16;  // of encoders: or f32
};

class DeviceFeatureReader final : public features::FeatureReader {
 public:
  // `ops` are those of ReaderOps::make_reader().
  static Result<std::unique_ptr<DeviceFeatureReader>> make(std::unique_ptr<ops::Ops> ops,
                                                           const FeatureBounds& bounds);
  // Bytes that make() allocates, where rows are `act`.
  static int64_t device_bytes(const FeatureBounds& bounds, tensor::DType act);

  Result<void> check(const features::Dictionary& dictionary) const override;
  Result<void> read(std::span<const features::FeatureRow> rows, tensor::DType dtype,
                    std::vector<std::vector<features::FeatureValue>>& told) override;
  size_t rows_together() const override;
  features::FeatureReaderStats stats() const override;

 private:
  // A dictionary in the memory of encoders: its image, and behind it the features of a batch.
  struct Resident {
    std::weak_ptr<const features::Dictionary> dictionary;
    tap::DictionaryHead head;
    int64_t begin = 0;
    int64_t image_floats = 0;
    int64_t floats = 0;
    uint64_t last_use = 0;
  };
  using Rows = std::span<const features::FeatureRow>;
  using Told = std::span<std::vector<features::FeatureValue>>;

  DeviceFeatureReader(std::unique_ptr<ops::Ops> ops, const FeatureBounds& bounds)
      : ops_(std::move(ops)),
        bounds_(bounds),
        pool_(bounds.dictionary_bytes / int64_t{sizeof(float)}) {}

  Result<void> allocate();
  int64_t floats_of(const features::Dictionary& dictionary) const;
  Result<const Resident*> resident(const std::shared_ptr<const features::Dictionary>& dictionary);
  int64_t make_room(int64_t floats);
  void drop(size_t index);
  Result<void> upload(const features::Dictionary& dictionary, Resident& to);
  // `count` floats to `begin` on; fill(first, count, out) writes a piece of them.
  template <typename Fill>
  Result<void> send(int64_t begin, int64_t count, const Fill& fill);
  Result<void> wait();

  // How many of the first rows one batch takes.
  static size_t batch_size(Rows rows);
  Result<void> read_batch(const Resident& from, Rows rows, Told told);
  // The features that any of them lists, ascending, in `listed_now_`, and on the device.
  void take_listed(Rows rows);
  void tell(Rows rows, int64_t most, Told told) const;

  const std::unique_ptr<ops::Ops> ops_;
  const FeatureBounds bounds_;
  std::unique_ptr<ops::Event> done_;
  ops::View dictionaries_;  // [.] f32
  ops::View rows_;          // [kEncodedRows widest] act
  ops::View listed_;        // [kMostListed] i32
  ops::View values_;        // [kEncodedRows kMostListed] f32
  ops::View top_;           // [kEncodedRows kMostTopFeatures 2] i32
  ops::View staged_rows_;   // the same in staging memory
  ops::View staged_listed_;
  ops::View staged_values_;
  ops::View staged_top_;
  ops::View staged_piece_;  // [.] f32: of a dictionary on its way

  RangePool pool_;  // of dictionaries_
  std::vector<Resident> residents_;
  std::vector<int32_t> listed_now_;
  uint64_t clock_ = 0;

  std::atomic<uint64_t> num_rows_{0};
  std::atomic<uint64_t> batches_{0};
  std::atomic<uint64_t> loads_{0};
  std::atomic<uint64_t> load_bytes_{0};
  std::atomic<uint64_t> evictions_{0};
  std::atomic<int64_t> held_bytes_{0};
};

}  // namespace rudder::exec
