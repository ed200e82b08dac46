// Channel: messages over one end of a socket pair, each a length and so many bytes. Sending never
// waits: a thread of the channel's writes what has gathered, in one piece, so a step's events are
// one write. Any thread sends; one receives.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "rudder/base/plain_bytes.h"
#include "rudder/base/result.h"

namespace rudder::remote {

// Of one message; captured rows of a long answer are the largest.
inline constexpr size_t kMaxMessageBytes = size_t{1} << 30;

class Channel {
 public:
  explicit Channel(int descriptor);  // takes it over
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // As frame() made it. Lost where the other side has ended: receive() says so.
  void send(std::string_view frame);
  template <typename Message>
  static std::string frame(const Message& message) {
    std::string bytes(sizeof(uint32_t), '\0');
    write_plain(bytes, message);
    set_length(bytes);
    return bytes;
  }

  // The next message's bytes, until the next call; nothing where none came within the time.
  // kUnavailable: the other side has ended. kIo: what came is no message.
  Result<std::optional<std::string_view>> receive(int64_t patience_ms);
  // The next message, which has to be a `Message` to its last byte (kIo).
  template <typename Message>
  Result<std::optional<Message>> receive_as(int64_t patience_ms) {
    RUDDER_TRY(std::optional<std::string_view> bytes, receive(patience_ms));
    if (!bytes) return std::optional<Message>();
    std::optional<Message> message{Message()};
    if (!read_plain(*bytes, *message) || !bytes->empty()) return no_message();
    return message;
  }

  // Ends both directions: whoever receives is told at once. Any thread.
  void shut();
  // False: what was sent before is not all written yet, after this time.
  bool flush(int64_t patience_ms);

 private:
  static void set_length(std::string& frame);
  static tl::unexpected<Error> no_message();
  void write_all();

  const int descriptor_;
  std::mutex mutex_;
  std::condition_variable has_output_;
  std::condition_variable is_written_;
  std::string output_;
  bool is_writing_ = false;
  bool is_shut_ = false;

  // The receiver's: bytes [begin_, end_) are not taken yet.
  std::string input_;
  size_t begin_ = 0;
  size_t end_ = 0;

  std::thread writer_;  // last: it uses the others
};

}  // namespace rudder::remote
