#include "rudder/hub/digest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace rudder::hub {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

std::string finish_hex(EVP_MD_CTX* context) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes = {};
  unsigned int size = 0;
  EVP_DigestFinal_ex(context, bytes.data(), &size);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

Result<std::string> digest_open_file(int fd, DigestKind kind, const std::string& path,
                                     const std::function<bool(size_t bytes)>& on_bytes) {
  const auto refused = [&] {
    return fail(ErrorCode::kIo, fmt::format("cannot read it: {}", std::strerror(errno)), path);
  };
  struct stat status = {};
  if (fstat(fd, &status) != 0) return refused();
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), kind == DigestKind::kSha256 ? EVP_sha256() : EVP_sha1(),
                    nullptr);
  if (kind == DigestKind::kGitBlob) {
    const std::string header = fmt::format("blob {}", status.st_size);
    EVP_DigestUpdate(context.get(), header.c_str(), header.size() + 1);  // with its NUL
  }
  std::vector<char> piece(kPieceBytes);
  while (true) {
    const ssize_t count = read(fd, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return refused();
    if (count == 0) return finish_hex(context.get());
    EVP_DigestUpdate(context.get(), piece.data(), static_cast<size_t>(count));
    if (on_bytes && !on_bytes(static_cast<size_t>(count))) {
      return fail(ErrorCode::kCancelled, "stopped", path);
    }
  }
}

}  // namespace

Result<std::string> digest_file(const std::string& path, DigestKind kind,
                                const std::function<bool(size_t bytes)>& on_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return fail(ErrorCode::kIo, fmt::format("cannot open it: {}", std::strerror(errno)), path);
  }
  Result<std::string> digest = digest_open_file(fd, kind, path, on_bytes);
  close(fd);
  return digest;
}

}  // namespace rudder::hub
