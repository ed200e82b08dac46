#include "rudder/weights/gguf_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "rudder/base/check.h"

namespace rudder::weights {
namespace {

constexpr uint64_t kAlignment = 32;  // what readers take without general.alignment
constexpr uint32_t kVersion = 3;

template <typename T>
void put(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void put_text(std::string& to, std::string_view text) {
  put(to, uint64_t{text.size()});
  to += text;
}
uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

GgufWriter::~GgufWriter() {
  if (temporary_.empty()) return;
  file_.close();
  ::unlink(temporary_.c_str());
}

void GgufWriter::put_key(std::string_view key, GgufType type) {
  put_text(values_, key);
  put(values_, type);
  ++num_values_;
}
void GgufWriter::put_array(std::string_view key, GgufType type, uint64_t count) {
  put_key(key, GgufType::kArray);
  put(values_, type);
  put(values_, count);
}

void GgufWriter::add(std::string_view key, uint32_t value) {
  put_key(key, GgufType::kU32);
  put(values_, value);
}
void GgufWriter::add(std::string_view key, float value) {
  put_key(key, GgufType::kF32);
  put(values_, value);
}
void GgufWriter::add(std::string_view key, bool value) {
  put_key(key, GgufType::kBool);
  put(values_, static_cast<uint8_t>(value));
}
void GgufWriter::add(std::string_view key, std::string_view text) {
  put_key(key, GgufType::kString);
  put_text(values_, text);
}
void GgufWriter::add(std::string_view key, std::span<const std::string> texts) {
  put_array(key, GgufType::kString, texts.size());
  for (const std::string& text : texts) put_text(values_, text);
}
void GgufWriter::add(std::string_view key, std::span<const int32_t> numbers) {
  put_array(key, GgufType::kI32, numbers.size());
  for (const int32_t number : numbers) put(values_, number);
}
void GgufWriter::add(std::string_view key, std::span<const float> numbers) {
  put_array(key, GgufType::kF32, numbers.size());
  for (const float number : numbers) put(values_, number);
}

void GgufWriter::declare(std::string_view name, const BlockType& type, uint64_t rows,
                         uint64_t columns) {
  RUDDER_CHECK(columns % type.values == 0, "{} columns of {}", columns, type.name);
  Declared tensor;
  put_text(tensor.info, name);
  put(tensor.info, uint32_t{rows == 0 ? 1u : 2u});
  put(tensor.info, columns);
  if (rows > 0) put(tensor.info, rows);
  put(tensor.info, type.number);
  tensor.bytes = std::max<uint64_t>(rows, 1) * columns / type.values * type.bytes;
  tensors_.push_back(std::move(tensor));
}

Result<void> GgufWriter::begin(const std::string& path) {
  std::string header = "GGUF";
  put(header, kVersion);
  put(header, uint64_t{tensors_.size()});
  put(header, num_values_);
  header += values_;
  uint64_t offset = 0;
  for (const Declared& tensor : tensors_) {
    header += tensor.info;
    put(header, offset);
    offset = aligned(offset + tensor.bytes);
  }
  path_ = path;
  temporary_ = fmt::format("{}.{}.tmp", path, ::getpid());
  file_.open(temporary_, std::ios::binary | std::ios::trunc);
  file_ << header;
  return pad();
}

Result<void> GgufWriter::append(std::span<const std::byte> bytes) {
  RUDDER_CHECK(next_ < tensors_.size() && bytes.size() == tensors_[next_].bytes);
  ++next_;
  file_.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  return pad();
}

Result<void> GgufWriter::pad() {
  RUDDER_TRY_VOID(check_file());
  const auto at = static_cast<uint64_t>(file_.tellp());
  file_ << std::string(aligned(at) - at, '\0');
  return check_file();
}

Result<void> GgufWriter::check_file() const {
  if (file_) return {};
  return fail(ErrorCode::kIo, "it cannot be written", temporary_);
}

Result<void> GgufWriter::finish() {
  RUDDER_CHECK(next_ == tensors_.size());
  file_.close();
  RUDDER_TRY_VOID(check_file());
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return fail(ErrorCode::kIo, "it cannot be renamed into place", path_);
  }
  temporary_.clear();
  return {};
}

}  // namespace rudder::weights
