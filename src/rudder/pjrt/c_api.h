// The part of the PJRT C API that Rudder calls, declared anew: argument structs and the places of
// functions in the table that a plugin exports. Plain data of the C ABI; plugin.cpp alone uses it.
// Layouts and numbers are those of xla/pjrt/c/pjrt_c_api.h (OpenXLA, Apache-2.0) at version 0.114.
// They are stable: structs and the table only grow at their ends, and each struct begins with the
// size that its caller knows (struct_size), by which a plugin tells what it may read and write.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rudder::pjrt::abi {

// Objects of the plugin.
struct Error;
struct Event;
struct Client;
struct Device;
struct Buffer;
struct LoadedExecutable;
struct Executable;
struct SerializedExecutable;

inline constexpr int32_t kMajor = 0;
inline constexpr int32_t kOldestMinor = 100;  // older plugins lack what is called below

struct Header {
  size_t struct_size = 0;
  void* extensions = nullptr;
};

// Indices of functions in the table.
enum Slot : size_t {
  kErrorDestroy = 0,
  kErrorMessage = 1,
  kPluginInitialize = 3,
  kEventDestroy = 5,
  kEventAwait = 8,
  kClientCreate = 10,
  kClientDestroy = 11,
  kClientPlatformName = 12,
  kClientPlatformVersion = 14,
  kClientAddressableDevices = 16,
  kClientCompile = 20,
  kBufferFromHost = 22,
  kDeviceMemoryStats = 34,
  kExecutableDestroy = 40,
  kExecutableSerialize = 49,
  kLoadedDestroy = 50,
  kLoadedGetExecutable = 51,
  kLoadedExecute = 55,
  kDeserializeAndLoad = 56,
  kBufferDestroy = 58,
  kBufferToHost = 70,
  kBufferOpaquePointer = 76,
};
inline constexpr size_t kSlotsUsed = kBufferOpaquePointer + 1;

struct Api {
  Header header;
  struct {
    Header header;
    int32_t major;
    int32_t minor;
  } version;
  void* functions[kSlotsUsed];
};
static_assert(offsetof(Api, functions) == 40);

// Of functions that take an object alone: Event_Await, *_Destroy.
struct OfObject {
  Header header;
  void* object = nullptr;
};
static_assert(sizeof(OfObject) == 24);

struct ErrorMessage {
  Header header;
  const Error* error = nullptr;
  const char* message = nullptr;
  size_t size = 0;
};
static_assert(sizeof(ErrorMessage) == 40);

struct Initialize {
  Header header;
};

struct NamedValue {
  Header header;
  const char* name = nullptr;
  size_t name_size = 0;
  int32_t type = 0;  // kString 0, kInt64 1, kInt64List 2, kFloat 3, kBool 4
  union {
    const char* text;
    int64_t number;
    float real;
    bool flag;
  } value = {};
  size_t value_size = 0;
};
static_assert(sizeof(NamedValue) == 56);

struct ClientCreate {
  Header header;
  const NamedValue* options = nullptr;
  size_t num_options = 0;
  void* kv_callbacks[4] = {};
  Client* client = nullptr;
  void* kv_try_get[2] = {};
};
static_assert(sizeof(ClientCreate) == 88);

struct ClientText {  // its platform's name, or version
  Header header;
  Client* client = nullptr;
  const char* text = nullptr;
  size_t size = 0;
};
static_assert(sizeof(ClientText) == 40);

struct AddressableDevices {
  Header header;
  Client* client = nullptr;
  Device* const* devices = nullptr;
  size_t num_devices = 0;
};
static_assert(sizeof(AddressableDevices) == 40);

struct MemoryStats {
  Header header;
  Device* device = nullptr;
  int64_t bytes_in_use = 0;
  struct Optional {
    int64_t value = 0;
    bool is_set = false;
  };
  Optional peak_bytes_in_use;
  Optional num_allocs;
  Optional largest_alloc_size;
  Optional bytes_limit;
  Optional others[7];
};
static_assert(sizeof(MemoryStats) == 208 && offsetof(MemoryStats, bytes_limit) == 80);

