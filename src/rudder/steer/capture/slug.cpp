#include "rudder/steer/capture/slug.h"

#include <algorithm>

namespace rudder::steer::capture {
namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

bool is_slug(std::string_view text) {
  return !text.empty() && text.size() <= kMaxSlug && text[0] != '.' &&
         std::ranges::all_of(text, is_plain);
}

std::string make_slug(std::string_view text) {
  std::string slug(text.substr(0, kMaxSlug));
  if (slug.empty()) slug = "_";
  for (char& c : slug) c = is_plain(c) ? c : '_';
  if (slug[0] == '.') slug[0] = '_';
  return slug;
}

}  // namespace rudder::steer::capture
