#include "rudder/model/make_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "rudder/base/json.h"
#include "rudder/base/philox.h"
#include "rudder/base/thread_pool.h"
#include "rudder/model/archs/modules.h"
#include "rudder/weights/hf_config.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::model {
namespace {

using weights::TensorDecl;
using weights::TensorShape;

constexpr int64_t kChunkValues = int64_t{1} << 21;  // of one task: 4 MiB
constexpr double kWeightSpread = 0.02;              // standard deviation
constexpr double kNormSpread = 0.1;

// bf16 values of a normal distribution at 65536 equally likely points: 16 random bits pick one.
using ValueTable = std::vector<tensor::BF16>;

// Solves erfc(-z / sqrt 2) / 2 = p by bisection: 65536 points, once.
double normal_quantile(double p) {
  double low = -6;
  double high = 6;
  for (int i = 0; i < 50; ++i) {
    const double mid = (low + high) / 2;
    (std::erfc(-mid / std::sqrt(2.0)) / 2 < p ? low : high) = mid;
  }
  return (low + high) / 2;
}

struct ValueTables {
  ValueTable weight = ValueTable(65536);
  ValueTable norm = ValueTable(65536);

  explicit ValueTables(double norm_centre) {
    for (size_t i = 0; i < weight.size(); ++i) {
      const double z = normal_quantile((static_cast<double>(i) + 0.5) / 65536);
      weight[i] = tensor::to_bf16(static_cast<float>(kWeightSpread * z));
      norm[i] = tensor::to_bf16(static_cast<float>(norm_centre + kNormSpread * z));
    }
  }
};

struct PlannedTensor {
  TensorDecl decl;
  bool is_norm = false;
  int64_t values = 0;
  uint64_t number = 0;  // in the model: part of the random counter
};

class Plan {
 public:
  Plan(const ModelSpec& spec, const WeightNames& names) {
    const auto vocab = static_cast<uint64_t>(spec.vocab);
    const auto hidden = static_cast<uint64_t>(spec.hidden);
    add(std::string(names.embedding), TensorShape::of({vocab, hidden}), false);
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      const LayerModules m = layer_modules(spec, names, i);
      for (const NormModule* norm : m.norms()) {
        if (norm->name.empty()) continue;
        add(norm->name, TensorShape::of({static_cast<uint64_t>(norm->width)}), true);
      }
      for (const LinearModule* linear : m.linears()) {
        for (const LinearModule::Part& part : linear->parts) {
          const auto rows = static_cast<uint64_t>(part.rows);
          add(part.name + ".weight", TensorShape::of({rows, static_cast<uint64_t>(linear->in)}),
              false);
          if (linear->bias) add(part.name + ".bias", TensorShape::of({rows}), false);
        }
      }
    }
    add(std::string(names.final_norm), TensorShape::of({hidden}), true);
    if (!spec.tied_head) add(std::string(names.head), TensorShape::of({vocab, hidden}), false);
  }

  const std::vector<PlannedTensor>& tensors() const { return tensors_; }
  int64_t total_bytes() const { return total_bytes_; }

  // Ranges of tensors whose bytes stay within the limit, one tensor at least.
  std::vector<std::pair<size_t, size_t>> shards(int64_t max_bytes) const {
    std::vector<std::pair<size_t, size_t>> out;
    int64_t bytes = max_bytes;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      bytes += 2 * tensors_[i].values;
      if (out.empty() || bytes > max_bytes) {
        out.emplace_back(i, i);
        bytes = 2 * tensors_[i].values;
      }
      out.back().second = i + 1;
    }
    return out;
  }

 private:
  void add(std::string name, const TensorShape& shape, bool is_norm) {
    uint64_t values = 0;
    weights::checked_tensor_bytes(shape, 1, values);
    tensors_.push_back({{std::move(name), tensor::DType::kBF16, shape},
                        is_norm,
                        static_cast<int64_t>(values),
                        tensors_.size()});
    total_bytes_ += 2 * static_cast<int64_t>(values);
  }

  std::vector<PlannedTensor> tensors_;
  int64_t total_bytes_ = 0;
};

// Fills `out` with the values of a tensor from `begin` on; `begin` is a multiple of 8.
void fill(std::span<tensor::BF16> out, const ValueTable& table, uint64_t seed, uint64_t tensor,
          int64_t begin) {
  for (size_t i = 0; i < out.size(); i += 8) {
    const PhiloxBlock block = philox4x32(seed, (static_cast<uint64_t>(begin) + i) / 8, tensor);
    for (size_t j = 0; j < std::min<size_t>(8, out.size() - i); ++j) {
      out[i + j] = table[(block[j / 2] >> (16 * (j % 2))) & 0xFFFF];
    }
  }
}

