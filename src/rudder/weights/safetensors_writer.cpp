#include "rudder/weights/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "rudder/base/check.h"
#include "rudder/base/json.h"

namespace rudder::weights {
namespace {

constexpr uint64_t kDataAlignment = 64;

tl::unexpected<Error> io_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, fmt::format("cannot {} it: {}", what, std::strerror(errno)), path);
}

Result<void> write_all(int fd, uint64_t offset, std::span<const std::byte> bytes,
                       const std::string& path) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "write");
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<int> create_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(path, "create");
  return fd;
}

Result<void> rename_into_place(int fd, const std::string& from, const std::string& to,
                               bool durable) {
  if (durable && ::fsync(fd) != 0) return io_error(from, "flush");
  if (std::rename(from.c_str(), to.c_str()) != 0) return io_error(to, "rename");
  if (!durable) return {};
  const std::string folder = (std::filesystem::path(to).parent_path() / ".").string();
  const int folder_fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd < 0) return io_error(folder, "open");
  const bool flushed = ::fsync(folder_fd) == 0;
  ::close(folder_fd);
  if (!flushed) return io_error(folder, "flush");
  return {};
}

std::string temporary_name(const std::string& path) {
  return fmt::format("{}.{}.tmp", path, ::getpid());
}

}  // namespace

Result<std::vector<std::byte>> make_safetensors_header(std::span<const TensorDecl> tensors,
                                                       const Metadata& metadata) {
  std::string text(1, '{');
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (!text.ends_with('{')) text += ',';
      append_json_string(text, key);
      text += ':';
      append_json_string(text, value);
    }
    text += '}';
  }
  uint64_t offset = 0;
  for (const TensorDecl& tensor : tensors) {
    uint64_t bytes = 0;
    uint64_t end = 0;
    if (!checked_tensor_bytes(tensor.shape, tensor::dtype_bytes(tensor.dtype), bytes) ||
        __builtin_add_overflow(offset, bytes, &end)) {
      return fail(ErrorCode::kInvalidArgument, "the size overflows", tensor.name);
    }
    if (text.size() > 1) text += ',';
    append_json_string(text, tensor.name);
    text += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        tensor::dtype_name(tensor.dtype), fmt::join(tensor.shape.extents(), ","),
                        offset, end);
    offset = end;
  }
  text += '}';
  while ((8 + text.size()) % kDataAlignment != 0) text += ' ';
  if (text.size() > kMaxHeaderBytes) {
    return fail(ErrorCode::kTooLarge, fmt::format("the header has {} bytes, the limit is {}",
                                                  text.size(), kMaxHeaderBytes));
  }
  std::vector<std::byte> out(8 + text.size());
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<std::byte>(text.size() >> (8 * i));
  std::memcpy(out.data() + 8, text.data(), text.size());
  return out;
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::string& path, std::span<const TensorDecl> tensors, const Metadata& metadata) {
  RUDDER_TRY(const std::vector<std::byte> header, make_safetensors_header(tensors, metadata));
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(path, temporary_name(path)));
  uint64_t offset = header.size();
  for (const TensorDecl& tensor : tensors) {
    uint64_t bytes = 0;
    checked_tensor_bytes(tensor.shape, tensor::dtype_bytes(tensor.dtype), bytes);
    writer->ranges_.emplace_back(offset, offset + bytes);
    offset += bytes;
  }
  RUDDER_TRY(writer->fd_, create_file(writer->temporary_));
  if (::ftruncate(writer->fd_, static_cast<off_t>(offset)) != 0) {
    return io_error(writer->temporary_, "size");
  }
  RUDDER_TRY_VOID(write_all(writer->fd_, 0, header, writer->temporary_));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

Result<void> SafetensorsWriter::write(size_t tensor, uint64_t offset,
                                      std::span<const std::byte> bytes) {
  RUDDER_CHECK(fd_ >= 0 && tensor < ranges_.size());
  const auto [begin, end] = ranges_[tensor];
  RUDDER_CHECK(offset <= end - begin && bytes.size() <= end - begin - offset);
  return write_all(fd_, begin + offset, bytes, temporary_);
}

Result<void> SafetensorsWriter::finish(bool durable) {
  RUDDER_CHECK(fd_ >= 0, "finish was called before");
  RUDDER_TRY_VOID(rename_into_place(fd_, temporary_, path_, durable));
  ::close(fd_);
  fd_ = -1;
  return {};
}

Result<void> write_file_atomically(const std::string& path, std::string_view text, bool durable) {
  const std::string temporary = temporary_name(path);
  RUDDER_TRY(const int fd, create_file(temporary));
  Result<void> done = write_all(fd, 0, std::as_bytes(std::span(text)), temporary);
  if (done) done = rename_into_place(fd, temporary, path, durable);
  ::close(fd);
  if (!done) ::unlink(temporary.c_str());
  return done;
}

}  // namespace rudder::weights
