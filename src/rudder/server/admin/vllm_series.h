// Families of /metrics that exist for dashboards and scalers made for vLLM alone: what its engines
// tell of themselves, and the names that older versions had for what has another name now.
#pragma once

#include "rudder/server/admin/by_replica.h"
#include "rudder/server/context.h"

namespace rudder::server {

void write_vllm_series(Exposition& out, const ServerContext& context, Replicas replicas);

}  // namespace rudder::server
