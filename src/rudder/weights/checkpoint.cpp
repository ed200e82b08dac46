#include "rudder/weights/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder::weights {
namespace json = boost::json;

namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{256} << 20;
constexpr size_t kMaxShards = 10'000;
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

using NamedShards = std::vector<std::pair<std::string, std::string>>;  // tensor, file

// Names come from the index or the caller; only files of the folder itself are opened.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && !name.starts_with('.') &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// One of those, or one in a folder of the model's folder ("1_Pooling/config.json").
bool is_text_file_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_plain_file_name(name);
  return is_plain_file_name(name.substr(0, slash)) && is_plain_file_name(name.substr(slash + 1));
}

// The file of each tensor, sorted by file, then by tensor.
Result<NamedShards> parse_index(std::string_view text, const std::string& file) {
  const auto corrupt = [&](std::string message) {
    return fail(ErrorCode::kCorruptFile, std::move(message), file);
  };
  auto parsed = parse_json(text, file, {.max_depth = 8, .max_bytes = kMaxTextBytes});
  if (!parsed) return corrupt(parsed.error().message);
  const json::object* top = parsed->if_object();
  if (top == nullptr) return corrupt("the index is not a JSON object");
  const json::value* map = top->if_contains("weight_map");
  if (map == nullptr || !map->is_object()) return corrupt("'weight_map' is not an object");
  NamedShards out;
  out.reserve(map->get_object().size());
  for (const auto& [key, value] : map->get_object()) {
    const std::string tensor(key.data(), key.size());
    if (!value.is_string()) return corrupt(fmt::format("weight_map['{}'] is no string", tensor));
    const std::string shard(value.get_string().data(), value.get_string().size());
    if (!is_plain_file_name(shard) || !shard.ends_with(".safetensors")) {
      return corrupt(fmt::format("weight_map['{}'] is not the name of a safetensors file", tensor));
    }
    out.emplace_back(tensor, shard);
  }
  if (out.empty()) return corrupt("'weight_map' lists no tensor");
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second, a.first) < std::tie(b.second, b.first);
  });
  return out;
}

// The tensors that the index lists for a file are exactly those that the file holds. Both sorted.
Result<void> check_listed(std::span<const std::pair<std::string, std::string>> listed,
                          const std::vector<TensorEntry>& held, const std::string& file) {
  size_t i = 0;
  for (const TensorEntry& tensor : held) {
    if (i < listed.size() && listed[i].first == tensor.name) {
      ++i;
    } else if (i == listed.size() || tensor.name < listed[i].first) {
      return fail(ErrorCode::kCorruptFile, "the index does not list it in this file",
                  fmt::format("{}: tensor '{}'", file, tensor.name));
    } else {
      break;
    }
  }
  if (i < listed.size()) {
    return fail(ErrorCode::kCorruptFile, "the index lists it here, the file does not hold it",
                fmt::format("{}: tensor '{}'", file, listed[i].first));
  }
  return {};
}

Result<tensor::Shape> view_shape(const TensorEntry& entry, const std::string& file) {
  const auto d = [&](size_t i) { return static_cast<int64_t>(entry.shape.dims[i]); };
  bool in_range = std::all_of(entry.shape.dims.begin(), entry.shape.dims.end(),
                              [](uint64_t extent) { return extent <= INT64_MAX; });
  // Convolutions of encoders, which no text model has: the last dimensions count as one.
  int64_t rest = 1;
  for (size_t i = 3; in_range && i < entry.shape.rank; ++i) {
    in_range = !__builtin_mul_overflow(rest, d(i), &rest);
  }
  switch (in_range ? std::min<size_t>(entry.shape.rank, 4) : kMaxRank) {
    case 0:
      return tensor::Shape{};
    case 1:
      return tensor::Shape{d(0)};
    case 2:
      return tensor::Shape{d(0), d(1)};
    case 3:
      return tensor::Shape{d(0), d(1), d(2)};
    case 4:
      return tensor::Shape{d(0), d(1), d(2), rest};
    default:
      return fail(ErrorCode::kUnsupported,
                  fmt::format("the shape {} has too large dimensions", entry.shape.to_string()),
                  fmt::format("{}: tensor '{}'", file, entry.name));
  }
}

