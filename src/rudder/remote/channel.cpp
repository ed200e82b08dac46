#include "rudder/remote/channel.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace rudder::remote {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kKeptBytes = size_t{1} << 20;  // of a buffer that is empty

tl::unexpected<Error> ended() {
  return fail(ErrorCode::kUnavailable, "the other process has ended");
}

}  // namespace

Channel::Channel(int descriptor) : descriptor_(descriptor), writer_([this] { write_all(); }) {}

Channel::~Channel() {
  shut();
  writer_.join();
  close(descriptor_);
}

void Channel::set_length(std::string& frame) {
  const auto length = static_cast<uint32_t>(frame.size() - sizeof(uint32_t));
  std::memcpy(frame.data(), &length, sizeof(length));
}

tl::unexpected<Error> Channel::no_message() {
  return fail(ErrorCode::kIo, "what the other process sent is no message");
}

void Channel::send(std::string_view frame) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    if (is_shut_) return;
    is_first = output_.empty();
    output_.append(frame);
  }
  if (is_first) has_output_.notify_one();
}

void Channel::write_all() {
  pthread_setname_np(pthread_self(), "rudder-channel");
  std::string bytes;
  std::unique_lock lock(mutex_);
  while (true) {
    is_writing_ = false;
    if (output_.empty()) is_written_.notify_all();
    has_output_.wait(lock, [this] { return is_shut_ || !output_.empty(); });
    if (is_shut_) return is_written_.notify_all();
    bytes.clear();
    std::swap(bytes, output_);
    if (output_.capacity() > kKeptBytes) output_ = {};
    is_writing_ = true;
    lock.unlock();
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t sent =
          ::send(descriptor_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) break;
      done += static_cast<size_t>(sent);
    }
    lock.lock();
    if (done < bytes.size()) is_shut_ = true;
  }
}

Result<std::optional<std::string_view>> Channel::receive(int64_t patience_ms) {
  uint32_t length = 0;
  while (true) {
    const size_t held = end_ - begin_;
    if (held >= sizeof(length)) {
      std::memcpy(&length, input_.data() + begin_, sizeof(length));
      if (length > kMaxMessageBytes) return no_message();
      if (held - sizeof(length) >= length) {
        const std::string_view message(input_.data() + begin_ + sizeof(length), length);
        begin_ += sizeof(length) + length;
        return message;
      }
    }
    // What is announced gets memory as it comes.
    if (begin_ > 0) {
      std::memmove(input_.data(), input_.data() + begin_, held);
      begin_ = 0;
      end_ = held;
    }
    if (held == 0 && input_.size() > kKeptBytes) input_ = {};
    if (input_.size() < end_ + kReadBytes) input_.resize(std::max(end_ + kReadBytes, 2 * end_));
    const ssize_t got = recv(descriptor_, input_.data() + end_, input_.size() - end_, MSG_DONTWAIT);
    if (got > 0) {
      end_ += static_cast<size_t>(got);
      continue;
    }
    if (got == 0 || (errno != EINTR && errno != EAGAIN)) return ended();
    if (errno == EINTR) continue;
    pollfd ready = {.fd = descriptor_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, static_cast<int>(patience_ms)) == 0) {
      return std::optional<std::string_view>();
    }
  }
}

void Channel::shut() {
  {
    const std::lock_guard lock(mutex_);
    is_shut_ = true;
  }
  has_output_.notify_one();
  shutdown(descriptor_, SHUT_RDWR);
}

bool Channel::flush(int64_t patience_ms) {
  std::unique_lock lock(mutex_);
  return is_written_.wait_for(lock, std::chrono::milliseconds(patience_ms),
                              [this] { return is_shut_ || (output_.empty() && !is_writing_); });
}

}  // namespace rudder::remote
