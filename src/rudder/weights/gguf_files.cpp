#include "rudder/weights/gguf_files.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

namespace rudder::weights {
namespace {

constexpr std::string_view kGgufSuffix = ".gguf";
constexpr size_t kPartDigits = 5;
constexpr int64_t kMaxParts = 65'535;

struct PartName {
  std::string stem;  // with the folder
  int64_t number = 0;
  int64_t count = 0;

  std::string of(int64_t part) const {
    return fmt::format("{}-{:05}-of-{:05}{}", stem, part, count, kGgufSuffix);
  }
};

std::optional<int64_t> digits(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "STEM-00001-of-00003.gguf"; none for another name.
std::optional<PartName> part_name(std::string_view path) {
  constexpr std::string_view kOf = "-of-";
  constexpr size_t kTail = 1 + kPartDigits + kOf.size() + kPartDigits;
  if (!path.ends_with(kGgufSuffix)) return std::nullopt;
  path.remove_suffix(kGgufSuffix.size());
  if (path.size() <= kTail) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  const auto number = digits(tail.substr(1, kPartDigits));
  const auto count = digits(tail.substr(1 + kPartDigits + kOf.size()));
  if (tail[0] != '-' || tail.substr(1 + kPartDigits, kOf.size()) != kOf || !number || !count) {
    return std::nullopt;
  }
  return PartName{std::string(path.substr(0, path.size() - kTail)), *number, *count};
}

Result<GgufPart> open_part(const std::string& path) {
  GgufPart part;
  RUDDER_TRY(part.mapped, MappedFile::open(path));
  RUDDER_TRY(part.gguf, GgufFile::parse(part.mapped->bytes(), path));
  return part;
}

Result<void> require_key(const GgufFile& gguf, std::string_view key, int64_t wanted) {
  RUDDER_TRY(const int64_t value, gguf.integer(key, 0, INT64_MAX));
  if (value == wanted) return {};
  return fail(ErrorCode::kCorruptFile, fmt::format("it is {}, the files ask for {}", value, wanted),
              gguf.where(key));
}

}  // namespace

bool is_gguf_path(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(kGgufSuffix) && std::filesystem::is_regular_file(path, ignored);
}

Result<std::vector<GgufPart>> open_gguf_files(const std::string& path) {
  constexpr std::string_view kCount = "split.count";
  RUDDER_TRY(GgufPart named, open_part(path));
  RUDDER_TRY(const int64_t count, named.gguf.integer_or(kCount, 1, 0, kMaxParts));
  std::vector<GgufPart> parts;
  if (count <= 1) {
    parts.push_back(std::move(named));
    return parts;
  }
  const std::optional<PartName> name = part_name(path);
  if (!name || name->count != count) {
    return fail(
        ErrorCode::kCorruptFile,
        fmt::format("it is one of {} files, and not named NAME-00001-of-{:05}.gguf", count, count),
        named.gguf.where(kCount));
  }
  std::set<std::string_view> names;
  for (int64_t i = 0; i < count; ++i) {
    RUDDER_TRY(GgufPart part, open_part(name->of(i + 1)));
    RUDDER_TRY_VOID(require_key(part.gguf, kCount, count));
    RUDDER_TRY_VOID(require_key(part.gguf, "split.no", i));
    for (const GgufTensor& tensor : part.gguf.tensors()) {
      if (names.insert(tensor.name).second) continue;
      return fail(ErrorCode::kCorruptFile, "it is in another part too",
                  part.gguf.where_tensor(tensor.name));
    }
    parts.push_back(std::move(part));
  }
  RUDDER_TRY_VOID(require_key(parts.front().gguf, "split.tensors.count", std::ssize(names)));
  return parts;
}

}  // namespace rudder::weights