class CheckpointImpl : public Checkpoint {
 public:
  explicit CheckpointImpl(std::string folder) : folder_(std::move(folder)) {}
  explicit CheckpointImpl(std::vector<MemoryFile> files) : memory_(std::move(files)) {}

  Result<void> load(std::string_view other = {}) {
    if (has_file(kSingle)) {
      RUDDER_TRY_VOID(add_file(std::string(kSingle), nullptr));
    } else if (has_file(kIndex)) {
      RUDDER_TRY(const std::string text, read_text(kIndex));
      RUDDER_TRY(const NamedShards listed, parse_index(text, where(kIndex)));
      RUDDER_TRY_VOID(add_shards(listed));
    } else if (!other.empty() && has_file(other)) {
      RUDDER_TRY_VOID(add_file(std::string(other), nullptr));
    } else {
      return fail(ErrorCode::kNotFound,
                  fmt::format("neither {} nor {}{}{} is there", kSingle, kIndex,
                              other.empty() ? "" : " nor ", other),
                  folder_);
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
    for (size_t i = 1; i < tensors_.size(); ++i) {
      if (tensors_[i].name == tensors_[i - 1].name) {
        return fail(ErrorCode::kCorruptFile, fmt::format("it is in {} too", tensors_[i - 1].file),
                    fmt::format("{}: tensor '{}'", tensors_[i].file, tensors_[i].name));
      }
    }
    return {};
  }

  std::string name() const override {
    if (folder_.empty()) return "memory";
    const auto path = std::filesystem::path(folder_).lexically_normal();
    return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  }

  Result<std::string> read_text(std::string_view file) const override {
    if (!is_text_file_name(file)) {
      return fail(ErrorCode::kInvalidArgument, "not a plain file name", std::string(file));
    }
    if (!folder_.empty()) return read_text_file(where(file), kMaxTextBytes);
    const MemoryFile* found = find_memory(file);
    if (found == nullptr) return fail(ErrorCode::kNotFound, "there is no such file", where(file));
    return std::string(reinterpret_cast<const char*>(found->bytes.data()), found->bytes.size());
  }

  bool has_file(std::string_view file) const override {
    if (folder_.empty()) return find_memory(file) != nullptr;
    std::error_code ignored;  // a link to nothing is there, and cannot be read
    return is_text_file_name(file) &&
           std::filesystem::exists(std::filesystem::symlink_status(where(file), ignored));
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }

  const TensorInfo* find(std::string_view tensor) const override {
    const auto before = [](const TensorInfo& t, std::string_view wanted) {
      return t.name < wanted;
    };
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), tensor, before);
    return at != tensors_.end() && at->name == tensor ? &*at : nullptr;
  }

  int64_t tensor_bytes() const override {
    int64_t total = 0;
    for (const TensorInfo& tensor : tensors_) total += static_cast<int64_t>(tensor.view.bytes());
    return total;
  }

  void prefetch(const TensorInfo& tensor) const override {
    if (folder_.empty()) return;
    prefetch_pages({static_cast<const std::byte*>(tensor.view.data), tensor.view.bytes()});
  }

  void release_pages() const override {
    for (const auto& file : mapped_) file->release_pages();
  }

  Result<void> check_unchanged() const override {
    for (const auto& file : mapped_) RUDDER_TRY_VOID(file->check_unchanged());
    return {};
  }

 private:
  std::string where(std::string_view file) const {
    return folder_.empty() ? std::string(file) : fmt::format("{}/{}", folder_, file);
  }

  const MemoryFile* find_memory(std::string_view file) const {
    const auto at = std::find_if(memory_.begin(), memory_.end(),
                                 [&](const MemoryFile& f) { return f.name == file; });
    return at != memory_.end() ? &*at : nullptr;
  }

  Result<std::span<const std::byte>> open_bytes(const std::string& file) {
    if (folder_.empty()) {
      const MemoryFile* found = find_memory(file);
      if (found == nullptr) return fail(ErrorCode::kNotFound, "there is no such file", file);
      return found->bytes;
    }
    RUDDER_TRY(auto mapped, MappedFile::open(where(file)));
    mapped_.push_back(mapped);
    return mapped->bytes();
  }

  Result<void> add_shards(const NamedShards& listed) {
    for (size_t begin = 0; begin < listed.size();) {
      size_t end = begin;
      while (end < listed.size() && listed[end].second == listed[begin].second) ++end;
      const auto part = std::span(listed).subspan(begin, end - begin);
      RUDDER_TRY_VOID(add_file(listed[begin].second, &part));
      begin = end;
      if (++num_shards_ > kMaxShards) {
        return fail(ErrorCode::kCorruptFile, fmt::format("it lists over {} files", kMaxShards),
                    where(kIndex));
      }
    }
    return {};
  }

  Result<void> add_file(const std::string& file,
                        const std::span<const std::pair<std::string, std::string>>* listed) {
    RUDDER_TRY(const std::span<const std::byte> bytes, open_bytes(file));
    RUDDER_TRY(const Safetensors parsed, parse_safetensors(bytes, where(file)));
    if (listed != nullptr) RUDDER_TRY_VOID(check_listed(*listed, parsed.tensors, where(file)));
    for (const TensorEntry& entry : parsed.tensors) {
      RUDDER_TRY(const tensor::Shape shape, view_shape(entry, where(file)));
      const std::span<const std::byte> data = aligned(parsed.bytes_of(entry), entry.dtype);
      tensors_.push_back(
          {entry.name, {const_cast<std::byte*>(data.data()), entry.dtype, shape}, file});
    }
    return {};
  }

  // A view must be aligned to its elements; old writers did not pad the header. Such a tensor is
  // copied, and an empty one gets an address, since a null view means "absent".
  std::span<const std::byte> aligned(std::span<const std::byte> bytes, tensor::DType dtype) {
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    if (!bytes.empty() && address % tensor::dtype_bytes(dtype) == 0) return bytes;
    copies_.emplace_back(bytes.size() / sizeof(uint64_t) + 1);
    if (!bytes.empty()) std::memcpy(copies_.back().data(), bytes.data(), bytes.size());
    return std::as_bytes(std::span(copies_.back())).first(bytes.size());
  }

  std::string folder_;  // empty: the files are in memory_
  std::vector<MemoryFile> memory_;
  std::vector<std::shared_ptr<const MappedFile>> mapped_;
  std::vector<std::vector<uint64_t>> copies_;
  std::vector<TensorInfo> tensors_;
  size_t num_shards_ = 0;
};

