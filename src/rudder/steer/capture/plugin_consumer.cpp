#include "rudder/steer/capture/plugin_consumer.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <boost/json.hpp>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/base/json.h"
#include "rudder/base/log.h"
#include "rudder/steer/capture/consumers.h"
#include "rudder_capture_plugin.h"

namespace rudder::steer::capture {
namespace {

namespace json = boost::json;

// GCC's unwinder sizes its registers at the first exception that it raises. The server has an
// unwinder of its own, linked in; an exception that a plugin raises with the system's passes
// through the server's handlers, which find those sizes unset and abort unless something was thrown
// before.
void prime_unwinder() {
  try {
    throw 0;
  } catch (int) {  // NOLINT(bugprone-empty-catch)
  }
}

// What a plugin gives as text.
struct TextOut {
  rudder_capture_out out{&TextOut::set};
  std::string text;

  static void set(rudder_capture_out* out, const char* text, size_t size) {
    reinterpret_cast<TextOut*>(out)->text.assign(text, size);
  }
};

Error threw(const std::string& name, const char* function, const Error& error) {
  return {ErrorCode::kInternal, fmt::format("{} threw an exception: {}", function, error.message),
          name};
}

// Calls into the plugin; whatever it throws ends here.
template <typename Call>
Result<std::string> guarded(const std::string& name, const char* function, Call&& call) {
  TextOut text;
  int status = 0;
  const Result<void> returned = contain([&] { status = call(&text.out); });
  if (!returned) return tl::unexpected<Error>(threw(name, function, returned.error()));
  if (status == 0) return std::move(text.text);
  return fail(ErrorCode::kInternal,
              text.text.empty() ? fmt::format("{} failed", function) : text.text, name);
}

// An exception of a plugin's initialiser cannot leave the loader: the C++ runtime that the plugin
// came with, which need not be ours, aborts. This makes it the end that a server has which is
// refused its plugin at start: a message, and status 1.
class LoadWatch {
 public:
  explicit LoadWatch(const std::string& file) {
    loading = &file;
    struct sigaction watch = {};
    watch.sa_handler = &end;
    sigaction(SIGABRT, &watch, &before_);
  }
  ~LoadWatch() {
    sigaction(SIGABRT, &before_, nullptr);
    loading = nullptr;
  }
  LoadWatch(const LoadWatch&) = delete;
  LoadWatch& operator=(const LoadWatch&) = delete;

 private:
  // abort() raises the signal in the thread that called it, so no lock of ours is held here.
  static void end(int /*signal*/) {
    if (loading == nullptr) return;  // not the loader's: another thread, which abort() then ends
    log_error("{}: an initialiser aborted; the loader passes no exception on", *loading);
    flush_logs();
    std::_Exit(EXIT_FAILURE);
  }

  static thread_local const std::string* loading;
  struct sigaction before_ = {};
};
thread_local const std::string* LoadWatch::loading = nullptr;

int32_t plugin_dtype(tensor::DType dtype) {
  if (dtype == tensor::DType::kF32) return RUDDER_CAPTURE_F32;
  return dtype == tensor::DType::kF16 ? RUDDER_CAPTURE_F16 : RUDDER_CAPTURE_BF16;
}

class PluginOptions final : public ConsumerOptions {
 public:
  std::string json = "{}";
};

// The table and its state; sessions keep it.
class Plugin {
 public:
  Plugin(std::string name, const rudder_capture_plugin& table, void* state)
      : name_(std::move(name)), table_(table), state_(state) {}
  ~Plugin() {
    const auto destroyed = guarded(name_, "destroy", [&](rudder_capture_out*) {
      table_.destroy(state_);
      return 0;
    });
    static_cast<void>(destroyed);
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& name() const { return name_; }
  const rudder_capture_plugin& table() const { return table_; }
  void* state() const { return state_; }

 private:
  const std::string name_;
  const rudder_capture_plugin& table_;
  void* const state_;
};

rudder_capture_point plugin_point(const tap::CapturePoint& point, int32_t width) {
  return {.site = tap::site_name(point.point.site).data(),
          .layer = point.point.layer,
          .after = point.after ? 1 : 0,
          .width = width};
}

class PluginSession final : public Session {
 public:
  PluginSession(std::shared_ptr<const Plugin> plugin, SessionInfo info, void* session)
      : plugin_(std::move(plugin)), info_(std::move(info)), session_(session) {}

