#include "rudder/server/http/tls.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <climits>
#include <new>
#include <utility>

#include "rudder/server/http/plain_file.h"

namespace rudder::server {
namespace {

std::string last_tls_error() {
  std::array<char, 256> text = {};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  return text.data();
}

// The one application protocol that is spoken here, as ALPN spells it.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_length,
                    const unsigned char* offered, unsigned int offered_length, void*) {
  static constexpr unsigned char kHttp11[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* chosen = nullptr;
  const int found =
      SSL_select_next_proto(&chosen, out_length, kHttp11, sizeof(kHttp11), offered, offered_length);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

Result<void> TlsCertificate::load() {
  RUDDER_TRY_VOID(check_plain_file(chain_file_, "ssl-certfile"));
  RUDDER_TRY_VOID(check_plain_file(key_file_, "ssl-keyfile"));
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return fail(ErrorCode::kInternal, last_tls_error());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
  if (SSL_CTX_use_certificate_chain_file(context.get(), chain_file_.c_str()) != 1) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("no certificates in {}: {}", chain_file_, last_tls_error()),
                "ssl-certfile");
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_file_.c_str(), SSL_FILETYPE_PEM) != 1) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("no key for {} in {}: {}", chain_file_, key_file_, last_tls_error()),
                "ssl-keyfile");
  }
  const std::lock_guard lock(mutex_);
  current_ = context;
  return {};
}

std::shared_ptr<SSL_CTX> TlsCertificate::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

TlsChannel::TlsChannel(std::shared_ptr<SSL_CTX> context)
    : context_(std::move(context)), ssl_(SSL_new(context_.get()), SSL_free) {
  if (ssl_ == nullptr) throw std::bad_alloc();
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  if (in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    throw std::bad_alloc();
  }
  SSL_set_bio(ssl_.get(), in, out);
  SSL_set_accept_state(ssl_.get());
}

TlsChannel::~TlsChannel() = default;

void TlsChannel::collect_outgoing() {
  BIO* const out = SSL_get_wbio(ssl_.get());
  const size_t pending = BIO_ctrl_pending(out);
  if (pending == 0) return;
  const size_t before = outgoing_.size();
  outgoing_.resize(before + pending);
  size_t got = 0;
  BIO_read_ex(out, outgoing_.data() + before, pending, &got);
  outgoing_.resize(before + got);
}

bool TlsChannel::receive(std::string_view bytes, std::string& plain) {
  ERR_clear_error();
  size_t taken = 0;
  if (BIO_write_ex(SSL_get_rbio(ssl_.get()), bytes.data(), bytes.size(), &taken) != 1 ||
      taken != bytes.size()) {
    return false;
  }
  std::array<char, 16384> record;  // the largest there is
  int result = 0;
  do {
    size_t got = 0;
    result = SSL_read_ex(ssl_.get(), record.data(), record.size(), &got);
    if (result == 1) plain.append(record.data(), got);
  } while (result == 1);
  const int why = SSL_get_error(ssl_.get(), result);
  ERR_clear_error();
  collect_outgoing();
  return why == SSL_ERROR_WANT_READ;
}

bool TlsChannel::send(std::string_view plain) {
  if (plain.empty()) return true;
  ERR_clear_error();
  size_t taken = 0;
  const int result = SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &taken);
  ERR_clear_error();
  collect_outgoing();
  return result == 1 && taken == plain.size();
}

void TlsChannel::close() {
  if (!is_open()) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
  collect_outgoing();
}

bool TlsChannel::is_open() const {
  return SSL_is_init_finished(ssl_.get()) == 1;
}

}  // namespace rudder::server