class RetoldCheckpoint : public Checkpoint {
 public:
  RetoldCheckpoint(std::shared_ptr<const Checkpoint> base, std::string file, std::string text)
      : base_(std::move(base)), file_(std::move(file)), text_(std::move(text)) {}

  std::string name() const override { return base_->name(); }
  Result<std::string> read_text(std::string_view file) const override {
    if (file == file_) return text_;
    return base_->read_text(file);
  }
  bool has_file(std::string_view file) const override {
    return file == file_ || base_->has_file(file);
  }
  const std::vector<TensorInfo>& tensors() const override { return base_->tensors(); }
  const TensorInfo* find(std::string_view tensor) const override { return base_->find(tensor); }
  int64_t tensor_bytes() const override { return base_->tensor_bytes(); }
  void prefetch(const TensorInfo& tensor) const override { base_->prefetch(tensor); }
  void release_pages() const override { base_->release_pages(); }
  Result<void> check_unchanged() const override { return base_->check_unchanged(); }

 private:
  std::shared_ptr<const Checkpoint> base_;
  std::string file_;
  std::string text_;
};

}  // namespace

std::shared_ptr<const Checkpoint> Checkpoint::with_text(std::shared_ptr<const Checkpoint> base,
                                                        std::string file, std::string text) {
  return std::make_shared<RetoldCheckpoint>(std::move(base), std::move(file), std::move(text));
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::open_folder(const std::string& folder,
                                                                  std::string_view other) {
  auto checkpoint = std::make_shared<CheckpointImpl>(folder.empty() ? "." : folder);
  RUDDER_TRY_VOID(checkpoint->load(other));
  return checkpoint;
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::open_memory(std::vector<MemoryFile> files) {
  auto checkpoint = std::make_shared<CheckpointImpl>(std::move(files));
  RUDDER_TRY_VOID(checkpoint->load());
  return checkpoint;
}

}  // namespace rudder::weights
