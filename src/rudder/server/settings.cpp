#include "rudder/server/settings.h"

namespace rudder::server {

void ServerSettings::declare(SettingsTable& table) {
  constexpr double kDay = 86'400;
  table.section("server");
  table.add("host", &host, "Address to listen on; 0.0.0.0 or :: is every interface.");
  table.add("port", &port, 0, 65535, "TCP port to listen on; 0 takes a free one.");
  table.add("uds", &uds, "Path of a Unix socket to listen on instead of host and port.");
  table.add(
      "ssl-certfile", &ssl_certfile,
      "PEM file of the certificate and its chain: TLS on the listening address; read again on "
      "SIGHUP.");
  table.add("ssl-keyfile", &ssl_keyfile,
            "PEM file of the certificate's key; read again on SIGHUP.");
  table.add("api-key", &api_key,
            "Keys of which clients must send one as a bearer token; repeatable.");
  table.add("steering-api-key", &steering_api_key,
            "Key for requests that register modules or set global steering; repeatable, without it "
            "--api-key opens them.");
  table.add(
      "api-key-file", &api_key_file,
      "File with more of such keys, one a line; a command line can be read by every user of the "
      "machine.");
  table.add("steering-api-key-file", &steering_api_key_file,
            "File with more of the keys of --steering-api-key, one a line.");
  table.add(
      "allowed-hosts", &allowed_hosts,
      "Name that requests may give as Host, beside localhost and addresses; repeatable, * for "
      "all. Without it, names are checked where only this machine is listened to.");
  table.add("allowed-origins", &allowed_origins,
            "Origin that browsers may call from (CORS), * for all; repeatable, off by default.");
  table.add("served-model-name", &served_model_name,
            "Name under which the model is served; repeatable, the first one is in answers.");
  table.add("tool-call-parser", &tool_call_parser,
            "How the model writes tool calls (hermes, llama3_json, mistral, ...); by default what "
            "its chat template shows.");
  table.add("reasoning-parser", &reasoning_parser,
            "How the model marks its thoughts (qwen3, deepseek_r1, mistral, ...); by default what "
            "its chat template shows.");
  table.add_bytes("max-request-body", &max_request_body, "Largest request body; past it 413.");
  table.add_bytes("max-buffered-bodies", &max_buffered_bodies,
                  "Bytes of all request bodies held at once; past it 503.");
  table.add_bytes("max-pending-output", &max_pending_output,
                  "Unread output after which a slow reader's request is cancelled.");
  table.add_bytes("socket-send-buffer", &socket_send_buffer,
                  "Unread output that the system holds for a connection, beside what the server "
                  "holds; 0 leaves it to the system, which takes some MiB.");
  table.add_bytes(
      "max-pending-captures", &max_pending_captures,
      "Unread values of captured tokens, and what an answer repeats at once, that a stream "
      "may have on top of that.");
  table.add_bytes("max-answer-bytes", &max_answer_bytes,
                  "Largest answer that is sent whole; past it 503.");
  table.add_bytes(
      "max-buffered-output", &max_buffered_output,
      "Bytes of all answers, log-probabilities included, that are being made or wait for "
      "their clients; past it 503, and streams with more than 64 KiB unread are "
      "cancelled.");
  table.add_bytes("response-store-bytes", &response_store_bytes,
                  "Answers that /v1/responses remembers; the longest unused are forgotten first.");
  table.add(
      "max-connections", &max_connections, 1, 1'000'000,
      "Open connections, as far as the system has descriptors; past it the longest idle one is "
      "closed, or a new one gets 503.");
  table.add("max-connections-per-address", &max_connections_per_address, 0, 1'000'000,
            "Open connections of one client address (an IPv4 address, an IPv6 /64); 0 is half of "
            "all.");
  table.add("max-prompts", &max_prompts, 1, 65'536, "Prompts in one completions request.");
  table.add("header-timeout", &header_timeout, 0.1, kDay, "Seconds for a header to arrive.");
  table.add("body-timeout", &body_timeout, 0.1, kDay, "Seconds for a request body to arrive.");
  table.add("timeout-keep-alive", &timeout_keep_alive, 0.1, kDay,
            "Seconds an idle connection is kept open.");
  table.add("write-timeout", &write_timeout, 0.1, kDay,
            "Seconds a client may take for each 64 KiB of an answer, or what is left of it, before "
            "its request is cancelled.");
  table.add("sse-ping-interval", &sse_ping_interval, 0, kDay,
            "Seconds of silence after which a stream gets a comment (: ping); 0 is never.");
  table.add("shutdown-timeout", &shutdown_timeout, 0, kDay,
            "Seconds that running requests may take to finish after SIGTERM.");
  table.add("http-threads", &http_threads, 1, 64, "Threads that move bytes.");
  table.add("tokenize-threads", &tokenize_threads, 1, 256,
            "Threads that parse requests, render chat templates and tokenise.");
  table.add_bytes(
      "token-cache-bytes", &token_cache_bytes,
      "Of the token ids of prompts that were tokenised lately, for routers that ask for "
      "a prompt to be rendered before they send it; 0 keeps none.");
  table.add("enable-log-requests", &enable_log_requests,
            "Log each generation request with its parameters when it arrives.");
  table.add("disable-log-stats", &disable_log_stats, "No status line every 10 s while busy.");
  table.add("disable-access-log", &disable_access_log, "No line for each finished request.");
  table.add_choice("reranker", &tasks.reranker, {"auto", "qwen3", "none"},
                   "How /v1/rerank and /v1/score ask the model; auto: as Qwen3-Reranker where its "
                   "name says that it is one.");
  table.add_choice("pooling", &tasks.pooling, {"auto", "last", "mean"},
                   "What /v1/embeddings makes of a prompt's states where the request does not say: "
                   "the last token's, or their mean.");
  table.add("metrics-prefix", &metrics_prefix,
            "Prefix of metric names; vllm keeps existing dashboards working.");
  grammars.declare(table);
}

}  // namespace rudder::server
