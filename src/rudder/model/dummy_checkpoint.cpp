#include "rudder/model/dummy_checkpoint.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "rudder/base/thread_pool.h"
#include "rudder/model/tensor_list.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {
namespace {

using tensor::DType;
using weights::Checkpoint;
using weights::TensorInfo;

constexpr size_t kRingBytes = size_t{64} << 20;
constexpr size_t kTensorAlignment = 4096;  // of a tensor's offset in the ring
constexpr int64_t kTaskValues = int64_t{1} << 18;
constexpr uint64_t kStackInputs = 32;  // that share a scale
constexpr uint8_t kStackScale = 120;   // 2^-7: numbers are spread about as those in bf16

// A range of addresses behind which the same memory lies again and again.
class Ring {
 public:
  static Result<Ring> make(size_t bytes) {
    Ring ring;
    ring.size_ = (bytes + kRingBytes - 1) / kRingBytes * kRingBytes;
    void* const data = mmap(nullptr, ring.size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return fail(ErrorCode::kIo, "no addresses for dummy weights");
    ring.data_ = static_cast<char*>(data);
    const int file = memfd_create("rudder-dummy", MFD_CLOEXEC);
    bool is_mapped = file >= 0 && ftruncate(file, kRingBytes) == 0;
    for (size_t at = 0; is_mapped && at < ring.size_; at += kRingBytes) {
      is_mapped = mmap(ring.data_ + at, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                       file, 0) != MAP_FAILED;
    }
    if (file >= 0) close(file);
    if (!is_mapped) return fail(ErrorCode::kIo, "no memory for dummy weights");
    return ring;
  }
  Ring() = default;
  Ring(Ring&& other) noexcept { *this = std::move(other); }
  Ring& operator=(Ring&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Ring() {
    if (data_ != nullptr) munmap(data_, size_);
  }

  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

tensor::Shape shape_of(const weights::TensorShape& shape) {
  const auto extent = [&](size_t axis) { return static_cast<int64_t>(shape.dims[axis]); };
  if (shape.rank == 1) return {extent(0)};
  if (shape.rank == 2) return {extent(0), extent(1)};
  return {extent(0), extent(1), extent(2)};
}

// Whether a quantisation of MXFP4 says that the tensor is codes (quantised/methods.cpp), of
// [experts, inputs, rows] numbers.
bool is_stack(const weights::TensorDecl& decl) {
  return decl.shape.rank == 3 && (decl.name.ends_with(".experts.gate_up_proj") ||
                                  decl.name.ends_with(".experts.down_proj"));
}
int64_t scales_of(const weights::TensorShape& shape) {
  return static_cast<int64_t>(shape.dims[0] * shape.dims[1] / kStackInputs * shape.dims[2]);
}

class DummyCheckpoint final : public Checkpoint {
 public:
  // Values of vectors, by their kind.
  using Vectors = std::map<ValueKind, std::vector<tensor::BF16>>;

  // `codes` and `scales`: of stacks in MXFP4; empty: they are bf16.
  DummyCheckpoint(std::string name, std::vector<ModelText> texts, Ring ring, Ring codes,
                  Vectors vectors, std::vector<uint8_t> scales, const TensorList& list)
      : name_(std::move(name)),
        ring_(std::move(ring)),
        codes_(std::move(codes)),
        vectors_(std::move(vectors)),
        scales_(std::move(scales)) {
    for (ModelText& file : texts) texts_[file.name] = std::move(file.text);
    for (const ListedTensor& listed : list.tensors()) {
      // Layers differ: each tensor begins elsewhere in the ring.
      const size_t unit = listed.number * 7919 % (kRingBytes / kTensorAlignment);
      const auto vector = vectors_.find(listed.kind);
      void* const data = vector != vectors_.end() ? static_cast<void*>(vector->second.data())
                                                  : ring_.data() + unit * kTensorAlignment;
      if (!scales_.empty() && is_stack(listed.decl)) {
        add_codes(listed.decl, codes_.data() + unit * kTensorAlignment);
      } else {
        add(listed.decl.name, {data, DType::kBF16, shape_of(listed.decl.shape)});
      }
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  }

  std::string name() const override { return name_; }
  Result<std::string> read_text(std::string_view file) const override {
    const auto found = texts_.find(file);
    if (found != texts_.end()) return found->second;
    return fail(ErrorCode::kNotFound, fmt::format("there is no '{}'", file), name_);
  }
  bool has_file(std::string_view file) const override { return texts_.contains(file); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view tensor) const override {
    const auto found = std::lower_bound(
        tensors_.begin(), tensors_.end(), tensor,
        [](const TensorInfo& info, std::string_view name) { return info.name < name; });
    return found != tensors_.end() && found->name == tensor ? &*found : nullptr;
  }
  int64_t tensor_bytes() const override { return bytes_; }
  void prefetch(const TensorInfo& /*tensor*/) const override {}
  void release_pages() const override {}
  Result<void> check_unchanged() const override { return {}; }

 private:
  void add(std::string name, const tensor::View& view) {
    tensors_.push_back({std::move(name), view, "dummy"});
    bytes_ += static_cast<int64_t>(view.bytes());
  }
  void add_codes(const weights::TensorDecl& decl, void* data) {
    const auto experts = static_cast<int64_t>(decl.shape.dims[0]);
    const auto groups = static_cast<int64_t>(decl.shape.dims[1] / kStackInputs);
    const auto rows = static_cast<int64_t>(decl.shape.dims[2]);
    add(decl.name + "_blocks",
        {data, DType::kU8, {experts, rows, groups, int64_t{kStackInputs / 2}}});
    add(decl.name + "_scales", {scales_.data(), DType::kU8, {experts, rows, groups}});
  }

  const std::string name_;
  const Ring ring_;
  const Ring codes_;  // two of MXFP4 a byte
  Vectors vectors_;
  std::vector<uint8_t> scales_;
  std::map<std::string, std::string, std::less<>> texts_;
  std::vector<TensorInfo> tensors_;
  int64_t bytes_ = 0;
};

// False: bf16.
Result<bool> is_of_mxfp4(const weights::HfConfig& config) {
  if (!config.has("quantization_config")) return false;
  RUDDER_TRY(const weights::HfConfig described, config.object("quantization_config"));
  RUDDER_TRY(const std::string method, described.string("quant_method"));
  if (method == "mxfp4") return true;
  return fail(ErrorCode::kUnsupported,
              "dummy weights are bf16, or experts in mxfp4; --quantization rounds them",
              config.where("quantization_config"));
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> make_dummy_checkpoint(const std::string& name,
                                                                const std::string& config_text) {
  RUDDER_TRY(const weights::HfConfig config,
             weights::HfConfig::parse(config_text, name + "/config.json"));
  RUDDER_TRY(const bool is_mxfp4, is_of_mxfp4(config));
  RUDDER_TRY(const ModelSpec spec, read_config(config));
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  const TensorList list(spec, architecture->names);

  int64_t largest = 0;
  int64_t longest_vector = 0;
  int64_t most_scales = 0;
  int64_t most_codes = 0;  // bytes
  for (const ListedTensor& tensor : list.tensors()) {
    int64_t& most = tensor.kind == ValueKind::kWeight ? largest : longest_vector;
    most = std::max(most, tensor.values);
    if (is_mxfp4 && is_stack(tensor.decl)) {
      most_scales = std::max(most_scales, scales_of(tensor.decl.shape));
      most_codes = std::max(most_codes, tensor.values / 2);
    }
  }
  const ValueTables tables(1.0 - static_cast<double>(architecture->names.norm_offset));
  RUDDER_TRY(Ring ring, Ring::make(static_cast<size_t>(2 * largest) + kRingBytes));
  auto* const values = reinterpret_cast<tensor::BF16*>(ring.data());
  constexpr auto kRingValues = static_cast<int64_t>(kRingBytes / sizeof(tensor::BF16));
  ThreadPool pool;
  pool.parallel_for(kRingValues / kTaskValues, [&](int64_t task) {
    const std::span<tensor::BF16> part(values + task * kTaskValues, size_t{kTaskValues});
    fill_values(part, tables.weight, 0, 0, task * kTaskValues);
  });
  // Bytes of bf16 are no codes: most have the same sign, which every row would then add up.
  Ring codes;
  if (most_codes > 0) {
    RUDDER_TRY(codes, Ring::make(static_cast<size_t>(most_codes) + kRingBytes));
    auto* const words = reinterpret_cast<uint64_t*>(codes.data());
    std::mt19937_64 random(1);
    for (size_t i = 0; i < kRingBytes / sizeof(uint64_t); ++i) words[i] = random();
  }
  DummyCheckpoint::Vectors vectors;
  for (const ValueKind kind : {ValueKind::kGain, ValueKind::kGateSigma, ValueKind::kBias}) {
    vectors[kind].resize(static_cast<size_t>(longest_vector));
    fill_values(vectors[kind], tables.of(kind), 0, 1, 0);
  }
  return std::make_shared<DummyCheckpoint>(
      name, model_texts(config_text, spec.vocab), std::move(ring), std::move(codes),
      std::move(vectors), std::vector<uint8_t>(static_cast<size_t>(most_scales), kStackScale),
      list);
}

}  // namespace rudder::model
