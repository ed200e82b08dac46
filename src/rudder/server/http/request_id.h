// Request ids: the client's x-request-id if it is fit to be echoed and logged, else a new one. Any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rudder::server {

// 1 to 128 visible ASCII characters, no quote.
bool is_request_id(std::string_view offered);

// `offered` when it is one, else 32 random hexadecimal digits. Never a key of anything inside: two
// clients may send the same.
std::string make_request_id(std::string_view offered);

// For ids: they tell things apart, they guard nothing.
uint64_t random_bits();

}  // namespace rudder::server
