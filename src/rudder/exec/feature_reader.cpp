#include "rudder/exec/feature_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/features/dictionary_image.h"
#include "rudder/tap/program.h"

namespace rudder::exec {
namespace {

using features::Dictionary;
using features::FeatureRow;
using features::FeatureValue;
using tensor::DType;

// Of all rows of a batch together; one asks for kMostTopFeatures at most.
constexpr int64_t kMostListed = 4 * ops::kMostTopFeatures;
constexpr int64_t kPieceFloats = int64_t{1} << 20;
constexpr int64_t kRows = tap::kEncodedRows;

int64_t vector_floats(int64_t floats) {
  return (floats + tap::kVectorAlign - 1) / tap::kVectorAlign * tap::kVectorAlign;
}

ops::View as(const ops::View& memory, DType dtype, tensor::Shape shape) {
  return {memory.data, dtype, shape};
}

}  // namespace

Result<std::unique_ptr<DeviceFeatureReader>> DeviceFeatureReader::make(
    std::unique_ptr<ops::Ops> ops, const FeatureBounds& bounds) {
  if (ops == nullptr) {
    return fail(ErrorCode::kInternal, "the backend cannot open its reader of features",
                "feature-memory-mb");
  }
  std::unique_ptr<DeviceFeatureReader> reader(new DeviceFeatureReader(std::move(ops), bounds));
  RUDDER_TRY_VOID(reader->allocate());
  return reader;
}

int64_t DeviceFeatureReader::device_bytes(const FeatureBounds& bounds, DType act) {
  const int64_t row = bounds.widest * static_cast<int64_t>(tensor::dtype_bytes(act)) +
                      kMostListed * int64_t{sizeof(float)} +
                      ops::kMostTopFeatures * int64_t{sizeof(ops::TopFeature)};
  return bounds.dictionary_bytes + kRows * row + kMostListed * int64_t{sizeof(int32_t)};
}

Result<void> DeviceFeatureReader::allocate() {
  const DType act = ops_->act_dtype();
  RUDDER_TRY(dictionaries_, ops_->allocate(DType::kF32, {pool_.size()}));
  RUDDER_TRY(rows_, ops_->allocate(act, {kRows * bounds_.widest}));
  RUDDER_TRY(listed_, ops_->allocate(DType::kI32, {kMostListed}));
  RUDDER_TRY(values_, ops_->allocate(DType::kF32, {kRows * kMostListed}));
  RUDDER_TRY(top_, ops_->allocate(DType::kI32, {kRows * ops::kMostTopFeatures * 2}));
  const auto staged = [&](const ops::View& view) -> Result<ops::View> {
    RUDDER_TRY(const ops::View bytes, ops_->allocate_staging(static_cast<int64_t>(view.bytes())));
    return as(bytes, view.dtype, view.shape);
  };
  RUDDER_TRY(staged_rows_, staged(rows_));
  RUDDER_TRY(staged_listed_, staged(listed_));
  RUDDER_TRY(staged_values_, staged(values_));
  RUDDER_TRY(staged_top_, staged(top_));
  RUDDER_TRY(staged_piece_, staged({nullptr, DType::kF32, {kPieceFloats}}));
  done_ = ops_->make_event();
  return ops_->status();
}

// With the features of a batch, which are read where they were computed.
int64_t DeviceFeatureReader::floats_of(const Dictionary& dictionary) const {
  return features::encoder_image_floats(dictionary, bounds_.dtype) +
         vector_floats(kRows * tap::feature_row_floats(dictionary.num_features));
}

Result<void> DeviceFeatureReader::check(const Dictionary& dictionary) const {
  RUDDER_CHECK(dictionary.d_in <= bounds_.widest, "rows of {} are read", dictionary.d_in);
  const int64_t floats = floats_of(dictionary);
  if (floats <= pool_.size()) return {};
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("reading its features takes {} bytes on the device, --feature-memory-mb "
                          "has {}",
                          floats * kFloat, pool_.size() * kFloat));
}

Result<void> DeviceFeatureReader::read(Rows rows, DType dtype,
                                       std::vector<std::vector<FeatureValue>>& told) {
  RUDDER_CHECK(dtype == rows_.dtype, "rows of {}", tensor::dtype_name(dtype));
  told.assign(rows.size(), {});
  if (rows.empty()) return {};
  RUDDER_TRY(const Resident* const from, resident(rows.front().ask->dictionary));
  for (size_t begin = 0; begin < rows.size();) {
    const size_t count = batch_size(rows.subspan(begin));
    RUDDER_TRY_VOID(
        read_batch(*from, rows.subspan(begin, count), std::span(told).subspan(begin, count)));
    begin += count;
  }
  num_rows_ += rows.size();
  return ops_->status();
}

