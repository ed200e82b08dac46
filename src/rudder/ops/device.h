// Device: where a model lies: its memory, the one stream that runs what is enqueued, graphs of it,
// and messages to other devices. One thread at a time uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/ops/args.h"
#include "rudder/ops/message.h"
#include "rudder/ops/stream.h"

namespace rudder::ops {

// Graphs of a device: ops between begin_capture and end_capture are recorded and not run.
class GraphOps {
 public:
  virtual ~GraphOps() = default;
  virtual void begin_capture() = 0;
  virtual Result<std::unique_ptr<Graph>> end_capture() = 0;
  virtual void replay(Graph& graph) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cpu-reference", "cpu-amx", ...

  // Whether this memory is the host's own, so that what lies in both need not lie here.
  virtual bool is_host() const { return false; }

  // A number that changes while work is done, however little, and stays while none is: so who waits
  // for a long op knows that it goes on. Any thread. 0 where the device does not tell.
  virtual uint64_t progress() const { return 0; }

  // Bytes that may still be allocated, of the device and of this process; where ranks share a
  // memory, this rank's share of them.
  virtual int64_t available_memory() const = 0;

  // Memory of the device, 64-byte aligned, zeroed, alive as long as this object.
  virtual Result<View> allocate(tensor::DType dtype, tensor::Shape shape) = 0;
  // A copy of a host tensor on the device, converted to `dtype`.
  virtual Result<View> upload(const View& host, tensor::DType dtype) = 0;

  // Host memory from and to which copy_in and copy_out do not wait (pinned on a GPU); zeroed, alive
  // as long as this object.
  virtual Result<View> allocate_staging(int64_t bytes) = 0;  // [bytes] u8

  virtual void copy_in(const View& device, const View& staging) = 0;  // equal bytes
  virtual void copy_out(const View& staging, const View& device) = 0;

  // Enqueues copy_out after everything enqueued so far, and records `done` after the copy. A device
  // that can uses a second stream for the copy, so later ops do not wait for it; they must not
  // write `device` before `done`. Must not be captured into a graph.
  virtual void copy_out_aside(const View& staging, const View& device, Event& done) {
    copy_out(staging, device);
    record(done);
  }

  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void record(Event& event) = 0;

  // Between the stages of a pipeline (message.h). post() says that a message of this device is
  // complete behind everything enqueued so far. What is enqueued behind await() runs behind what
  // the message's last post stands behind, which was enqueued before. copy() is between memory of
  // this device and that of a message, of equal bytes. None of them may be captured.
  virtual Result<std::unique_ptr<Message>> make_message(int64_t bytes) {
    return std::make_unique<HostMessage>(bytes);
  }
  virtual void post(Message& /*message*/) {}
  virtual void await(Message& /*message*/) {}
  virtual void copy(const View& to, const View& from) { copy_in(to, from); }

  // The first fault of the device, which stays.
  virtual Result<void> status() = 0;

  virtual GraphOps* graph_ops() { return nullptr; }  // null: the device has no graphs
};

}  // namespace rudder::ops
