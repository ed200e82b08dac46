#include "rudder/model/make_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "rudder/base/json.h"
#include "rudder/base/thread_pool.h"
#include "rudder/model/assistant.h"
#include "rudder/model/tensor_list.h"
#include "rudder/weights/hf_config.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::model {
namespace {

using weights::TensorDecl;

constexpr int64_t kChunkValues = int64_t{1} << 21;  // of one task: 4 MiB

// Writes the tensors of one shard, chunk by chunk, on all threads.
class ShardWriter {
 public:
  ShardWriter(std::span<const ListedTensor> tensors, const ValueTables& tables, uint64_t seed,
              weights::SafetensorsWriter& writer)
      : tensors_(tensors), tables_(tables), seed_(seed), writer_(writer) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (int64_t begin = 0; begin < tensors[i].values; begin += kChunkValues) {
        chunks_.emplace_back(i, begin);
      }
    }
  }

  Result<void> write(ThreadPool& pool, int64_t done_before, int64_t total,
                     const ProgressFn& progress) {
    done_ = done_before;
    pool.parallel_for(static_cast<int64_t>(chunks_.size()), [&](int64_t chunk) {
      const auto [index, begin] = chunks_[static_cast<size_t>(chunk)];
      const ListedTensor& listed = tensors_[index];
      const int64_t count = std::min(kChunkValues, listed.values - begin);
      std::vector<tensor::BF16> values(static_cast<size_t>(count));
      fill_values(values, tables_.of(listed.kind), seed_, listed.number, begin);
      const Result<void> written =
          writer_.write(index, 2 * static_cast<uint64_t>(begin), std::as_bytes(std::span(values)));
      const std::lock_guard lock(mutex_);
      if (!written && !error_) error_ = written.error();
      done_ += 2 * count;
      if (progress) progress(done_, total);
    });
    if (error_) return tl::unexpected(*error_);
    return {};
  }

 private:
  std::span<const ListedTensor> tensors_;
  const ValueTables& tables_;
  const uint64_t seed_;
  weights::SafetensorsWriter& writer_;
  std::vector<std::pair<size_t, int64_t>> chunks_;  // tensor, first value
  std::mutex mutex_;
  int64_t done_ = 0;
  std::optional<Error> error_;
};

Result<void> prepare_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorCode::kIo, "cannot create it: " + error.message(), folder);
  if (std::filesystem::exists(folder + "/config.json", error)) {
    return fail(ErrorCode::kInvalidArgument, "it holds a model already", folder);
  }
  // What an interrupted run left must not be read in place of what comes now.
  for (const char* file : {"/model.safetensors", "/model.safetensors.index.json"}) {
    std::filesystem::remove(folder + file, error);
  }
  return {};
}

Result<void> write_weights(const MakeModelArgs& args, const TensorList& list, double norm_centre,
                           const ProgressFn& progress) {
  const auto shards = list.shards(args.max_shard_bytes);
  const ValueTables tables(norm_centre);
  ThreadPool pool(args.num_threads);
  std::string map;
  int64_t done = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto [begin, end] = shards[i];
    const auto tensors = std::span(list.tensors()).subspan(begin, end - begin);
    const std::string file =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<TensorDecl> decls;
    for (const ListedTensor& listed : tensors) {
      decls.push_back(listed.decl);
      map += map.empty() ? "" : ",\n";
      append_json_string(map, listed.decl.name);
      map += fmt::format(": \"{}\"", file);
    }
    RUDDER_TRY(const auto writer, weights::SafetensorsWriter::create(args.folder + "/" + file,
                                                                     decls, {{"format", "pt"}}));
    ShardWriter shard(tensors, tables, args.seed, *writer);
    RUDDER_TRY_VOID(shard.write(pool, done, list.total_bytes(), progress));
    RUDDER_TRY_VOID(writer->finish(false));
    for (const ListedTensor& listed : tensors) done += 2 * listed.values;
  }
  if (shards.size() == 1) return {};
  const std::string index =
      fmt::format("{{\"metadata\": {{\"total_size\": {}}}, \"weight_map\": {{\n{}\n}}}}\n",
                  list.total_bytes(), map);
  return weights::write_file_atomically(args.folder + "/model.safetensors.index.json", index,
                                        false);
}

struct Described {
  std::string config_text;
  TensorList list;
  int32_t vocab = 0;
  float norm_offset = 0;
};

Result<Described> describe_assistant(const MakeModelArgs& args) {
  if (args.num_layers > 0) {
    return fail(ErrorCode::kInvalidArgument, "an assistant has all of its layers", "layers");
  }
  RUDDER_TRY(std::string text, make_assistant_config(args.like));
  RUDDER_TRY(const weights::HfConfig config, weights::HfConfig::parse(text, "config.json"));
  RUDDER_TRY(const AssistantSpec spec, read_assistant(config));
  RUDDER_TRY(const Architecture* const architecture,
             find_architecture(spec.layers.architecture, assistants()));
  TensorList list(spec.layers, architecture->names);
  for (const LinearModule& linear : projection_tensors(spec).linears) list.add(linear);
  return Described{std::move(text), std::move(list), spec.layers.vocab,
                   architecture->names.norm_offset};
}

Result<Described> describe_model(const MakeModelArgs& args) {
  RUDDER_TRY(std::string text, make_model_config(args.like, args.num_layers));
  RUDDER_TRY(const weights::HfConfig config, weights::HfConfig::parse(text, "config.json"));
  RUDDER_TRY(const ModelSpec spec, read_config(config));
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  return Described{std::move(text), TensorList(spec, architecture->names), spec.vocab,
                   architecture->names.norm_offset};
}

}  // namespace

Result<void> make_model(const MakeModelArgs& args, const ProgressFn& progress) {
  const std::vector<std::string_view> names = make_assistant_names();
  const bool is_assistant = std::ranges::find(names, args.like) != names.end();
  RUDDER_TRY(const Described made, is_assistant ? describe_assistant(args) : describe_model(args));
  RUDDER_TRY_VOID(prepare_folder(args.folder));
  const double norm_centre = 1.0 - static_cast<double>(made.norm_offset);
  RUDDER_TRY_VOID(write_weights(args, made.list, norm_centre, progress));

  const auto write_text = [&](std::string_view file, std::string_view text) {
    return weights::write_file_atomically(fmt::format("{}/{}", args.folder, file), text, false);
  };
  for (const ModelText& file : model_texts(made.config_text, made.vocab, args.tokenizer)) {
    RUDDER_TRY_VOID(write_text(file.name, file.text));
  }
  return {};
}

}  // namespace rudder::model
