// TLS of the listener: the certificate that connections begin with, and a connection's channel as a
// filter of bytes. The channel never touches a socket: whoever owns it moves the bytes, so that a
// connection is the same with TLS and without. OpenSSL is seen by tls.cpp alone.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "rudder/base/result.h"

struct ssl_ctx_st;  // SSL_CTX
struct ssl_st;      // SSL

namespace rudder::server {

// A certificate chain and its key, from PEM files. Any thread.
class TlsCertificate {
 public:
  TlsCertificate(std::string chain_file, std::string key_file)
      : chain_file_(std::move(chain_file)), key_file_(std::move(key_file)) {}

  // Reads both files; connections that begin from now on have what they say. On an error (kIo or
  // kCorruptFile, the setting in `where`) what was read before stays.
  Result<void> load();
  std::shared_ptr<ssl_ctx_st> current() const;

 private:
  const std::string chain_file_;
  const std::string key_file_;
  mutable std::mutex mutex_;
  std::shared_ptr<ssl_ctx_st> current_;
};

// The server's end of one connection. One thread.
class TlsChannel {
 public:
  explicit TlsChannel(std::shared_ptr<ssl_ctx_st> context);
  ~TlsChannel();
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  // Bytes from the peer: what they say is appended to `plain`. False: the channel is closed or
  // broken; what it still has to say of that is outgoing.
  bool receive(std::string_view bytes, std::string& plain);
  // Encrypts; is_open() holds.
  bool send(std::string_view plain);
  void close();  // says so to the peer

  bool is_open() const;  // the handshake is done
  // Bytes for the peer, in the order in which they must be sent; the owner takes them.
  std::string& outgoing() { return outgoing_; }
  bool has_outgoing() const { return !outgoing_.empty(); }

 private:
  void collect_outgoing();

  const std::shared_ptr<ssl_ctx_st> context_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  std::string outgoing_;
};

}  // namespace rudder::server