  Result<void> take(RowBatch batch) override {
    std::vector<int32_t> positions;
    std::vector<const void*> rows;
    positions.reserve(batch.records.size());
    rows.reserve(batch.records.size() * info_.rows.size());
    for (const Record& record : batch.records) {
      positions.push_back(record.position);
      for (const RowLayout& layout : info_.rows) rows.push_back(batch.row(record, layout).data());
    }
    const rudder_capture_rows given{.struct_bytes = sizeof(rudder_capture_rows),
                                    .num_tokens = static_cast<int32_t>(positions.size()),
                                    .positions = positions.data(),
                                    .rows = rows.data()};
    const auto taken = guarded(plugin_->name(), "on_rows", [&](rudder_capture_out* out) {
      return plugin_->table().on_rows(session_, &given, out);
    });
    if (!taken) return tl::unexpected<Error>(taken.error());
    return {};
  }

  void finish(bool cancelled, SessionDone done) override {
    Result<std::string> payload =
        guarded(plugin_->name(), "finalize", [&](rudder_capture_out* out) {
          return plugin_->table().finalize(session_, cancelled ? 1 : 0, out);
        });
    ConsumerResult result;
    if (payload && !payload->empty() && !cancelled) {
      const Result<json::value> parsed = parse_json(*payload, "payload");
      if (!parsed) payload = tl::unexpected<Error>(parsed.error());
    }
    if (payload) {
      result.payload = std::move(*payload);
    } else {
      result.status = Status::kError;
      result.error = payload.error().to_string();
    }
    done(std::move(result));
  }

 private:
  const std::shared_ptr<const Plugin> plugin_;
  const SessionInfo info_;
  void* const session_;
};

class PluginConsumer final : public Consumer {
 public:
  PluginConsumer(std::shared_ptr<const Plugin> plugin, tensor::DType dtype)
      : plugin_(std::move(plugin)), dtype_(dtype) {}

  std::string_view name() const override { return plugin_->name(); }

  Result<std::shared_ptr<const ConsumerOptions>> parse_options(
      const json::object& fields, const AskedRows& rows, const std::string& path) const override {
    auto options = std::make_shared<PluginOptions>();
    options->json = to_json_text(fields);
    if (plugin_->table().validate == nullptr) {
      if (fields.empty()) return options;
      return fail(ErrorCode::kInvalidArgument, "this consumer has no options",
                  fmt::format("{}.{}", path, std::string_view(fields.begin()->key())));
    }
    std::vector<rudder_capture_point> given;
    for (size_t i = 0; i < rows.points.size(); ++i) {
      const tap::Point point = rows.points[i].point;
      if (tap::row_dtype(point.site, dtype_) != dtype_) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("a plugin gets rows of one dtype, {}: those of {} are {}",
                                dtype_spelling(dtype_), tap::site_name(point.site),
                                dtype_spelling(tap::row_dtype(point.site, dtype_))),
                    path + ".sites");
      }
      given.push_back(plugin_point(rows.points[i], rows.widths[i]));
    }
    const rudder_capture_request request = make_request("", 0, 0, options->json, given);
    const auto valid = guarded(plugin_->name(), "validate", [&](rudder_capture_out* out) {
      return plugin_->table().validate(plugin_->state(), &request, out);
    });
    if (!valid) return fail(ErrorCode::kInvalidArgument, valid.error().message, path);
    return options;
  }

