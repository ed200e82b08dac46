#include "rudder/server/request/field_map.h"

namespace rudder::server {
namespace {

bool is_below(std::string_view path, std::string_view top) {
  if (!path.starts_with(top)) return false;
  return path.size() == top.size() || path[top.size()] == '.' || path[top.size()] == '[';
}

}  // namespace

std::string FieldMap::client_path(std::string_view chat) const {
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& field : fields_) {
    if (!is_below(chat, field.first)) continue;
    if (best == nullptr || field.first.size() > best->first.size()) best = &field;
  }
  if (best == nullptr) return std::string(chat);
  return best->second + std::string(chat.substr(best->first.size()));
}

ApiError FieldMap::told(ApiError error) const {
  if (error.param.empty()) return error;
  std::string path = client_path(error.param);
  if (const size_t at = error.message.find(error.param); at != std::string::npos) {
    error.message.replace(at, error.param.size(), path);
  }
  error.param = std::move(path);
  return error;
}

}  // namespace rudder::server
