// A PJRT plugin: a shared library that compiles and runs StableHLO for some hardware, behind the C
// ABI of c_api.h. Client is the plugin's connection to its devices, of which Rudder uses the first;
// buffers and executables are made by it and go before it. A library is opened once and stays in
// the process. One thread at a time uses a client and what it made. Everything else in this room
// knows only these classes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/tensor/view.h"

namespace rudder::pjrt {

class Client;

// Memory of the device. Movable; destroyed with its object.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  bool empty() const { return handle_ == nullptr; }
  // Where it lies in the device's memory: tells whether a donated argument is its result.
  Result<uintptr_t> device_pointer() const;
  // Waits for what computes it, and copies all of it, row-major. `bytes` is its size.
  Result<void> read(void* to, size_t bytes) const;

 private:
  friend class Client;
  friend class Executable;
  Buffer(const Client* client, void* handle) : client_(client), handle_(handle) {}

  const Client* client_ = nullptr;
  void* handle_ = nullptr;
};

// A compiled module on the device.
class Executable {
 public:
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Enqueues it. Arguments that the module donates (tf.aliasing_output) hold nothing behind it; the
  // others are free to go at once. `num_outputs` is the module's.
  Result<std::vector<Buffer>> run(std::span<const Buffer* const> arguments,
                                  size_t num_outputs) const;
  // What Client::load() takes, of this plugin and version alone.
  Result<std::string> serialized() const;

 private:
  friend class Client;
  Executable(const Client* client, void* handle) : client_(client), handle_(handle) {}

  const Client* client_;
  void* handle_;
};

class Client {
 public:
  // Errors name `device`: no such file, no plugin, one of another version or without a function
  // that is needed, no device.
  static Result<std::unique_ptr<Client>> open(const std::string& plugin_path);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& platform() const { return platform_; }  // "cpu", "cuda"
  // What compiled modules depend on besides their text: platform, versions, the plugin's file.
  const std::string& identity() const { return identity_; }

  // Bytes of the device that may still be allocated; 0: the plugin does not tell.
  int64_t available_memory() const;

  // A copy of a host tensor of f32, bf16 or i32. `is_large`: the host's memory is read in place.
  Result<Buffer> upload(const tensor::View& host, bool is_large = false) const;
  // StableHLO text for one device. kUnsupported: the compiler refuses it; with its message.
  Result<std::unique_ptr<Executable>> compile(std::string_view text) const;
  Result<std::unique_ptr<Executable>> load(std::string_view serialized) const;

 private:
  friend class Buffer;
  friend class Executable;
  explicit Client(const void* api) : api_(api) {}

  // Calls the function of the table; what it fails with, as an Error of that name.
  template <typename Args>
  Result<void> call(size_t slot, Args& args, const char* name) const;
  void destroy(size_t slot, void* object) const;
  Result<void> await(void* event) const;

  const void* api_;  // abi::Api
  void* handle_ = nullptr;
  void* device_ = nullptr;
  std::string platform_;
  std::string identity_;
};

}  // namespace rudder::pjrt
