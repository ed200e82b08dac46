#include "rudder/pjrt/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <utility>

#include "rudder/base/check.h"
#include "rudder/pjrt/c_api.h"

namespace rudder::pjrt {
namespace {

using tensor::DType;

constexpr const char* kWhere = "device";

// CompileOptionsProto: executable_build_options (3) {num_replicas (4): 1, num_partitions (5): 1}.
constexpr char kCompileOptions[] = {0x1a, 4, 0x20, 1, 0x28, 1};

const abi::Api& table_of(const void* api) {
  return *static_cast<const abi::Api*>(api);
}

// Of a PJRT_Error, which it destroys.
std::string take_message(const abi::Api& api, void* error) {
  abi::ErrorMessage message;
  message.header.struct_size = sizeof(message);
  message.error = static_cast<abi::Error*>(error);
  reinterpret_cast<void (*)(void*)>(api.functions[abi::kErrorMessage])(&message);
  std::string text(message.message, message.size);
  abi::OfObject destroy = {.header = {sizeof(destroy)}, .object = error};
  reinterpret_cast<void (*)(void*)>(api.functions[abi::kErrorDestroy])(&destroy);
  return text;
}

constexpr size_t kNeeded[] = {
    abi::kErrorDestroy,      abi::kErrorMessage,        abi::kPluginInitialize,
    abi::kEventDestroy,      abi::kEventAwait,          abi::kClientCreate,
    abi::kClientDestroy,     abi::kClientPlatformName,  abi::kClientPlatformVersion,
    abi::kClientCompile,     abi::kBufferFromHost,      abi::kClientAddressableDevices,
    abi::kLoadedDestroy,     abi::kLoadedExecute,       abi::kBufferDestroy,
    abi::kBufferToHost,      abi::kBufferOpaquePointer, abi::kLoadedGetExecutable,
    abi::kExecutableDestroy, abi::kExecutableSerialize, abi::kDeserializeAndLoad};

Result<void> check_table(const abi::Api& api, const std::string& path) {
  const auto& version = api.version;
  if (version.major != abi::kMajor || version.minor < abi::kOldestMinor) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} speaks version {}.{} of the PJRT C API; {}.{} and later ones of {} "
                            "are supported",
                            path, version.major, version.minor, abi::kMajor, abi::kOldestMinor,
                            abi::kMajor),
                kWhere);
  }
  const bool is_whole = api.header.struct_size >= sizeof(abi::Api);
  for (const size_t slot : kNeeded) {
    if (is_whole && api.functions[slot] != nullptr) continue;
    return fail(ErrorCode::kUnsupported,
                fmt::format("{} has no function {} of the PJRT C API", path, slot), kWhere);
  }
  return {};
}

Result<const abi::Api*> open_library(const std::string& path) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) {
    return fail(ErrorCode::kNotFound, fmt::format("{} is no file: no PJRT plugin to open", path),
                kWhere);
  }
  // It stays: plugins have threads and state that outlive a client.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is no library that can be loaded: {}", path, dlerror()), kWhere);
  }
  void* const symbol = dlsym(library, "GetPjrtApi");
  if (symbol == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is no PJRT plugin: it has no GetPjrtApi", path), kWhere);
  }
  const auto* const api = reinterpret_cast<const abi::Api* (*)()>(symbol)();
  if (api == nullptr) {
    return fail(ErrorCode::kUnavailable, fmt::format("{}: GetPjrtApi gave nothing", path), kWhere);
  }
  RUDDER_TRY_VOID(check_table(*api, path));
  return api;
}

int32_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return abi::kTypeF32;
    case DType::kBF16:
      return abi::kTypeBF16;
    case DType::kI32:
      return abi::kTypeS32;
    default:
      RUDDER_CHECK(false, "{} is not uploaded", tensor::dtype_name(dtype));
  }
}

}  // namespace

template <typename Args>
Result<void> Client::call(size_t slot, Args& args, const char* name) const {
  const abi::Api& api = table_of(api_);
  args.header.struct_size = sizeof(args);
  void* const error = reinterpret_cast<void* (*)(void*)>(api.functions[slot])(&args);
  if (error == nullptr) return {};
  return fail(ErrorCode::kInternal, fmt::format("PJRT {}: {}", name, take_message(api, error)),
              kWhere);
}