// Some batches, between which nobody else has the consumer's thread.
size_t DeviceFeatureReader::rows_together() const {
  return 4 * size_t{kRows};
}

features::FeatureReaderStats DeviceFeatureReader::stats() const {
  return {.on_device = true,
          .rows = num_rows_,
          .batches = batches_,
          .loads = loads_,
          .load_bytes = load_bytes_,
          .evictions = evictions_,
          .held_bytes = held_bytes_};
}

Result<const DeviceFeatureReader::Resident*> DeviceFeatureReader::resident(
    const std::shared_ptr<const Dictionary>& dictionary) {
  ++clock_;
  for (Resident& one : residents_) {
    if (one.dictionary.lock() != dictionary) continue;
    one.last_use = clock_;
    return &one;
  }
  Resident added{.dictionary = dictionary,
                 .head = {},
                 .begin = 0,
                 .image_floats = features::encoder_image_floats(*dictionary, bounds_.dtype),
                 .floats = floats_of(*dictionary),
                 .last_use = clock_};
  added.begin = make_room(added.floats);
  residents_.push_back(std::move(added));
  held_bytes_ = pool_.used() * int64_t{sizeof(float)};
  if (Result<void> sent = upload(*dictionary, residents_.back()); !sent) {
    drop(residents_.size() - 1);
    return tl::unexpected(std::move(sent).error());
  }
  return &residents_.back();
}

// check() has said that they fit into the memory when it is empty.
int64_t DeviceFeatureReader::make_room(int64_t floats) {
  for (size_t i = residents_.size(); i-- > 0;) {
    if (residents_[i].dictionary.expired()) drop(i);
  }
  int64_t begin = pool_.allocate(floats);
  while (begin < 0) {
    RUDDER_CHECK(!residents_.empty(), "{} floats for a dictionary, of {}", floats, pool_.size());
    const auto oldest = std::ranges::min_element(residents_, {}, &Resident::last_use);
    drop(static_cast<size_t>(oldest - residents_.begin()));
    ++evictions_;
    begin = pool_.allocate(floats);
  }
  return begin;
}

void DeviceFeatureReader::drop(size_t index) {
  pool_.free(residents_[index].begin, residents_[index].floats);
  residents_.erase(residents_.begin() + static_cast<std::ptrdiff_t>(index));
  held_bytes_ = pool_.used() * int64_t{sizeof(float)};
}

Result<void> DeviceFeatureReader::wait() {
  ops_->record(*done_);
  return done_->wait();
}

template <typename Fill>
Result<void> DeviceFeatureReader::send(int64_t begin, int64_t count, const Fill& fill) {
  for (int64_t first = 0; first < count; first += kPieceFloats) {
    const int64_t some = std::min(kPieceFloats, count - first);
    fill(first, some, staged_piece_.data);
    ops_->copy_in(dictionaries_.rows(begin + first, some), staged_piece_.rows(0, some));
    RUDDER_TRY_VOID(wait());  // the piece may be written again
  }
  return {};
}

Result<void> DeviceFeatureReader::upload(const Dictionary& dictionary, Resident& to) {
  const features::EncoderImage image = features::encoder_image(dictionary, bounds_.dtype);
  to.head = image.head;
  RUDDER_TRY_VOID(
      send(to.begin, std::ssize(image.begin), [&](int64_t first, int64_t count, void* out) {
        std::memcpy(out, image.begin.data() + first, static_cast<size_t>(count) * sizeof(float));
      }));
  const int64_t numbers = int64_t{dictionary.num_features} * dictionary.d_in;
  const float* const from = dictionary.encoder.get();
  const bool is_bf16 = bounds_.dtype == DType::kBF16;
  const int64_t in_float = is_bf16 ? 2 : 1;
  RUDDER_TRY_VOID(send(to.begin + to.head.encoder, tap::dictionary_floats(is_bf16, numbers),
                       [&](int64_t first, int64_t count, void* out) {
                         const int64_t at = first * in_float;
                         const int64_t some = std::min(count * in_float, numbers - at);
                         std::memset(out, 0, static_cast<size_t>(count) * sizeof(float));
                         if (is_bf16) {
                           std::transform(from + at, from + at + some,
                                          static_cast<tensor::BF16*>(out), tensor::to_bf16);
                         } else {
                           std::copy_n(from + at, some, static_cast<float*>(out));
                         }
                       }));
  ++loads_;
  load_bytes_ += static_cast<uint64_t>(to.image_floats) * sizeof(float);
  return {};
}

