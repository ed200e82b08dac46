#include "rudder/cuda/node_trace.h"

#ifdef RUDDER_HAS_CUPTI
#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "rudder/cuda/cupti_api.h"
#endif

namespace rudder::cuda {

#ifdef RUDDER_HAS_CUPTI
namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kRecordAlignment = 8;  // of CUPTI's buffers

// CUPTI's callbacks take no argument of ours.
struct Recorded {
  CuptiApi api;
  std::mutex mutex;
  std::vector<DeviceNode> nodes;
};
Recorded& recorded() {
  static Recorded all;
  return all;
}

void keep_node(const CUpti_Activity* record, std::vector<DeviceNode>& nodes) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto* k = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    nodes.push_back({static_cast<int64_t>(k->start), static_cast<int64_t>(k->end), k->correlationId,
                     k->graphId, k->name});
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
    nodes.push_back({static_cast<int64_t>(m->start), static_cast<int64_t>(m->end), m->correlationId,
                     m->graphId, "copy"});
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
    nodes.push_back({static_cast<int64_t>(m->start), static_cast<int64_t>(m->end), m->correlationId,
                     m->graphId, "fill"});
  }
}

void CUPTIAPI give_record_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kRecordAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI take_record_buffer(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer,
                                 size_t /*size*/, size_t valid) {
  Recorded& all = recorded();
  const std::lock_guard lock(all.mutex);
  CUpti_Activity* record = nullptr;
  while (all.api.next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
    keep_node(record, all.nodes);
  }
  std::free(buffer);
}

class CuptiTrace final : public NodeTrace {
 public:
  void clear() override {
    flush();
    const std::lock_guard lock(recorded().mutex);
    recorded().nodes.clear();
  }
  std::vector<DeviceNode> nodes() override {
    flush();
    const std::lock_guard lock(recorded().mutex);
    std::vector<DeviceNode> nodes = recorded().nodes;
    std::ranges::stable_sort(nodes, {}, &DeviceNode::begin_ns);
    return nodes;
  }

 private:
  static void flush() { recorded().api.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); }
};

}  // namespace

Result<std::unique_ptr<NodeTrace>> start_node_trace() {
  CuptiApi& api = recorded().api;
  if (!api.open()) {
    return fail(ErrorCode::kUnsupported, "CUPTI's library (libcupti.so) is not on this machine",
                "trace");
  }
  bool good = api.register_callbacks(give_record_buffer, take_record_buffer) == CUPTI_SUCCESS;
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    good = good && api.enable(kind) == CUPTI_SUCCESS;
  }
  if (!good) return fail(ErrorCode::kUnsupported, "CUPTI refuses to record", "trace");
  return std::make_unique<CuptiTrace>();
}
#else
Result<std::unique_ptr<NodeTrace>> start_node_trace() {
  return fail(ErrorCode::kUnsupported, "this build found no headers of CUPTI", "trace");
}
#endif

}  // namespace rudder::cuda