  Result<std::shared_ptr<Session>> open(SessionInfo info) override {
    std::vector<rudder_capture_point> given;
    given.reserve(info.rows.size());
    for (const RowLayout& layout : info.rows) {
      given.push_back(plugin_point(layout.point, layout.width));
    }
    const auto* options = dynamic_cast<const PluginOptions*>(info.options.get());
    const rudder_capture_request request =
        make_request(info.request_id.c_str(), info.choice, info.prompt_len, options->json, given);
    void* session = nullptr;
    const auto opened = guarded(plugin_->name(), "open", [&](rudder_capture_out* out) {
      return plugin_->table().open(plugin_->state(), &request, &session, out);
    });
    if (!opened) return tl::unexpected<Error>(opened.error());
    return std::make_shared<PluginSession>(plugin_, std::move(info), session);
  }

 private:
  static rudder_capture_request make_request(const char* id, int32_t choice, int32_t prompt_len,
                                             const std::string& options,
                                             const std::vector<rudder_capture_point>& points) {
    return {.struct_bytes = sizeof(rudder_capture_request),
            .request_id = id,
            .choice = choice,
            .prompt_len = prompt_len,
            .options_json = options.c_str(),
            .points = points.data(),
            .num_points = static_cast<int32_t>(points.size())};
  }

  const std::shared_ptr<const Plugin> plugin_;
  const tensor::DType dtype_;  // of activations
};

Result<const rudder_capture_plugin*> load_table(const std::string& file) {
  void* object = nullptr;
  {
    const LoadWatch watch(file);
    object = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (object == nullptr) return fail(ErrorCode::kIo, ::dlerror(), file);
  const auto entry = reinterpret_cast<rudder_capture_plugin_entry_fn>(
      ::dlsym(object, RUDDER_CAPTURE_PLUGIN_ENTRY));
  if (entry == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "does not export " RUDDER_CAPTURE_PLUGIN_ENTRY ": no capture plugin", file);
  }
  const rudder_capture_plugin* table = nullptr;
  const Result<void> entered = contain([&] { table = entry(RUDDER_CAPTURE_ABI); });
  if (!entered) {
    return tl::unexpected<Error>(threw(file, RUDDER_CAPTURE_PLUGIN_ENTRY, entered.error()));
  }
  if (table == nullptr || table->abi != RUDDER_CAPTURE_ABI ||
      table->struct_bytes < sizeof(rudder_capture_plugin)) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("is not built for version {} of the plugin interface", RUDDER_CAPTURE_ABI),
        file);
  }
  if (table->create == nullptr || table->open == nullptr || table->on_rows == nullptr ||
      table->finalize == nullptr || table->destroy == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "lacks a function that every plugin has", file);
  }
  return table;
}

}  // namespace

Result<std::shared_ptr<Consumer>> load_plugin(const std::string& text,
                                              const tap::Geometry& geometry) {
  RUDDER_TRY(ConsumerFlag flag, ConsumerFlag::parse(text, "capture-plugin"));
  const std::string file = flag.text("file", "");
  if (file.empty()) {
    return fail(ErrorCode::kInvalidArgument, "needs the option file=PATH", flag.where());
  }
  prime_unwinder();
  RUDDER_TRY(const rudder_capture_plugin* const table, load_table(file));
  json::object options;
  for (const auto& [key, value] : flag.options()) options[key] = value;
  const std::string options_json = to_json_text(options);
  const rudder_capture_model model{.struct_bytes = sizeof(rudder_capture_model),
                                   .num_layers = geometry.num_layers,
                                   .hidden = geometry.hidden,
                                   .dtype = plugin_dtype(geometry.dtype)};
  void* state = nullptr;
  const auto created = guarded(file, "create", [&](rudder_capture_out* out) {
    return table->create(&model, options_json.c_str(), &state, out);
  });
  if (!created) return tl::unexpected<Error>(created.error());
  return std::make_shared<PluginConsumer>(
      std::make_shared<const Plugin>(flag.name(), *table, state), geometry.dtype);
}

}  // namespace rudder::steer::capture