size_t DeviceFeatureReader::batch_size(Rows rows) {
  int64_t listed = 0;
  size_t count = 0;
  for (; count < rows.size() && count < size_t{kRows}; ++count) {
    const bool is_new = count == 0 || rows[count].ask != rows[count - 1].ask;
    if (is_new) listed += std::ssize(rows[count].ask->features);
    if (listed > kMostListed) break;
  }
  return count;
}

void DeviceFeatureReader::take_listed(Rows rows) {
  listed_now_.clear();
  const features::FeatureAsk* last = nullptr;
  for (const FeatureRow& row : rows) {
    if (row.ask != last) {
      listed_now_.insert(listed_now_.end(), row.ask->features.begin(), row.ask->features.end());
    }
    last = row.ask;
  }
  std::ranges::sort(listed_now_);
  listed_now_.erase(std::unique(listed_now_.begin(), listed_now_.end()), listed_now_.end());
  std::ranges::copy(listed_now_, staged_listed_.as<int32_t>());
}

Result<void> DeviceFeatureReader::read_batch(const Resident& from, Rows rows, Told told) {
  const auto num = std::ssize(rows);
  const int64_t width = from.head.d_in;
  const ops::View x = as(rows_, rows_.dtype, {num, width});
  const ops::View staged_x = as(staged_rows_, rows_.dtype, {num, width});
  auto* to = static_cast<std::byte*>(staged_x.data);
  int64_t most = 0;
  for (const FeatureRow& row : rows) {
    RUDDER_CHECK(row.row.size() * static_cast<size_t>(num) == x.bytes(), "a row of {} bytes",
                 row.row.size());
    to = std::ranges::copy(row.row, to).out;
    most = std::max<int64_t>(most, row.ask->top);
  }
  take_listed(rows);
  const auto num_listed = std::ssize(listed_now_);
  const int64_t row_floats = tap::feature_row_floats(from.head.num_features);
  ops::ReadFeaturesArgs args{
      .x = x,
      .image = dictionaries_.rows(from.begin, from.image_floats),
      .head = from.head,
      .listed = {},
      .values = {},
      .top = {},
      .scratch = as(dictionaries_.rows(from.begin + from.image_floats, kRows * row_floats),
                    DType::kF32, {kRows, row_floats})};
  ops_->copy_in(x, staged_x);
  if (num_listed > 0) {
    args.listed = listed_.rows(0, num_listed);
    args.values = as(values_, DType::kF32, {num, num_listed});
    ops_->copy_in(args.listed, staged_listed_.rows(0, num_listed));
  }
  if (most > 0) args.top = as(top_, DType::kI32, {num, most, 2});
  ops_->feature_ops()->read_features(args);
  if (num_listed > 0) {
    ops_->copy_out(as(staged_values_, DType::kF32, args.values.shape), args.values);
  }
  if (most > 0) ops_->copy_out(as(staged_top_, DType::kI32, args.top.shape), args.top);
  RUDDER_TRY_VOID(wait());
  ++batches_;
  tell(rows, most, told);
  return {};
}

void DeviceFeatureReader::tell(Rows rows, int64_t most, Told told) const {
  const auto* const values = staged_values_.as<float>();
  const auto* const top = static_cast<const ops::TopFeature*>(staged_top_.data);
  for (size_t r = 0; r < rows.size(); ++r) {
    const features::FeatureAsk& ask = *rows[r].ask;
    const ops::TopFeature* const of_row = top + static_cast<int64_t>(r) * most;
    for (int32_t i = 0; i < ask.top && of_row[i].feature != ops::kNoFeature; ++i) {
      told[r].push_back({of_row[i].feature, of_row[i].value});
    }
    for (const int32_t feature : ask.features) {
      const auto at = std::ranges::lower_bound(listed_now_, feature) - listed_now_.begin();
      told[r].push_back({feature, values[static_cast<int64_t>(r) * std::ssize(listed_now_) + at]});
    }
  }
}

}  // namespace rudder::exec
