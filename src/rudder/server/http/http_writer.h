// Writes the bytes of responses: status line, fields and the framing of chunks. The values of
// fields are our own or were checked before (request_id.h, cors.h).
#pragma once

#include <string>
#include <string_view>

#include "rudder/server/http/http_message.h"

namespace rudder::server {

enum class BodyFraming {
  kLength,   // Content-Length of the response's body
  kChunked,  // HTTP/1.1, length unknown
  kClose,    // HTTP/1.0, length unknown: the end of the connection ends the body
  kNone,     // 204 and 304
};

// Appends the header; the body is not appended.
void append_response_head(std::string& out, const HttpResponse& response, BodyFraming framing,
                          bool keep_alive);
// What stands in front of a chunk of so many bytes, more than none, and behind each chunk.
void append_chunk_head(std::string& out, size_t bytes);
inline constexpr std::string_view kChunkEnd = "\r\n";
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
inline constexpr std::string_view kEndAndLastChunk = "\r\n0\r\n\r\n";

}  // namespace rudder::server
