// Where the time of a step went: the nodes of replays of a graph, by macro-op and layer. Plain
// data; any thread.
//
// A node's time is what it adds to the time that the device is busy: where kernels overlap, because
// a dependent one begins early, the time is the earlier one's. A gap is the idle time in front of a
// node. So the times and gaps of a replay add up to its span, from its first begin to its last end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::cuda {

struct DeviceNode {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint32_t launch = 0;  // the same for all nodes of one launch of a graph
  uint32_t graph = 0;   // 0: none
  std::string name;     // the kernel's, mangled
};

// The last `most` replays of the graph that was launched most often, in their order; each is a run
// of nodes, sorted by begin.
std::vector<std::vector<DeviceNode>> last_replays(std::span<const DeviceNode> nodes, size_t most);

// The last `most` steps, replays of graphs or not, such as those of prompts: runs of nodes from a
// begin_step to the next one.
std::vector<std::vector<DeviceNode>> last_steps(std::span<const DeviceNode> nodes, size_t most);

struct AttributedNode {
  std::string op;
  int32_t layer = -1;  // -1: of the step, not of a layer
  int64_t time_ns = 0;
  int64_t gap_ns = 0;  // in front of it
};
std::vector<AttributedNode> attribute(std::span<const DeviceNode> replay);

// Means over replays. Of an op's line over all layers `layer` is -1, of a layer's over all ops `op`
// is empty.
struct AttributedLine {
  std::string op;
  int32_t layer = -1;
  double count = 0;
  double time_us = 0;
  double gap_us = 0;
};
struct Attribution {
  size_t replays = 0;
  double span_us = 0;
  std::vector<AttributedLine> ops;     // in the order of their first nodes
  std::vector<AttributedLine> layers;  // -1 first
  std::vector<AttributedLine> all;     // by layer, then op
};
Attribution attribute_replays(std::span<const std::vector<DeviceNode>> replays);

// kernels, gaps and span, by op and by layer.
std::string to_table(const Attribution& attribution);

}  // namespace rudder::cuda
