// rudder info: what a checkpoint is, what it holds, and the memory it would take here.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "model_session.h"
#include "report_error.h"
#include "rudder/model/loader.h"

namespace rudder::apps {
namespace {

std::string layers_text(const model::ModelSpec& spec) {
  std::set<int32_t> windows;
  for (const model::LayerSpec& layer : spec.layers) windows.insert(kv_geometry(layer).window);
  std::string text = fmt::format("{} x (hidden {}", spec.layers.size(), spec.hidden);
  const auto attends = [](const model::LayerSpec& layer) { return attention_of(layer) != nullptr; };
  const auto first = std::ranges::find_if(spec.layers, attends);
  if (first != spec.layers.end()) {
    const model::Attention& attention = *attention_of(*first);
    text += fmt::format(", {} heads, {} KV heads, head_dim {}", attention.num_heads,
                        attention.num_kv_heads, attention.head_dim);
  }
  if (const auto count = std::ranges::count_if(spec.layers, attends);
      model::keeps_states(spec) && count < std::ssize(spec.layers)) {
    text += fmt::format(" in {} layers, a state in the others", count);
  }
  if (const auto* const mlp = gated_mlp_of(spec.layers.front())) {
    text += fmt::format(", MLP {}", mlp->width);
  }
  for (const model::LayerSpec& layer : spec.layers) {
    const model::Experts* const experts = experts_of(layer);
    if (experts == nullptr) continue;
    text += fmt::format(", {} of {} experts {}", experts->chosen, experts->count, experts->width);
    break;
  }
  const auto shares = [&](size_t i) { return model::kv_layer_of(spec, i) != i; };
  int64_t shared = 0;
  for (size_t i = 0; i < spec.layers.size(); ++i) shared += shares(i) ? 1 : 0;
  if (shared > 0) text += fmt::format(", {} layers read the KV of others", shared);
  if (spec.layer_embedding.exists()) {
    text += fmt::format(", embeddings by layer of {}", spec.layer_embedding.width);
  }
  text += ')';
  windows.erase(0);
  for (const int32_t window : windows) text += fmt::format(", window {}", window);
  return text;
}

std::string dtypes_text(const weights::Checkpoint& checkpoint) {
  std::map<std::string, int64_t> bytes;
  for (const weights::TensorInfo& tensor : checkpoint.tensors()) {
    const bool is_packed = tensor.packed.has_value();
    bytes[std::string(is_packed ? tensor.packed->type->name
                                : tensor::dtype_name(tensor.view.dtype))] +=
        static_cast<int64_t>(is_packed ? tensor.packed->bytes.size() : tensor.view.bytes());
  }
  std::string text;
  for (const auto& [dtype, count] : bytes) {
    text += fmt::format("{}{} {:.1f} MiB", text.empty() ? "" : ", ", dtype,
                        static_cast<double>(count) / (1 << 20));
  }
  return text;
}

Result<void> print_info(const ModelFiles& files, const SessionSettings& settings) {
  RUDDER_TRY(const model::ModelSpec spec, model::read_spec(*files.checkpoint));
  int64_t parameters = 0;
  for (const weights::TensorInfo& tensor : files.checkpoint->tensors()) {
    parameters += tensor.view.shape.numel();
  }
  const auto row = [](std::string_view key, const std::string& value) {
    fmt::print("{:<14} {}\n", key, value);
  };
  row("model", files.name);
  row("architecture", spec.architecture);
  row("layers", layers_text(spec));
  row("vocabulary", fmt::format("{} (tokenizer {}), head {}", spec.vocab,
                                files.tokenizer->vocab_size(), spec.tied_head ? "tied" : "untied"));
  row("context", fmt::format("{} tokens", spec.max_positions));
  row("tensors",
      fmt::format("{} ({:.1f} M parameters: {})", files.checkpoint->tensors().size(),
                  static_cast<double>(parameters) * 1e-6, dtypes_text(*files.checkpoint)));
  row("end tokens", fmt::format("{}", fmt::join(files.generation.eos_ids, ", ")));
  row("chat template", files.chat != nullptr ? "yes" : "no");
  RUDDER_TRY(const exec::MemoryBudget budget, budget_session(files, settings));
  fmt::print("\n{}", budget.to_table());
  return {};
}

}  // namespace

int run_info(int argc, char** argv) {
  SessionSettings settings;
  SettingsTable table;
  settings.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder info", "What a checkpoint holds and what memory it would take.", "[MODEL]", 1}, argc,
      argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const std::string model = arguments->positionals.empty() ? "" : arguments->positionals[0];
  const Result<ModelFiles> files = open_model_files(model, settings.load);
  if (!files) return report_failure(files.error());
  const Result<void> done = print_info(*files, settings);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