// Writes the tensors of one shard, chunk by chunk, on all threads.
class ShardWriter {
 public:
  ShardWriter(std::span<const PlannedTensor> tensors, const ValueTables& tables, uint64_t seed,
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
      const PlannedTensor& planned = tensors_[index];
      const int64_t count = std::min(kChunkValues, planned.values - begin);
      std::vector<tensor::BF16> values(static_cast<size_t>(count));
      fill(values, planned.is_norm ? tables_.norm : tables_.weight, seed_, planned.number, begin);
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
  std::span<const PlannedTensor> tensors_;
  const ValueTables& tables_;
  const uint64_t seed_;
  weights::SafetensorsWriter& writer_;
  std::vector<std::pair<size_t, int64_t>> chunks_;  // tensor, first value
  std::mutex mutex_;
  int64_t done_ = 0;
  std::optional<Error> error_;
};

constexpr std::string_view kGenerationConfig =
    "{\"bos_token_id\": 0, \"do_sample\": false, \"eos_token_id\": 2, \"pad_token_id\": 0}\n";
constexpr std::string_view kTokenizerConfig =
    R"({"add_bos_token": false, "add_prefix_space": false, "bos_token": null,
"chat_template": "{%- for message in messages -%}\n{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n{{- '<|im_start|>assistant\\n' -}}\n{%- endif -%}\n",
"clean_up_tokenization_spaces": false, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": null}
)";

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

Result<void> write_weights(const MakeModelArgs& args, const Plan& plan, double norm_centre,
                           const ProgressFn& progress) {
  const auto shards = plan.shards(args.max_shard_bytes);
  const ValueTables tables(norm_centre);
  ThreadPool pool(args.num_threads);
  std::string map;
  int64_t done = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto [begin, end] = shards[i];
    const auto tensors = std::span(plan.tensors()).subspan(begin, end - begin);
    const std::string file =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<TensorDecl> decls;
    for (const PlannedTensor& planned : tensors) {
      decls.push_back(planned.decl);
      map += map.empty() ? "" : ",\n";
      append_json_string(map, planned.decl.name);
      map += fmt::format(": \"{}\"", file);
    }
    RUDDER_TRY(const auto writer, weights::SafetensorsWriter::create(args.folder + "/" + file,
                                                                     decls, {{"format", "pt"}}));
    ShardWriter shard(tensors, tables, args.seed, *writer);
    RUDDER_TRY_VOID(shard.write(pool, done, plan.total_bytes(), progress));
    RUDDER_TRY_VOID(writer->finish(false));
    for (const PlannedTensor& planned : tensors) done += 2 * planned.values;
  }
  if (shards.size() == 1) return {};
  const std::string index =
      fmt::format("{{\"metadata\": {{\"total_size\": {}}}, \"weight_map\": {{\n{}\n}}}}\n",
                  plan.total_bytes(), map);
  return weights::write_file_atomically(args.folder + "/model.safetensors.index.json", index,
                                        false);
}

}  // namespace

Result<void> make_model(const MakeModelArgs& args, const ProgressFn& progress) {
  RUDDER_TRY(const std::string config_text, make_model_config(args.like, args.num_layers));
  RUDDER_TRY(const weights::HfConfig config, weights::HfConfig::parse(config_text, "config.json"));
  RUDDER_TRY(const std::vector<std::string> names, config.strings("architectures"));
  RUDDER_TRY(const Architecture* architecture, find_architecture(names[0]));
  RUDDER_TRY(const ModelSpec spec, architecture->read_spec(config));
  RUDDER_TRY_VOID(prepare_folder(args.folder));
  const Plan plan(spec, architecture->names);
  const double norm_centre = 1.0 - static_cast<double>(architecture->names.norm_offset);
  RUDDER_TRY_VOID(write_weights(args, plan, norm_centre, progress));

  const auto write_text = [&](const char* file, std::string_view text) {
    return weights::write_file_atomically(args.folder + "/" + file, text, false);
  };
  RUDDER_TRY_VOID(write_text("tokenizer.json", make_tokenizer_json(spec.vocab)));
  RUDDER_TRY_VOID(write_text("tokenizer_config.json", kTokenizerConfig));
  RUDDER_TRY_VOID(write_text("generation_config.json", kGenerationConfig));
  return write_text("config.json", config_text);
}

}  // namespace rudder::model
