#include "served_model.h"

#include <ctime>

namespace rudder::apps {

server::ServerModel served_model(const ModelSession& session) {
  server::ServerModel model;
  model.ids = {session.files.name};
  model.root = session.files.name;
  model.created = std::time(nullptr);
  model.max_model_len = session.engine->limits().max_seq_len;
  model.tokenizer = session.files.tokenizer;
  model.chat = session.files.chat;
  model.defaults = session.files.generation.defaults;
  model.embedding = session.files.embedding;
  model.generates = session.generates;
  model.dtype = session.dtype;
  model.adapters = session.adapters.get();
  return model;
}

}  // namespace rudder::apps