// A plugin that cannot destroy what it made has no way to be told so.
void Client::destroy(size_t slot, void* object) const {
  abi::OfObject args = {.header = {}, .object = object};
  static_cast<void>(call(slot, args, "Destroy"));
}

Result<void> Client::await(void* event) const {
  if (event == nullptr) return {};
  abi::OfObject args = {.header = {}, .object = event};
  Result<void> waited = call(abi::kEventAwait, args, "Event_Await");
  destroy(abi::kEventDestroy, event);
  return waited;
}

Buffer::Buffer(Buffer&& other) noexcept
    : client_(other.client_), handle_(std::exchange(other.handle_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(client_, other.client_);
  std::swap(handle_, other.handle_);
  return *this;
}

Buffer::~Buffer() {
  if (handle_ != nullptr) client_->destroy(abi::kBufferDestroy, handle_);
}

Result<uintptr_t> Buffer::device_pointer() const {
  abi::OpaquePointer args;
  args.buffer = static_cast<abi::Buffer*>(handle_);
  RUDDER_TRY_VOID(client_->call(abi::kBufferOpaquePointer, args, "Buffer_OpaqueDevicePointer"));
  return reinterpret_cast<uintptr_t>(args.pointer);
}

Result<void> Buffer::read(void* to, size_t bytes) const {
  abi::BufferToHost args;
  args.source = static_cast<abi::Buffer*>(handle_);
  args.to = to;
  args.size = bytes;
  RUDDER_TRY_VOID(client_->call(abi::kBufferToHost, args, "Buffer_ToHostBuffer"));
  return client_->await(args.done);
}

Executable::~Executable() {
  client_->destroy(abi::kLoadedDestroy, handle_);
}

Result<std::vector<Buffer>> Executable::run(std::span<const Buffer* const> arguments,
                                            size_t num_outputs) const {
  std::vector<abi::Buffer*> handles;
  handles.reserve(arguments.size());
  for (const Buffer* const argument : arguments) {
    RUDDER_CHECK(!argument->empty(), "argument {} of a module is empty", handles.size());
    handles.push_back(static_cast<abi::Buffer*>(argument->handle_));
  }
  std::vector<abi::Buffer*> made(num_outputs, nullptr);
  abi::ExecuteOptions options;
  options.header.struct_size = sizeof(options);
  abi::Buffer* const* const of_device = handles.data();
  abi::Buffer** const outputs = made.data();
  abi::Execute args;
  args.executable = static_cast<abi::LoadedExecutable*>(handle_);
  args.options = &options;
  args.arguments = &of_device;
  args.num_devices = 1;
  args.num_args = handles.size();
  args.outputs = &outputs;
  RUDDER_TRY_VOID(client_->call(abi::kLoadedExecute, args, "LoadedExecutable_Execute"));
  std::vector<Buffer> buffers;
  buffers.reserve(num_outputs);
  for (abi::Buffer* const handle : made) buffers.push_back(Buffer(client_, handle));
  return buffers;
}

Result<std::string> Executable::serialized() const {
  abi::GetExecutable get;
  get.loaded = static_cast<abi::LoadedExecutable*>(handle_);
  RUDDER_TRY_VOID(client_->call(abi::kLoadedGetExecutable, get, "LoadedExecutable_GetExecutable"));
  abi::Serialize args;
  args.executable = get.executable;
  const Result<void> done = client_->call(abi::kExecutableSerialize, args, "Executable_Serialize");
  std::string bytes;
  if (done) bytes.assign(args.bytes, args.size);
  if (done && args.deleter != nullptr) args.deleter(args.serialized);
  client_->destroy(abi::kExecutableDestroy, get.executable);
  if (!done) return tl::unexpected<Error>(done.error());
  return bytes;
}

Result<std::unique_ptr<Client>> Client::open(const std::string& plugin_path) {
  RUDDER_TRY(const abi::Api* const api, open_library(plugin_path));
  std::unique_ptr<Client> client(new Client(api));
  abi::Initialize initialize;
  RUDDER_TRY_VOID(client->call(abi::kPluginInitialize, initialize, "Plugin_Initialize"));
  abi::ClientCreate create;
  RUDDER_TRY_VOID(client->call(abi::kClientCreate, create, "Client_Create"));
  client->handle_ = create.client;
  abi::AddressableDevices devices;
  devices.client = create.client;
  RUDDER_TRY_VOID(
      client->call(abi::kClientAddressableDevices, devices, "Client_AddressableDevices"));
  if (devices.num_devices == 0) {
    return fail(ErrorCode::kUnavailable, fmt::format("{} has no device", plugin_path), kWhere);
  }
  client->device_ = devices.devices[0];
  abi::ClientText name;
  name.client = create.client;
  RUDDER_TRY_VOID(client->call(abi::kClientPlatformName, name, "Client_PlatformName"));
  client->platform_.assign(name.text, name.size);
  abi::ClientText version;
  version.client = create.client;
  RUDDER_TRY_VOID(client->call(abi::kClientPlatformVersion, version, "Client_PlatformVersion"));
  struct stat file = {};
  static_cast<void>(stat(plugin_path.c_str(), &file));
  client->identity_ = fmt::format("{}|{}|{}.{}|{}|{}", client->platform_,
                                  std::string_view(version.text, version.size), api->version.major,
                                  api->version.minor, file.st_size, file.st_mtim.tv_sec);
  return client;
}

Client::~Client() {
  if (handle_ != nullptr) destroy(abi::kClientDestroy, handle_);
}

int64_t Client::available_memory() const {
  if (table_of(api_).functions[abi::kDeviceMemoryStats] == nullptr) return 0;
  abi::MemoryStats args;
  args.device = static_cast<abi::Device*>(device_);
  if (!call(abi::kDeviceMemoryStats, args, "Device_MemoryStats")) return 0;
  return args.bytes_limit.is_set ? args.bytes_limit.value - args.bytes_in_use : 0;
}

Result<Buffer> Client::upload(const tensor::View& host, bool is_large) const {
  std::vector<int64_t> dims;
  dims.reserve(tensor::Shape::kMaxRank);
  for (int axis = 0; axis < host.shape.rank(); ++axis) dims.push_back(host.shape[axis]);
  abi::BufferFromHost args;
  args.client = static_cast<abi::Client*>(handle_);
  args.data = host.data;
  args.type = type_of(host.dtype);
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.semantics = is_large ? abi::kImmutableUntilDone : abi::kImmutableDuringCall;
  args.device = static_cast<abi::Device*>(device_);
  RUDDER_TRY_VOID(call(abi::kBufferFromHost, args, "Client_BufferFromHostBuffer"));
  Buffer buffer(this, args.buffer);
  RUDDER_TRY_VOID(await(args.done));
  return buffer;
}

Result<std::unique_ptr<Executable>> Client::compile(std::string_view text) const {
  constexpr std::string_view kFormat = "mlir";
  abi::Program program;
  program.header.struct_size = sizeof(program);
  program.code = text.data();
  program.code_size = text.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  abi::Compile args;
  args.client = static_cast<abi::Client*>(handle_);
  args.program = &program;
  args.options = kCompileOptions;
  args.options_size = sizeof(kCompileOptions);
  RUDDER_TRY_VOID(call(abi::kClientCompile, args, "Client_Compile"));
  return std::unique_ptr<Executable>(new Executable(this, args.executable));
}

Result<std::unique_ptr<Executable>> Client::load(std::string_view serialized) const {
  abi::DeserializeAndLoad args;
  args.client = static_cast<abi::Client*>(handle_);
  args.bytes = serialized.data();
  args.size = serialized.size();
  RUDDER_TRY_VOID(call(abi::kDeserializeAndLoad, args, "Executable_DeserializeAndLoad"));
  return std::unique_ptr<Executable>(new Executable(this, args.loaded));
}

}  // namespace rudder::pjrt
