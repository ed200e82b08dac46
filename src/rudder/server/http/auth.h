// ApiKeys: finds the tenant of a request by its key. Keys are compared in constant time. Each
// tenant has a prefix cache of its own. Immutable; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::server {

// Equal, in a time that depends on the length of `presented` alone.
bool constant_time_equal(std::string_view presented, std::string_view secret);

class ApiKeys {
 public:
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool required() const { return !keys_.empty(); }
  // The tenant that `authorization` ("Bearer <key>") belongs to, or, where that is empty, `api_key`
  // (the bare key, as Anthropic's clients send it); empty when it is none of the keys'. Without
  // keys everyone is tenant 0.
  std::optional<int> tenant_of(std::string_view authorization, std::string_view api_key = {}) const;
  // The salt under which this tenant's prefixes are cached: its own, with the client's inside it.
  std::string cache_salt(int tenant, std::string_view client_salt) const;

 private:
  std::optional<int> tenant_of_key(std::string_view presented) const;

  std::vector<std::string> keys_;
};

}  // namespace rudder::server
