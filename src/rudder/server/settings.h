// Settings of the HTTP server. Names are vLLM's where they exist. Filled once at start by apps/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/settings.h"
#include "rudder/constraint/grammar_compiler.h"

namespace rudder::server {

// What the model is served as, beside generating. auto: what its own files or its name say.
struct ModelTasks {
  std::string pooling = "auto";   // of embeddings whose request names none
  std::string reranker = "auto";  // how /v1/rerank asks
};

struct ServerSettings {
  // Where to listen. Loopback unless told otherwise; another address without a key is a warning.
  std::string host = "127.0.0.1";
  int32_t port = 8000;       // 0: any free port, see Server::port
  std::string uds;           // path of a Unix socket to listen on instead of host and port
  std::string ssl_certfile;  // TLS, where both are given; see Server::reload_certificate
  std::string ssl_keyfile;

  // Who may ask, and for what.
  std::vector<std::string> api_key;  // any of them opens every guarded route; none: no check
  std::vector<std::string> steering_api_key;   // likewise, of routes that change steering
  std::string api_key_file;                    // more of them, a line each
  std::string steering_api_key_file;           // likewise
  std::vector<std::string> allowed_hosts;      // names that Host may have; see http/origin_check.h
  std::vector<std::string> allowed_origins;    // CORS, off when empty; "*" is every origin
  std::vector<std::string> served_model_name;  // replaces ServerModel::ids when not empty

  // How the model's tool calls and thoughts are told from its text; empty: as its template shows.
  std::string tool_call_parser;
  std::string reasoning_parser;

  // Bounds on what one client may cost.
  int64_t max_request_body = int64_t{16} << 20;    // bytes, after transfer decoding: past it 413
  int64_t max_buffered_bodies = int64_t{1} << 30;  // bytes of all bodies held at once: past it 503
  int64_t max_pending_output = int64_t{1} << 20;  // bytes a slow reader may leave unread: cancelled
  int64_t socket_send_buffer = int64_t{256} << 10;
  int64_t max_pending_captures = int64_t{64} << 20;  // the same, of captured values, on top
  int64_t max_answer_bytes = int64_t{256} << 20;     // of an answer that is sent whole: past it 503
  int64_t max_buffered_output = int64_t{1} << 30;    // bytes of all answers that are not sent yet
  int64_t response_store_bytes = int64_t{64} << 20;  // of answers that /v1/responses remembers
  int32_t max_connections = 16384;                   // or as many as the system has descriptors for
  int32_t max_connections_per_address = 0;           // 0: half of all
  int32_t max_prompts = 1024;                        // prompts of one completions request
  double header_timeout = 20;                        // seconds for a whole header to arrive
  double body_timeout = 60;                          // seconds for a whole body to arrive
  double timeout_keep_alive = 75;                    // seconds an idle connection is kept
  double write_timeout = 60;      // seconds for 64 KiB of an answer to be taken: cancelled
  double sse_ping_interval = 15;  // seconds of silence after which a stream gets a comment; 0: none
  double shutdown_timeout = 30;   // seconds that a drain lets running requests finish

  // Threads: two that move bytes hold thousands of streams; tokenising is done apart from them.
  int32_t http_threads = 2;
  int32_t tokenize_threads = 2;
  int64_t token_cache_bytes = int64_t{16} << 20;  // of ids of texts tokenised lately; 0: none

  // What is told.
  bool enable_log_requests = false;       // a line when a request arrives, with its parameters
  bool disable_log_stats = false;         // no line every 10 s while busy
  bool disable_access_log = false;        // no line when a request finishes
  std::string metrics_prefix = "rudder";  // "vllm" keeps existing dashboards working

  ModelTasks tasks;

  constraint::GrammarSettings grammars;

  void declare(SettingsTable& table);
};

}  // namespace rudder::server
