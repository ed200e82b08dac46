#include "model_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend.h"
#include "draft_files.h"
#include "embedded_model.h"
#include "embedding_config.h"
#include "model_folder.h"
#include "rudder/base/clock.h"
#include "rudder/base/heap.h"
#include "rudder/base/log.h"
#include "rudder/base/progress.h"
#include "rudder/dialect/dialect.h"
#include "rudder/hub/cache_layout.h"
#include "rudder/model/adapted_products.h"
#include "rudder/model/dummy_checkpoint.h"
#include "rudder/model/gguf/gguf_checkpoint.h"
#include "rudder/model/loader.h"
#include "rudder/model/make_model.h"
#include "rudder/model/norm_gains.h"
#include "rudder/record/flight_recorder.h"
#include "rudder/text/turn_ends.h"
#include "rudder/weights/gguf_files.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/wrap/paced_executor.h"
#include "tier_keys.h"
#include "token_files.h"

namespace rudder::apps {
namespace {

constexpr const char* kDemoName = "rudder-demo";
Result<std::shared_ptr<const text::ChatPrompt>> read_chat(const weights::Checkpoint& checkpoint,
                                                          const text::TokenFiles& tokens,
                                                          const LoadSettings& load) {
  constexpr size_t kMaxTemplateBytes = size_t{4} << 20;
  text::ChatTemplateFiles files{.kwargs = load.chat_template_kwargs};
  RUDDER_TRY(files.jinja, optional_text(checkpoint, "chat_template.jinja"));
  RUDDER_TRY(files.tools_jinja,
             optional_text(checkpoint, "additional_chat_templates/tool_use.jinja"));
  RUDDER_TRY(files.old_json, optional_text(checkpoint, "chat_template.json"));
  if (!load.chat_template.empty()) {
    RUDDER_TRY(files.jinja, weights::read_text_file(load.chat_template, kMaxTemplateBytes));
    files.tools_jinja.clear();
  }
  auto chat = text::ChatPrompt::from_files(tokens, files);
  if (!chat && chat.error().code == ErrorCode::kNotFound) {
    return std::shared_ptr<const text::ChatPrompt>();
  }
  return chat;
}

// What ends answers of the template's dialect ends them also where the checkpoint forgets it.
void add_ends_of_dialect(ModelFiles& files) {
  if (files.chat == nullptr) return;
  const std::string& source = files.chat->source();
  std::vector<int32_t>& ids = files.generation.eos_ids;
  for (const std::string_view mark : dialect::ends_of(dialect::detect_tool_dialect(source),
                                                      dialect::detect_reasoning_dialect(source))) {
    const std::optional<int32_t> id = files.tokenizer->token_to_id(mark);
    if (!id || !files.tokenizer->is_special(*id)) continue;
    const auto at = std::ranges::lower_bound(ids, *id);
    if (at == ids.end() || *at != *id) ids.insert(at, *id);
  }
}

void log_budget(const exec::MemoryBudget& budget) {
  const std::string table = budget.to_table();
  size_t begin = 0;
  for (size_t end = table.find('\n'); end != std::string::npos; end = table.find('\n', begin)) {
    log_info("{}", std::string_view(table).substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

void LoadSettings::declare(SettingsTable& table) {
  table.section("load");
  table.add_choice("load-format", &load_format, {"auto", "dummy"},
                   "Where weights come from; dummy takes random ones of true shape, for benches.");
  table.add("like", &like,
            "With --load-format dummy: the shape of this model (names: rudder make-model --help).");
  table.add(
      "revision", &revision,
      "Of a MODEL that is named as on the hub (ORG/NAME): a branch, a tag or a commit; empty: "
      "main.");
  table.add("chat-template", &chat_template,
            "A file with the chat template (Jinja) to use in place of the model's own.");
  table.add(
      "default-chat-template-kwargs", &chat_template_kwargs,
      "A JSON object of variables for the chat template, {\"enable_thinking\": false}; those of a "
      "request go before.");
  table.add("generation-config", &generation.from,
            "Where defaults of requests come from: auto takes the model's generation_config.json, "
            "vllm none, a folder its own file.");
  table.add("override-generation-config", &generation.overrides,
            "A JSON object whose keys hold in place of those of generation_config.json.");
  table.add("hf-overrides", &config.keys,
            "A JSON object whose keys hold in place of those of the model's config.json.");
  table.add(
      "rope-scaling", &config.rope_scaling,
      "The rope in place of that of config.json, a JSON object: {\"rope_type\": \"yarn\", "
      "\"factor\": 4.0, \"original_max_position_embeddings\": 32768}. The context is then the "
      "stretched one.");
  table.add("rope-theta", &config.rope_theta, 0, 1e12,
            "The base of the rope in place of that of config.json; 0 leaves it.");
}

void RecordSettings::declare(SettingsTable& table) {
  table.section("record");
  table.add("record", &folder,
            "A folder for a recording of the last steps, in files that `rudder replay` runs again; "
            "it holds what clients sent. Empty: nothing is recorded.");
  table.add_bytes(
      "record-max-bytes", &max_bytes,
      "Of the recording's files together, at least 16M; the oldest go. When a file ends, "
      "running sequences are computed again and the prefix cache is emptied.");
}

void KvEventSettings::declare(SettingsTable& table) {
  table.section("fleet");
  table.add("kv-events-config", &config,
            "Publishes what the prefix cache holds over ZeroMQ, for routers: a JSON object with "
            "vLLM's keys: enable_kv_cache_events, publisher, endpoint, replay_endpoint, "
            "buffer_steps, hwm, max_queue_size, topic. What is published has the tokens of "
            "prompts.");
}

void SessionSettings::declare(SettingsTable& table) {
  load.declare(table);
  exec.declare(table);
  engine.declare(table);
  steering.declare(table);
  adapters.declare(table);
  record.declare(table);
  kv_events.declare(table);
  speculative.declare(table);
  table.section("pace");
  table.add("min-step-ms", &min_step_ms, 0, 1'000,
            "Each step takes at least so long, as on a slower device or with a larger model: to "
            "try a client or a router without it. 0: as long as it takes.");
  table.section("log");
  table.add_choice("log-level", &log_level, {"debug", "info", "warn", "error"},
                   "What is written to standard error.");
}

namespace {

Result<std::shared_ptr<const weights::Checkpoint>> open_dummy(
    const std::string& model, const std::string& like, const model::ConfigOverrides& overrides) {
  if (model.empty() == like.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "dummy weights take their shape from MODEL or from --like, one of the two", "like");
  }
  if (!like.empty()) {
    RUDDER_TRY(std::string config, model::make_model_config(like));
    if (!overrides.empty()) {
      RUDDER_TRY(config, model::override_config(config, overrides));
    }
    return model::make_dummy_checkpoint(like, config);
  }
  constexpr size_t kMaxConfigBytes = size_t{16} << 20;
  RUDDER_TRY(std::string config, weights::read_text_file(model + "/config.json", kMaxConfigBytes));
  if (!overrides.empty()) {
    RUDDER_TRY(config, model::override_config(config, overrides));
  }
  return model::make_dummy_checkpoint(model, config);
}

}  // namespace

Result<ModelFiles> open_model_files(const std::string& model, const LoadSettings& load) {
  ModelFiles files;
  RUDDER_TRY(const std::string folder, find_model(model, load.revision));
  if (load.load_format == "dummy") {
    RUDDER_TRY(files.checkpoint, open_dummy(folder, load.like, load.config));
    files.name = files.checkpoint->name();
  } else if (!load.like.empty()) {
    return fail(ErrorCode::kInvalidArgument, "it is for --load-format dummy", "like");
  } else if (model.empty()) {
    RUDDER_TRY(files.checkpoint, weights::Checkpoint::open_memory(embedded_model()));
    files.name = kDemoName;
  } else {
    RUDDER_TRY(files.checkpoint, weights::is_gguf_path(folder)
                                     ? model::open_gguf(folder)
                                     : weights::Checkpoint::open_folder(folder));
    files.name = files.checkpoint->name();
  }
  if (const auto repository = hub::repository_of_snapshot(folder)) files.name = *repository;
  if (!load.config.empty() && load.load_format != "dummy") {
    constexpr const char* kConfig = "config.json";
    RUDDER_TRY(const std::string text, files.checkpoint->read_text(kConfig));
    RUDDER_TRY(std::string config, model::override_config(text, load.config));
    files.checkpoint = weights::Checkpoint::with_text(files.checkpoint, kConfig, std::move(config));
  }
  RUDDER_TRY(const std::string tokenizer_json, files.checkpoint->read_text("tokenizer.json"));
  RUDDER_TRY(const text::TokenFiles tokens, read_token_files(*files.checkpoint));
  RUDDER_TRY(files.tokenizer, text::Tokenizer::from_files(tokenizer_json, tokens));
  RUDDER_TRY(files.chat, read_chat(*files.checkpoint, tokens, load));
  RUDDER_TRY(files.generation,
             read_generation_config(*files.checkpoint, *files.tokenizer, load.generation));
  add_ends_of_dialect(files);
  RUDDER_TRY(files.embedding, read_embedding_config(*files.checkpoint));
  return files;
}

namespace {

// Repeated steps do not guess.
Result<step::LookUp> device_look_up(const SessionSettings& settings,
                                    const draft::Speculation& speculation, ops::Ops& ops) {
  if (!speculation.on_device) return step::LookUp{};
  if (ops.draft_ops() == nullptr || settings.engine.multi_step > 1) {
    return fail(ErrorCode::kUnsupported,
                "ngram_gpu takes steps that are not repeated (multi-step 1) and a backend that "
                "looks up; ngram takes any",
                settings.speculative.config.empty() ? "speculative-method" : "speculative-config");
  }
  return step::LookUp{.min_n = speculation.prompt_lookup_min,
                      .max_n = speculation.prompt_lookup_max};
}

// What the settings ask of a step. kUnsupported: of drafts that the backend does not look up.
Result<exec::StepLimits> step_limits(const SessionSettings& settings,
                                     const draft::Speculation& speculation,
                                     const weights::Checkpoint* draft_model, ops::Ops& ops) {
  RUDDER_TRY(const step::LookUp look_up, device_look_up(settings, speculation, ops));
  return exec::StepLimits{.max_num_seqs = settings.engine.max_num_seqs,
                          .max_num_batched_tokens = settings.engine.max_num_batched_tokens,
                          .max_repeat = settings.engine.multi_step,
                          .max_draft = speculation.num_speculative_tokens,
                          .draft_model = draft_model,
                          .draft_method = speculation.method,
                          .draft_tree = speculation.tree,
                          .host_trees = speculation.has_host_trees(),
                          .tree_key = speculation.tree_key,
                          .look_up = look_up,
                          .make_decoder = decoder_of(settings.exec)};
}

std::vector<int32_t> turn_ends_of(const ModelFiles& files) {
  if (files.chat == nullptr) return {};
  return text::find_turn_ends(*files.chat, *files.tokenizer);
}

// What KV computed by this process depends on, besides tokens.
std::string model_identity(const ModelFiles& files, const exec::MemoryBudget& budget) {
  return fmt::format("{}:{}:{}:{}", files.name, budget.weights.formats,
                     ops::kv_format_name(budget.dtypes.kv), budget.num_ranks);
}

Result<std::unique_ptr<step::Executor>> recorded(std::unique_ptr<step::Executor> executor,
                                                 const RecordSettings& settings,
                                                 const std::string& model) {
  if (settings.folder.empty()) return executor;
  constexpr int64_t kLeastBytes = int64_t{16} << 20;
  if (settings.max_bytes < kLeastBytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} bytes are too few for a recording, at least {} are needed",
                            settings.max_bytes, kLeastBytes),
                "record-max-bytes");
  }
  RUDDER_TRY(auto recorder, record::FlightRecorder::create(std::move(executor), settings.folder,
                                                           model, settings.max_bytes));
  log_info("steps are recorded to {}", recorder->paths().back());
  return std::unique_ptr<step::Executor>(std::move(recorder));
}

std::unique_ptr<step::Executor> paced(std::unique_ptr<step::Executor> executor,
                                      double min_step_ms) {
  if (min_step_ms == 0) return executor;
  return std::make_unique<wrap::PacedExecutor>(std::move(executor),
                                               static_cast<int64_t>(min_step_ms * 1e3));
}

Result<std::unique_ptr<fleet::EventPublisher>> publish_events(const fleet::EventsConfig& config,
                                                              const step::Capacity& capacity,
                                                              int32_t rank) {
  fleet::CacheShape shape = {.block_size = capacity.block_size, .windows = {}, .rank = rank};
  for (const step::KvGroup& group : capacity.kv_groups) shape.windows.push_back(group.window);
  RUDDER_TRY(auto publisher, fleet::EventPublisher::start(config, shape));
  const std::string& replay = publisher->replay_endpoint();
  log_info("KV events are published at {}, {}", publisher->endpoint(),
           replay.empty() ? "without replay" : "replayed at " + replay);
  return publisher;
}

// A flight recorder and a publisher for each executor, where they are asked for.
Result<std::vector<engine::ReplicaParts>> make_replica_parts(
    std::vector<std::unique_ptr<step::Executor>> executors, const SessionSettings& settings,
    const draft::Speculation& speculation, const std::optional<fleet::EventsConfig>& events,
    ModelSession* session) {
  std::vector<engine::ReplicaParts> replicas;
  for (size_t i = 0; i < executors.size(); ++i) {
    RecordSettings record = settings.record;
    const bool is_alone = executors.size() == 1;
    if (!record.folder.empty() && !is_alone) record.folder += fmt::format("/engine{}", i);
    record.max_bytes /= std::ssize(executors);
    engine::ReplicaParts& replica = replicas.emplace_back();
    RUDDER_TRY(replica.executor, recorded(paced(std::move(executors[i]), settings.min_step_ms),
                                          record, session->files.name));
    replica.proposer = settings.proposer ? settings.proposer() : draft::make_proposer(speculation);
    if (!events) continue;
    const auto rank = static_cast<int32_t>(i);
    RUDDER_TRY(const fleet::EventsConfig config, fleet::events_of_rank(*events, rank));
    RUDDER_TRY(session->kv_events.emplace_back(),
               publish_events(config, replica.executor->capacity(), rank));
    replica.block_watcher = session->kv_events.back()->watcher();
  }
  return replicas;
}

Result<std::optional<fleet::EventsConfig>> resolve_events(const SessionSettings& settings) {
  RUDDER_TRY(std::optional<fleet::EventsConfig> config,
             fleet::read_events_config(settings.kv_events.config));
  if (config && !settings.engine.enable_prefix_caching) {
    return fail(ErrorCode::kInvalidArgument, "needs --enable-prefix-caching", "kv-events-config");
  }
  return config;
}

// Of one replica, on the device that there is, with what the settings of steering say.
Result<exec::ExecSettings> resolve_exec(const SessionSettings& settings) {
  RUDDER_TRY(exec::ExecSettings resolved,
             share_of_replica(resolve_device(settings.exec), settings.data_parallel_size));
  resolved.dictionaries.any = settings.steering.names_dictionaries();
  resolved.dictionaries.dtype = settings.steering.dictionary_storage();
  return resolved;
}

}  // namespace

Result<exec::MemoryBudget> budget_session(const ModelFiles& files,
                                          const SessionSettings& settings) {
  RUDDER_TRY(const model::ModelSpec spec, model::read_spec(*files.checkpoint));
  RUDDER_TRY_VOID(model::check_tensors(*files.checkpoint, spec));
  RUDDER_TRY(const exec::ExecSettings resolved, resolve_exec(settings));
  RUDDER_TRY(const draft::Speculation speculation, settings.speculative.resolve());
  RUDDER_TRY(const std::vector<exec::Ranks> replicas,
             make_replicas(resolved, settings.data_parallel_size, *files.checkpoint));
  RUDDER_TRY(const auto draft, open_draft_files(speculation, files));
  RUDDER_TRY(const exec::StepLimits limits,
             step_limits(settings, speculation, draft.get(), *replicas.front().front()));
  return exec::budget_model(*files.checkpoint, replicas, resolved, limits);
}

namespace {

std::string describe_devices(const std::vector<exec::Ranks>& replicas, int32_t num_stages) {
  const exec::Ranks& ranks = replicas.front();
  std::string text = ranks.front()->name();
  const auto num_ranks = static_cast<int32_t>(ranks.size()) / num_stages;
  if (num_ranks > 1) text = fmt::format("{} ranks of {}", num_ranks, text);
  if (num_stages > 1) text = fmt::format("{} stages of {}", num_stages, text);
  if (replicas.size() > 1) text = fmt::format("{} engines of {}", replicas.size(), text);
  return text;
}

}  // namespace

GrammarFactory compile_grammars(const constraint::GrammarSettings& settings) {
  return [settings](const ModelFiles& files,
                    int32_t vocab_size) -> std::unique_ptr<constraint::GrammarSource> {
    auto made = constraint::GrammarCompiler::create(*files.tokenizer, vocab_size,
                                                    files.generation.eos_ids, settings);
    if (made) return std::move(*made);
    log_warn("no output can have a grammar: {}", made.error().message);
    return nullptr;
  };
}

void SessionSettings::apply_log_level() const {
  set_log_level(log_level == "debug"  ? LogLevel::kDebug
                : log_level == "info" ? LogLevel::kInfo
                : log_level == "warn" ? LogLevel::kWarn
                                      : LogLevel::kError);
}

Result<std::string> fetch_models(const std::string& model, SessionSettings& settings) {
  RUDDER_TRY(const draft::Speculation speculation, settings.speculative.resolve());
  RUDDER_TRY(std::string folder, find_model(model, settings.load.revision));
  if (draft::has_model(speculation.method)) {
    auto found = find_model(speculation.model, "");
    if (!found) {
      found.error().where = "speculative-config.model";
      return found;
    }
  }
  settings.load.revision.clear();
  return folder;
}

Result<ModelSession> open_session(const std::string& model, const SessionSettings& settings) {
  settings.apply_log_level();
  const auto clock = std::make_shared<SteadyClock>();
  const int64_t start = clock->now_us();
  ModelSession session;
  if (settings.exec.lora.enable && !settings.record.folder.empty()) {
    return fail(ErrorCode::kUnsupported, "recordings have no adapters (enable-lora)", "record");
  }
  RUDDER_TRY_VOID(check_tiers(settings));
  RUDDER_TRY(const std::string secret, key_secret(settings));
  RUDDER_TRY(const draft::Speculation speculation, settings.speculative.resolve());
  RUDDER_TRY(const std::optional<fleet::EventsConfig> events, resolve_events(settings));
  RUDDER_TRY(session.files, open_model_files(model, settings.load));
  RUDDER_TRY(const exec::ExecSettings resolved, resolve_exec(settings));
  RUDDER_TRY(std::vector<exec::Ranks> devices,
             make_replicas(resolved, settings.data_parallel_size, *session.files.checkpoint));
  if (settings.replica) devices.front().swap(devices.at(static_cast<size_t>(*settings.replica)));
  if (settings.replica) devices.resize(1);
  const std::string backend = describe_devices(devices, resolved.parallel.stages);
  ops::Ops& first = *devices.front().front();
  RUDDER_TRY(auto draft, open_draft_files(speculation, session.files));
  RUDDER_TRY(const exec::StepLimits limits, step_limits(settings, speculation, draft.get(), first));
  const auto progress = [quiet = !log_enabled(LogLevel::kInfo)](const std::string& label,
                                                                bool is_bytes) {
    if (quiet) return ProgressFn();
    // Its clock starts with its work.
    return ProgressFn([=, bar = std::shared_ptr<Progress>()](int64_t done, int64_t total) mutable {
      if (bar == nullptr) bar = std::make_shared<Progress>(label, is_bytes);
      bar->update(done, total);
    });
  };
  RUDDER_TRY(
      exec::LoadedModels loaded,
      exec::load_models(*session.files.checkpoint, std::move(devices), resolved, limits,
                        {.weights = progress(fmt::format("loading {}", session.files.name), true),
                         .graphs = progress("capturing graphs", false)}));
  std::vector<tap::NormGain> mlp_gains;
  RUDDER_TRY(const model::ModelSpec spec, model::read_spec(*session.files.checkpoint));
  session.generates = spec.has_head;
  if (loaded.executors.front()->capacity().taps.steering()) {
    RUDDER_TRY(mlp_gains, model::read_mlp_gains(*session.files.checkpoint, spec));
  }
  RUDDER_TRY(const std::string print, fingerprint(settings, *session.files.checkpoint, first));
  RUDDER_TRY(const ServedForm form, ServedForm::of(*session.files.checkpoint));
  RUDDER_TRY(lora::Targets targets, model::adapter_targets(*session.files.checkpoint, spec));
  // All of it is loaded; where adapters may come, their DoRA reads it again.
  auto base = [checkpoint = std::move(session.files.checkpoint)](const lora::Target& target) {
    return model::base_tensors(*checkpoint, target);
  };
  session.files.checkpoint.reset();
  RUDDER_TRY(session.adapters,
             make_adapters(loaded.executors.front()->capacity(), std::move(targets),
                           std::move(base), settings.adapters, secret));
  draft.reset();
  return_freed_memory();  // of files that were parsed
  session.memory = loaded.memory;
  session.dtype = session.memory.weights.formats;
  log_budget(session.memory);
  const std::string identity = model_identity(session.files, session.memory) + print;
  session.residence = make_residence(form, loaded.resident, identity, settings);
  const step::Capacity capacity = loaded.executors.front()->capacity();
  const auto library = std::make_shared<LateLibrary>(nullptr);
  RUDDER_TRY(auto captures, make_captures(capacity, settings.steering, library,
                                          std::move(loaded.lens), std::move(loaded.features)));
  std::unique_ptr<constraint::GrammarSource> grammars;
  if (settings.grammars) {
    grammars = settings.grammars(session.files, capacity.vocab_size);
  }
  RUDDER_TRY(
      std::vector<engine::ReplicaParts> replicas,
      make_replica_parts(std::move(loaded.executors), settings, speculation, events, &session));
  engine::EngineSettings engine_settings = settings.engine;
  engine_settings.prefix_key_secret = secret;
  engine_settings.num_cohorts = resolved.parallel.stages;
  if (!settings.streams_to_clients && !engine_settings.max_itl_ms) engine_settings.max_itl_ms = 0;
  engine::ReplicaParts front = std::move(replicas.front());
  replicas.erase(replicas.begin());
  RUDDER_TRY(session.engine, engine::Engine::start({.executor = std::move(front.executor),
                                                    .tokenizer = session.files.tokenizer,
                                                    .clock = clock,
                                                    .model_identity = identity,
                                                    .eos_ids = session.files.generation.eos_ids,
                                                    .turn_ends = turn_ends_of(session.files),
                                                    .captures = std::move(captures),
                                                    .grammars = std::move(grammars),
                                                    .proposer = std::move(front.proposer),
                                                    .block_watcher = front.block_watcher,
                                                    .more = std::move(replicas),
                                                    .runs_trials = true},
                                                   engine_settings));
  RUDDER_TRY(session.steering, Steering::create(*session.engine, settings.steering,
                                                std::move(mlp_gains), library, secret));
  log_info("{} ready on {} in {:.2f} s", session.files.name, backend,
           static_cast<double>(clock->now_us() - start) * 1e-6);
  return session;
}

}  // namespace rudder::apps
