// What the server's parsers are told about the model of a session.
#pragma once

#include "model_session.h"
#include "rudder/server/model.h"

namespace rudder::apps {

// All but its dialect.
server::ServerModel served_model(const ModelSession& session);

}  // namespace rudder::apps