struct Program {
  Header header;
  const char* code = nullptr;
  size_t code_size = 0;
  const char* format = nullptr;  // "mlir"
  size_t format_size = 0;
};
static_assert(sizeof(Program) == 48);

struct Compile {
  Header header;
  Client* client = nullptr;
  const Program* program = nullptr;
  const char* options = nullptr;  // a CompileOptionsProto
  size_t options_size = 0;
  LoadedExecutable* executable = nullptr;
};
static_assert(sizeof(Compile) == 56);

// PJRT_Buffer_Type
inline constexpr int32_t kTypeS32 = 4;
inline constexpr int32_t kTypeF32 = 11;
inline constexpr int32_t kTypeBF16 = 13;

// PJRT_HostBufferSemantics
inline constexpr int32_t kImmutableDuringCall = 0;
inline constexpr int32_t kImmutableUntilDone = 1;

struct BufferFromHost {
  Header header;
  Client* client = nullptr;
  const void* data = nullptr;
  int32_t type = 0;
  const int64_t* dims = nullptr;
  size_t num_dims = 0;
  const int64_t* byte_strides = nullptr;
  size_t num_byte_strides = 0;
  int32_t semantics = 0;
  Device* device = nullptr;
  void* memory = nullptr;
  void* device_layout = nullptr;
  Event* done = nullptr;
  Buffer* buffer = nullptr;
};
static_assert(sizeof(BufferFromHost) == 120);

struct BufferToHost {
  Header header;
  Buffer* source = nullptr;
  void* host_layout = nullptr;
  void* to = nullptr;
  size_t size = 0;
  Event* done = nullptr;
};
static_assert(sizeof(BufferToHost) == 56);

struct OpaquePointer {
  Header header;
  Buffer* buffer = nullptr;
  void* pointer = nullptr;
};
static_assert(sizeof(OpaquePointer) == 32);

struct ExecuteOptions {
  Header header;
  void* send_callbacks = nullptr;
  void* recv_callbacks = nullptr;
  size_t num_send_ops = 0;
  size_t num_recv_ops = 0;
  int32_t launch_id = 0;
  const int64_t* not_donated = nullptr;
  size_t num_not_donated = 0;
  void* context = nullptr;
  const char* call_location = nullptr;
  size_t num_tasks = 0;
  void* task_ids = nullptr;
  void* incarnation_ids = nullptr;
  void* multi_slice_config = nullptr;
  bool major_to_minor_callbacks = false;
  void* output_callbacks = nullptr;
  size_t num_output_callbacks = 0;
};
static_assert(sizeof(ExecuteOptions) == 144);

struct Execute {
  Header header;
  LoadedExecutable* executable = nullptr;
  ExecuteOptions* options = nullptr;
  Buffer* const* const* arguments = nullptr;  // [num_devices][num_args]
  size_t num_devices = 0;
  size_t num_args = 0;
  Buffer** const* outputs = nullptr;  // [num_devices][.]
  Event** done = nullptr;
  Device* device = nullptr;
};
static_assert(sizeof(Execute) == 80);

struct GetExecutable {
  Header header;
  LoadedExecutable* loaded = nullptr;
  Executable* executable = nullptr;
};
static_assert(sizeof(GetExecutable) == 32);

struct Serialize {
  Header header;
  const Executable* executable = nullptr;
  const char* bytes = nullptr;
  size_t size = 0;
  SerializedExecutable* serialized = nullptr;
  void (*deleter)(SerializedExecutable*) = nullptr;
};
static_assert(sizeof(Serialize) == 56);

struct DeserializeAndLoad {
  Header header;
  Client* client = nullptr;
  const char* bytes = nullptr;
  size_t size = 0;
  LoadedExecutable* loaded = nullptr;
  const char* options = nullptr;
  size_t options_size = 0;
  void* load_options = nullptr;
};
static_assert(sizeof(DeserializeAndLoad) == 72);

}  // namespace rudder::pjrt::abi
