#include "rudder/model/gguf/gguf_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "rudder/model/gguf/gguf_config.h"
#include "rudder/model/gguf/gguf_names.h"
#include "rudder/model/gguf/gguf_tokenizer.h"
#include "rudder/weights/gguf_files.h"

namespace rudder::model {
namespace {

using tensor::DType;
using weights::Checkpoint;
using weights::GgufPart;
using weights::GgufTensor;
using weights::PackedTensor;
using weights::TensorInfo;

// Those that config.json says.
bool is_of_config(std::string_view name) {
  return name == "rope_freqs.weight" || name == "rope_factors_long.weight" ||
         name == "rope_factors_short.weight";
}

class GgufCheckpoint final : public Checkpoint {
 public:
  explicit GgufCheckpoint(std::string path) : path_(std::move(path)) {}

  Result<void> load() {
    RUDDER_TRY(parts_, weights::open_gguf_files(path_));
    const weights::GgufFile& metadata = parts_.front().gguf;
    RUDDER_TRY(const std::string_view name, metadata.text("general.architecture"));
    const std::string experts = fmt::format("{}.expert_count", name);
    const auto count =
        metadata.has(experts) ? metadata.integer(experts, 0, INT32_MAX) : Result<int64_t>(0);
    if (!count) return tl::unexpected(count.error());
    const auto architecture = find_gguf_architecture(name, *count > 0);
    if (!architecture) {
      Error error = architecture.error();
      error.where = metadata.where("general.architecture");
      return tl::unexpected(std::move(error));
    }
    std::vector<const GgufTensor*> stored;
    for (const GgufPart& part : parts_) {
      for (const GgufTensor& one : part.gguf.tensors()) stored.push_back(&one);
    }
    RUDDER_TRY(texts_["config.json"], gguf_config({metadata, stored}, **architecture));
    RUDDER_TRY(GgufTokenizerFiles files, gguf_tokenizer(metadata));
    texts_["tokenizer.json"] = std::move(files.tokenizer);
    texts_["tokenizer_config.json"] = std::move(files.config);
    texts_["generation_config.json"] = std::move(files.generation_config);
    if (!files.tools_template.empty()) {
      texts_["additional_chat_templates/tool_use.jinja"] = std::move(files.tools_template);
    }
    RUDDER_TRY(head_dim_, gguf_head_dim(metadata));
    RUDDER_TRY(num_layers_, gguf_num_layers(metadata));
    num_experts_ = *count;
    for (const GgufPart& part : parts_) RUDDER_TRY_VOID(add_tensors(part, **architecture));
    std::ranges::sort(tensors_, {}, &TensorInfo::name);
    const auto twice = std::ranges::adjacent_find(tensors_, {}, &TensorInfo::name);
    if (twice == tensors_.end()) return {};
    return fail(ErrorCode::kCorruptFile, "two tensors of the file are it",
                fmt::format("{}: tensor '{}'", twice->file, twice->name));
  }

  std::string name() const override { return std::filesystem::path(path_).stem().string(); }

  Result<std::string> read_text(std::string_view file) const override {
    const auto found = texts_.find(file);
    if (found != texts_.end()) return found->second;
    return fail(ErrorCode::kNotFound, "a GGUF file says nothing of it",
                fmt::format("{}: {}", path_, file));
  }
  bool has_file(std::string_view file) const override { return texts_.contains(file); }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view tensor) const override {
    const auto at = std::ranges::lower_bound(tensors_, tensor, {}, &TensorInfo::name);
    return at != tensors_.end() && at->name == tensor ? &*at : nullptr;
  }
  int64_t tensor_bytes() const override {
    int64_t total = 0;
    for (const TensorInfo& tensor : tensors_) total += static_cast<int64_t>(tensor.view.bytes());
    return total;
  }
  void prefetch(const TensorInfo& tensor) const override {
    if (tensor.packed) weights::prefetch_pages(tensor.packed->bytes);
  }
  void release_pages() const override {
    for (const GgufPart& part : parts_) part.mapped->release_pages();
  }
  Result<void> check_unchanged() const override {
    for (const GgufPart& part : parts_) RUDDER_TRY_VOID(part.mapped->check_unchanged());
    return {};
  }

 private:
  static Result<tensor::Shape> shape_of(const GgufTensor& stored, const std::string& where) {
    const auto d = [&](size_t i) { return static_cast<int64_t>(stored.shape.dims[i]); };
    if (stored.shape.rank == 1) return tensor::Shape{d(0)};
    if (stored.shape.rank == 2) return tensor::Shape{d(0), d(1)};
    return fail(ErrorCode::kUnsupported,
                fmt::format("the shape {} has too many dimensions", stored.shape.to_string()),
                where);
  }

