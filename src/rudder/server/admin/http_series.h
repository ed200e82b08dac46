// The HTTP side's families of /metrics: ours under the prefix, and those that every dashboard of an
// HTTP server asks for, http_requests_total and http_request_duration_seconds, as exporters of
// Python's servers write them: without a prefix, and without the requests of probes and scrapers.
#pragma once

#include "rudder/server/admin/exposition.h"
#include "rudder/server/context.h"

namespace rudder::server {

void write_http_series(Exposition& out, const ServerContext& context);

}  // namespace rudder::server
