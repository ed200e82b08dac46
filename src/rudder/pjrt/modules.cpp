#include "rudder/pjrt/modules.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <system_error>
#include <utility>

#include "rudder/base/checksum.h"
#include "rudder/base/clock.h"
#include "rudder/base/log.h"
#include "rudder/base/siphash.h"

namespace rudder::pjrt {
namespace {

// A file is a checksum of what follows, then the plugin's bytes.
uint64_t sum_of(std::string_view bytes) {
  return checksum(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

}  // namespace

Result<const Executable*> Modules::get(std::string_view text) {
  SipHash128 hash({0x72756464657231ULL, 0x706a7274ULL});
  hash.update(std::as_bytes(std::span(client_.identity())));
  hash.update(std::as_bytes(std::span(text)));
  const Key key = hash.finish();
  std::unique_ptr<Executable>& made = made_[key];
  if (made != nullptr) return made.get();
  const std::string path =
      folder_.empty() ? "" : fmt::format("{}/{:016x}{:016x}.pjrt", folder_, key[1], key[0]);
  if (!path.empty()) made = load(path);
  if (made != nullptr) {
    ++num_loaded_;
    return made.get();
  }
  const SteadyClock clock;
  const int64_t start = clock.now_us();
  RUDDER_TRY(made, client_.compile(text));
  ++num_compiled_;
  log_debug("compiled a module of {} bytes of text in {:.1f} s", text.size(),
            static_cast<double>(clock.now_us() - start) * 1e-6);
  if (!path.empty()) store(*made, path);
  return made.get();
}

std::unique_ptr<Executable> Modules::load(const std::string& path) const {
  std::ifstream file(path, std::ios::binary);
  if (!file) return nullptr;
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  uint64_t sum = 0;
  if (all.size() > sizeof(sum)) {
    std::memcpy(&sum, all.data(), sizeof(sum));
    const std::string_view bytes = std::string_view(all).substr(sizeof(sum));
    if (sum == sum_of(bytes)) {
      auto loaded = client_.load(bytes);
      if (loaded) return std::move(*loaded);
      log_warn("{} is compiled again: {}", path, loaded.error().message);
      return nullptr;
    }
  }
  log_warn("{} is compiled again: it is no whole module", path);
  return nullptr;
}

// Written beside and renamed, so that another process finds all of it or nothing. Without the file
// only time is lost.
void Modules::store(const Executable& executable, const std::string& path) const {
  const auto bytes = executable.serialized();
  if (!bytes) {
    log_debug("a module is not kept: {}", bytes.error().message);
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const std::string beside = fmt::format("{}.{}", path, getpid());
  {
    std::ofstream file(beside, std::ios::binary);
    const uint64_t sum = sum_of(*bytes);
    file.write(reinterpret_cast<const char*>(&sum), sizeof(sum));
    file.write(bytes->data(), std::ssize(*bytes));
    if (!file.flush()) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) std::filesystem::rename(beside, path, error);
  if (error) {
    log_warn("cannot keep a compiled module in {}: {}", folder_, error.message());
    std::filesystem::remove(beside, error);
  }
}

}  // namespace rudder::pjrt