  Result<void> add_tensors(const GgufPart& part, const GgufArchitecture& architecture) {
    for (const GgufTensor& stored : part.gguf.tensors()) {
      if (is_of_config(stored.name) || layer_in_file(stored.name) >= num_layers_) continue;
      const std::string where = part.gguf.where_tensor(stored.name);
      if (const auto experts = experts_tensor(architecture, stored.name)) {
        RUDDER_TRY_VOID(add_experts(part, stored, *experts));
        continue;
      }
      TensorInfo info{tensor_name_of(architecture, stored.name), {}, part.gguf.file()};
      info.view.dtype = DType::kF32;
      RUDDER_TRY(info.view.shape, shape_of(stored, where));
      if (stored.type->expand == nullptr) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("numbers of type {} are not served", stored.type->name), where);
      }
      const int64_t rows = stored.shape.rank == 1 ? 1 : info.view.shape[0];
      PackedTensor packed{.type = stored.type,
                          .bytes = stored.bytes,
                          .rows = rows,
                          .columns = info.view.shape.numel() / std::max<int64_t>(rows, 1)};
      if (architecture.pairs_neighbours && (is_query(info.name) || is_key(info.name))) {
        if (info.view.shape[0] % head_dim_ != 0 || head_dim_ % 2 != 0) {
          return fail(ErrorCode::kCorruptFile,
                      fmt::format("{} rows are not heads of {}", info.view.shape[0], head_dim_),
                      where);
        }
        packed.head_rows = head_dim_;
      }
      if (architecture.adds_one && is_norm(info.name)) packed.add = -1;
      if (stored.shape.rank == 1) {
        info.view.data = unpack_vector(packed);
      } else {
        info.packed = packed;
      }
      tensors_.push_back(std::move(info));
    }
    return {};
  }

  // A tensor of all experts as one for each, or as two.
  Result<void> add_experts(const GgufPart& part, const GgufTensor& stored,
                           const GgufExpertsTensor& name) {
    const std::string where = part.gguf.where_tensor(stored.name);
    const bool is_weight = name.suffix == ".weight";
    const int64_t modules = name.experts->second.empty() ? 1 : 2;
    const auto dim = [&](size_t i) { return static_cast<int64_t>(stored.shape.dims[i]); };
    if (stored.shape.rank != (is_weight ? 3 : 2) || dim(0) != num_experts_ ||
        dim(1) % modules != 0) {
      return fail(
          ErrorCode::kCorruptFile,
          fmt::format("its shape is {}, of {} experts", stored.shape.to_string(), num_experts_),
          where);
    }
    if (stored.type->expand == nullptr) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("numbers of type {} are not served", stored.type->name), where);
    }
    const int64_t rows = dim(1) / modules;
    const int64_t columns = is_weight ? dim(2) : 1;
    const auto bytes = static_cast<size_t>(is_weight ? rows * stored.type->row_bytes(columns)
                                                     : stored.type->row_bytes(rows));
    for (int64_t i = 0; i < num_experts_ * modules; ++i) {
      TensorInfo info{expert_name(name, i / modules,
                                  i % modules == 0 ? name.experts->module : name.experts->second),
                      {},
                      part.gguf.file()};
      PackedTensor packed{.type = stored.type,
                          .bytes = stored.bytes.subspan(static_cast<size_t>(i) * bytes, bytes),
                          .rows = is_weight ? rows : 1,
                          .columns = is_weight ? columns : rows};
      info.view.dtype = DType::kF32;
      info.view.shape = is_weight ? tensor::Shape{rows, columns} : tensor::Shape{rows};
      if (is_weight) {
        info.packed = packed;
      } else {
        info.view.data = unpack_vector(packed);
      }
      tensors_.push_back(std::move(info));
    }
    return {};
  }

  // Of a bias with heads each number is a row.
  void* unpack_vector(PackedTensor packed) {
    if (packed.head_rows > 0 && packed.type->values == 1) {
      std::swap(packed.rows, packed.columns);
    }
    vectors_.emplace_back(static_cast<size_t>(std::max<int64_t>(packed.rows * packed.columns, 1)));
    packed.unpack(vectors_.back().data());
    return vectors_.back().data();
  }

  std::string path_;
  std::vector<GgufPart> parts_;
  std::map<std::string, std::string, std::less<>> texts_;
  int64_t head_dim_ = 0;
  int64_t num_layers_ = 0;
  int64_t num_experts_ = 0;
  std::vector<std::vector<float>> vectors_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

Result<std::shared_ptr<const Checkpoint>> open_gguf(const std::string& path) {
  auto checkpoint = std::make_shared<GgufCheckpoint>(path);
  RUDDER_TRY_VOID(checkpoint->load());
  return checkpoint;
}

}  // namespace rudder::model
