// ModelSession: a model opened for use. It connects checkpoint, tokenizer, backend, executor and
// engine; every command that runs a model begins with one. Made on the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapters.h"
#include "generation_config.h"
#include "residence.h"
#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/constraint/grammar_compiler.h"
#include "rudder/draft/settings.h"
#include "rudder/engine/engine.h"
#include "rudder/exec/make_executor.h"
#include "rudder/exec/settings.h"
#include "rudder/fleet/event_publisher.h"
#include "rudder/model/override_config.h"
#include "rudder/text/chat_prompt.h"
#include "rudder/text/tokenizer.h"
#include "rudder/weights/checkpoint.h"
#include "steering.h"

namespace rudder::apps {

// Where weights come from.
struct LoadSettings {
  std::string load_format = "auto";
  std::string like;           // with "dummy": the shape, when there is no MODEL to take it from
  std::string revision;       // of a MODEL that is named as on the hub; empty: its default
  std::string chat_template;  // a file in place of the model's own template
  std::string chat_template_kwargs;  // a JSON object: variables of every request's template
  GenerationSource generation;
  model::ConfigOverrides config;

  void declare(SettingsTable& table);
};

// The flight recorder (docs/contracts/step.md, "Recordings").
struct RecordSettings {
  std::string folder;  // empty: nothing is recorded
  int64_t max_bytes = int64_t{1} << 30;

  void declare(SettingsTable& table);
};

// What routers read of the prefix cache (docs/fleet.md).
struct KvEventSettings {
  std::string config;  // JSON; empty: no events

  void declare(SettingsTable& table);
};

struct ModelFiles;

// Where the engine gets grammars from; null: no request can have one.
using GrammarFactory = std::function<std::unique_ptr<constraint::GrammarSource>(
    const ModelFiles& files, int32_t vocab_size)>;
// A compiler with these settings; null, with a warning, for a model without an end of sequence.
GrammarFactory compile_grammars(const constraint::GrammarSettings& settings);

struct SessionSettings {
  LoadSettings load;
  exec::ExecSettings exec;
  engine::EngineSettings engine;
  SteeringSettings steering;
  AdapterSettings adapters;
  RecordSettings record;
  KvEventSettings kv_events;
  draft::SpeculativeSettings speculative;
  ResidenceSettings residence;     // no flags of every command: a server's alone
  double min_step_ms = 0;          // of each executor (wrap/paced_executor.h); 0: as it comes
  int32_t data_parallel_size = 1;  // replicas; no flag of every command: a server's alone
  std::optional<int32_t> replica;  // the one of them that this process has; none: all
  // A server: clients read tokens as they come. Elsewhere prompts are not held back for those that
  // decode, unless --max-itl-ms says so.
  bool streams_to_clients = false;

  // The command's, in place of the one that `speculative` names; empty: that one.
  std::function<std::unique_ptr<sched::DraftProposer>()> proposer;
  GrammarFactory grammars;  // the command's; empty: no request can have a grammar
  std::string log_level = "info";

  void apply_log_level() const;
  void declare(SettingsTable& table);
};

// The parts of a model that need no memory budget and no weights, for `tokenize` and `info`.
struct ModelFiles {
  std::shared_ptr<const weights::Checkpoint> checkpoint;
  std::string name;  // for people and for /v1/models
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatPrompt> chat;  // null when the model has no chat template
  GenerationConfig generation;
  server::EmbeddingDefaults embedding;
};

struct ModelSession {
  ModelFiles files;
  exec::MemoryBudget memory;  // of each replica
  std::string dtype;          // of the weights in memory
  bool generates = true;      // false: the checkpoint has no head
  // One a replica, or none; go after the engine.
  std::vector<std::unique_ptr<fleet::EventPublisher>> kv_events;
  std::unique_ptr<lora::Library> adapters;  // null: it runs without
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<ModelResidence> residence;  // null: the model stays as it is
  std::unique_ptr<Steering> steering;         // null: it runs without; goes before the engine
};

// `model` is a folder in the Hugging Face layout, or a name of the hub, whose folder is fetched;
// empty is an embedded demo model. With dummy
// weights only its config.json is read, or nothing at all when a shape is named.
Result<ModelFiles> open_model_files(const std::string& model, const LoadSettings& load = {});

// The memory budget of each replica alone, of a checkpoint that has what its config.json asks for:
// nothing is loaded.
Result<exec::MemoryBudget> budget_session(const ModelFiles& files, const SessionSettings& settings);

// Fetches what is named as on the hub before anything is opened, and gives the folder of `model`.
// For who holds signals back while a session is opened: they end a download.
Result<std::string> fetch_models(const std::string& model, SessionSettings& settings);

// Loads the weights with progress on standard error and starts the engine.
Result<ModelSession> open_session(const std::string& model, const SessionSettings& settings);

}  // namespace rudder::apps
