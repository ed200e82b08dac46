// A library that the driver loads into a process to be measured (CUDA_INJECTION64_PATH; see
// tools/gpu_trace.py): every kernel, copy and fill of the device, with its times, in
// gpu_trace.<pid>.csv of the working folder when the process ends. Nodes of a graph are records of
// their own. Nothing of Rudder links it.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "rudder/cuda/cupti_api.h"

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kRecordAlignment = 8;  // of CUPTI's buffers

struct Row {
  uint64_t begin;  // ns
  uint64_t end;
  uint32_t launch;  // the same for all nodes of one launch of a graph
  uint32_t graph;   // 0: none
  uint32_t stream;
  int32_t blocks;
  int32_t threads;  // of a block
  uint32_t registers;
  uint32_t shared;
  std::string name;
};

rudder::cuda::CuptiApi g_cupti;
std::mutex g_mutex;
std::vector<Row> g_rows;

void keep(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto* k = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    g_rows.push_back(
        {k->start, k->end, k->correlationId, k->graphId, k->streamId,
         k->gridX * k->gridY * k->gridZ, k->blockX * k->blockY * k->blockZ, k->registersPerThread,
         static_cast<uint32_t>(k->staticSharedMemory + k->dynamicSharedMemory), k->name});
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
    g_rows.push_back({m->start, m->end, m->correlationId, m->graphId, m->streamId, 0, 0, 0, 0,
                      "copy of " + std::to_string(m->bytes) + " bytes"});
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
    g_rows.push_back({m->start, m->end, m->correlationId, m->graphId, m->streamId, 0, 0, 0, 0,
                      "fill of " + std::to_string(m->bytes) + " bytes"});
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kRecordAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer,
                          size_t /*size*/, size_t valid) {
  const std::lock_guard lock(g_mutex);
  CUpti_Activity* record = nullptr;
  while (g_cupti.next_record(buffer, valid, &record) == CUPTI_SUCCESS) keep(record);
  std::free(buffer);
}

void write_trace() {
  g_cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(g_mutex);
  const std::string path = "gpu_trace." + std::to_string(getpid()) + ".csv";
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "gpu_trace: %s cannot be written\n", path.c_str());
    return;
  }
  std::fprintf(file, "begin_ns,end_ns,launch,graph,stream,blocks,threads,registers,shared,name\n");
  for (const Row& r : g_rows) {
    std::fprintf(file, "%llu,%llu,%u,%u,%u,%d,%d,%u,%u,\"%s\"\n",
                 static_cast<unsigned long long>(r.begin), static_cast<unsigned long long>(r.end),
                 r.launch, r.graph, r.stream, r.blocks, r.threads, r.registers, r.shared,
                 r.name.c_str());
  }
  std::fclose(file);
}

}  // namespace

// Called by the driver when the process first uses it.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  bool good = g_cupti.open();
  good = good && g_cupti.register_callbacks(give_buffer, take_buffer) == CUPTI_SUCCESS;
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    good = good && g_cupti.enable(kind) == CUPTI_SUCCESS;
  }
  if (!good) {
    std::fprintf(stderr, "gpu_trace: CUPTI is not here or refuses; nothing is traced\n");
    return 1;
  }
  std::atexit(write_trace);
  return 1;
}
