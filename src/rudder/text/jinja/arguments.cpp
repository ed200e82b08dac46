#include "rudder/text/jinja/arguments.h"

#include <fmt/format.h>

#include <algorithm>

namespace rudder::text::jinja {

Args::Args(const Signature& signature, const Call& call, std::string_view what) {
  values_.fill(Value(Missing{}));
  size_t count = 0;
  std::string_view rest = signature.parameters;
  std::array<std::string_view, kMost> names;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    names[count++] = rest.substr(0, comma);
    rest.remove_prefix(std::min(rest.size(), comma + 1));
  }
  if (call.positional.size() > count) {
    raise(fmt::format("{} takes at most {} arguments, {} were given", what, count,
                      call.positional.size()));
  }
  std::copy(call.positional.begin(), call.positional.end(), values_.begin());
  for (const auto& [name, value] : call.named) {
    const auto found = std::find(names.begin(), names.begin() + count, name);
    if (found == names.begin() + count || !signature.by_name) {
      raise(fmt::format("{} takes no argument '{}'", what, name));
    }
    Value& target = values_[static_cast<size_t>(found - names.begin())];
    if (!target.is_missing()) raise(fmt::format("{}: '{}' is given twice", what, name));
    target = value;
  }
  for (size_t i = 0; i < signature.required; ++i) {
    if (!has(i)) raise(fmt::format("{} needs the argument '{}'", what, names[i]));
  }
}

Int Args::integer(size_t index, Int fallback) const {
  if (!has(index)) return fallback;
  if (values_[index].is_integral()) return values_[index].integer();
  raise(fmt::format("'{}' object cannot be interpreted as an integer", type_name(values_[index])));
}

std::string_view Args::text(size_t index) const {
  if (values_[index].is_string()) return values_[index].text();
  raise(fmt::format("expected a string, not '{}'", type_name(values_[index])));
}

}  // namespace rudder::text::jinja
