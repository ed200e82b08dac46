// The global functions: range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "rudder/text/jinja/builtins.h"
#include "rudder/text/jinja/interpreter.h"

namespace rudder::text::jinja {
namespace {

constexpr Int kMaxRange = 100'000;  // of the reference's sandbox

Value range(Interpreter&, const Call& call) {
  if (!call.named.empty()) raise("range() takes no keyword arguments");
  const Args args({"start,stop,step", 1, false}, call, "range()");
  const bool one = !args.has(1);
  const Int start = one ? 0 : args.integer(0), stop = one ? args.integer(0) : args.integer(1);
  const Int step = args.integer(2, 1);
  if (step == 0) raise("range() arg 3 must not be zero");
  constexpr Int kFar = Int{1} << 100;
  for (const Int bound : {start, stop, step}) {
    if (bound > kFar || bound < -kFar) raise_unsupported("a range beyond 2**100");
  }
  const Int span = step > 0 ? stop - start : start - stop;
  const Int width = step > 0 ? step : -step;
  const Int count = span <= 0 ? 0 : (span - 1) / width + 1;
  if (count > kMaxRange) raise("Range too big. The sandbox blocks ranges larger than 100000.");
  return std::make_shared<const RangeBox>(RangeBox{start, step, count, stop});
}

// dict(mapping or pairs, name=value, ...)
std::vector<std::pair<Value, Value>> dict_entries(Interpreter& in, const Call& call) {
  std::vector<std::pair<Value, Value>> entries;
  if (call.positional.size() > 1) raise("dict expected at most 1 argument");
  if (!call.positional.empty()) {
    const Value& source = call.positional[0];
    if (source.is_dict()) {
      in.budget().check(source.entries().size() * 2 * sizeof(Value));
      entries = source.entries();
    } else {
      const auto pairs = iterate(in.budget(), source);
      for (Value pair; pairs->next(pair);) {
        std::vector<Value> both = collect(in.budget(), pair);
        if (both.size() != 2) raise("dictionary update sequence element needs length 2");
        in.budget().check((entries.size() + 1) * 2 * sizeof(Value));
        put(in.budget(), entries, std::move(both[0]), std::move(both[1]));
      }
    }
  }
  for (const auto& [name, value] : call.named) {
    put(in.budget(), entries, in.string(name), value);
  }
  return entries;
}

Value dict(Interpreter& in, const Call& call) {
  return Value::dict(in.budget(), dict_entries(in, call));
}

Value make_namespace(Interpreter& in, const Call& call) {
  return in.make_namespace(dict_entries(in, call));
}

Value cycler(Interpreter& in, const Call& call) {
  if (!call.named.empty()) raise("cycler() takes no keyword arguments");
  if (call.positional.empty()) raise("at least one item has to be provided");
  return std::make_shared<HelperBox>(in.budget(), HelperBox::Kind::kCycler,
                                     in.tuple(call.positional));
}

Value joiner(Interpreter& in, const Call& call) {
  const Args args({"sep", 0, true}, call, "joiner()");
  return std::make_shared<HelperBox>(in.budget(), HelperBox::Kind::kJoiner,
                                     args.has(0) ? args[0] : in.string(", "));
}

Value raise_exception(Interpreter& in, const Call& call) {
  const Args args({"message", 1, true}, call, "raise_exception()");
  raise(in.text(args[0]));
}

// What the C library has not, or writes for its own time zone: Python's time here has none.
std::string own_directives(std::string_view format, std::chrono::system_clock::time_point now) {
  using std::chrono::microseconds;
  const auto whole = std::chrono::floor<std::chrono::seconds>(now);
  const auto micros = std::chrono::duration_cast<microseconds>(now - whole).count();
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out.push_back(format[i]);
      continue;
    }
    const char letter = format[++i];
    if (letter == 'f') {
      out += fmt::format("{:06}", micros);
    } else if (letter != 'z' && letter != 'Z') {
      out += {'%', letter};
    }
  }
  return out;
}

Value strftime_now(Interpreter& in, const Call& call) {
  const Args args({"format", 1, true}, call, "strftime_now()");
  const std::string format = own_directives(args.text(0), in.now());
  const std::time_t seconds = std::chrono::system_clock::to_time_t(in.now());
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  // The mark at the end tells an empty text from one that does not fit.
  const std::string marked = format + "|";
  for (size_t size = 256; size <= size_t{1} << 16; size *= 4) {
    std::string text(size, '\0');
    text.resize(std::strftime(text.data(), size, marked.c_str(), &parts));
    if (text.empty()) continue;
    text.pop_back();
    return in.string(std::move(text));
  }
  raise_limit("memory");
}

Value lipsum(Interpreter&, const Call&) {
  raise_unsupported("'lipsum'");
}

struct Global {
  std::string_view name;
  Value (*run)(Interpreter&, const Call&);
};
constexpr Global kGlobals[] = {
    {"range", range},
    {"dict", dict},
    {"namespace", make_namespace},
    {"cycler", cycler},
    {"joiner", joiner},
    {"lipsum", lipsum},
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
};

}  // namespace

bool is_global(std::string_view name) {
  return std::any_of(std::begin(kGlobals), std::end(kGlobals),
                     [name](const Global& global) { return global.name == name; });
}

Value call_global(Interpreter& in, std::string_view name, const Call& call) {
  for (const Global& global : kGlobals) {
    if (global.name == name) return global.run(in, call);
  }
  return {};
}

}  // namespace rudder::text::jinja
