#include "rudder/model/gguf/write_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/base/thread_pool.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/gguf/gguf_checkpoint.h"
#include "rudder/model/gguf/gguf_names.h"
#include "rudder/model/gguf/gguf_tokenizer_writer.h"
#include "rudder/model/loader.h"
#include "rudder/weights/gguf_writer.h"
#include "rudder/weights/round_blocks.h"

namespace rudder::model {
namespace {

namespace json = boost::json;
using tensor::DType;
using weights::BlockType;
using weights::TensorInfo;

constexpr const char* kConfigFile = "config.json";

// By the class of config.json: the architecture in files, and the config's keys that say how the
// model computes, of which more than one spelling may be known.
constexpr std::pair<std::string_view, std::string_view> kWrittenFamilies[] = {
    {"LlamaForCausalLM", "llama"},
    {"MistralForCausalLM", "llama"},
    {"Qwen2ForCausalLM", "qwen2"},
    {"Qwen3ForCausalLM", "qwen3"},
};

tl::unexpected<Error> unsaid_field(std::string_view field, std::string message) {
  return fail(ErrorCode::kUnsupported, std::move(message),
              fmt::format("{}: {}", kConfigFile, field));
}

class GgufModelWriter {
 public:
  GgufModelWriter(const weights::Checkpoint& checkpoint, const GgufScheme& scheme)
      : checkpoint_(checkpoint), scheme_(scheme) {}

  Result<void> write(const std::string& file, const ProgressFn& progress) {
    RUDDER_TRY(spec_, read_spec(checkpoint_));
    RUDDER_TRY_VOID(check_tensors(checkpoint_, spec_));
    RUDDER_TRY(const std::string text, checkpoint_.read_text(kConfigFile));
    RUDDER_TRY(const json::value config, parse_json(text, kConfigFile));
    config_ = config.as_object();
    RUDDER_TRY_VOID(find_family());
    RUDDER_TRY_VOID(add_values());
    RUDDER_TRY_VOID(add_tokenizer(checkpoint_, spec_.vocab, out_));
    RUDDER_TRY_VOID(declare_tensors());
    RUDDER_TRY_VOID(out_.begin(file));
    RUDDER_TRY_VOID(append_tensors(progress));
    RUDDER_TRY_VOID(checkpoint_.check_unchanged());
    return out_.finish();
  }

 private:
  // The tensor of the checkpoint, or numbers that config.json says; as it is written.
  struct Written {
    const TensorInfo* tensor = nullptr;
    std::vector<float> numbers;
    const BlockType* type = nullptr;
  };

  Result<void> find_family() {
    const json::value* const named = config_.if_contains("architectures");
    std::string_view architecture = spec_.architecture;
    if (named != nullptr && named->is_array() && !named->get_array().empty()) {
      const json::string& first = named->get_array()[0].as_string();
      architecture = {first.data(), first.size()};
    }
    for (const auto& [name, family] : kWrittenFamilies) {
      if (name != architecture) continue;
      RUDDER_TRY(family_, find_gguf_architecture(family));
      return {};
    }
    return unsaid_field("architectures",
                        fmt::format("GGUF files of {} are read here, not written", architecture));
  }

  std::string key(std::string_view name) const { return fmt::format("{}.{}", family_->name, name); }
  void add_size(std::string_view name, int64_t value) {
    out_.add(key(name), static_cast<uint32_t>(value));
  }

  double number_of(std::string_view name, double otherwise) const {
    const json::value* const found = config_.if_contains(name);
    return found == nullptr || !found->is_number() ? otherwise : found->to_number<double>();
  }

  Result<void> add_values() {
    const Attention* const attention = attention_of(spec_.layers.front());
    if (attention == nullptr) return unsaid_field("layers", "its layers have no attention");
    out_.add("general.architecture", family_->name);
    out_.add("general.name", std::string_view(checkpoint_.name()));
    out_.add("general.file_type", scheme_.file_type);
    out_.add("general.quantization_version", uint32_t{2});
    add_size("block_count", std::ssize(spec_.layers));
    add_size("context_length", spec_.max_positions);
    add_size("embedding_length", spec_.hidden);
    add_size("feed_forward_length", static_cast<int64_t>(number_of("intermediate_size", 0)));
    add_size("attention.head_count", attention->num_heads);
    add_size("attention.head_count_kv", attention->num_kv_heads);
    add_size("attention.key_length", attention->head_dim);
    add_size("attention.value_length", attention->head_dim);
    add_size("rope.dimension_count", attention->head_dim);
    add_size("vocab_size", spec_.vocab);
    out_.add(key("attention.layer_norm_rms_epsilon"),
             static_cast<float>(number_of("rms_norm_eps", 1e-6)));
    head_dim_ = attention->head_dim;
    RUDDER_TRY_VOID(check_windows());
    return add_rope();
  }

  Result<void> check_windows() const {
    const bool has_windows = std::ranges::any_of(spec_.layers, [](const LayerSpec& layer) {
      const Attention* const attention = attention_of(layer);
      return attention != nullptr && attention->window > 0;
    });
    if (!has_windows) return {};
    return unsaid_field("sliding_window",
                        "windows of this architecture have no key in a GGUF file");
  }

  // Theta, and what rope_scaling says: of Llama 3 a divisor of each frequency, as the converter of
  // llama.cpp computes them.
  Result<void> add_rope() {
    const json::object* scaling = nullptr;
    for (const char* const name : {"rope_parameters", "rope_scaling"}) {
      const json::value* const found = config_.if_contains(name);
      if (found != nullptr && found->is_object()) scaling = &found->get_object();
    }
    const auto of_scaling = [&](std::string_view name, double otherwise) {
      const json::value* const found = scaling == nullptr ? nullptr : scaling->if_contains(name);
      return found == nullptr || !found->is_number() ? otherwise : found->to_number<double>();
    };
    const double theta = of_scaling("rope_theta", number_of("rope_theta", 10000));
    out_.add(key("rope.freq_base"), static_cast<float>(theta));
    std::string type = "default";
    for (const char* const name : {"type", "rope_type"}) {
      const json::value* const found = scaling == nullptr ? nullptr : scaling->if_contains(name);
      if (found != nullptr && found->is_string()) type = found->get_string();
    }
    if (type == "default") return {};
    if (type == "linear") {
      out_.add(key("rope.scaling.type"), std::string_view("linear"));
      out_.add(key("rope.scaling.factor"), static_cast<float>(of_scaling("factor", 1)));
      return {};
    }
    if (type != "llama3") {
      return unsaid_field("rope_scaling", fmt::format("ropes of type {} are not written", type));
    }
    const double factor = of_scaling("factor", 8);
    const double low = of_scaling("low_freq_factor", 1);
    const double high = of_scaling("high_freq_factor", 4);
    const double original = of_scaling("original_max_position_embeddings", 8192);
    for (int64_t i = 0; i < head_dim_ / 2; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim_);
      const double length = 2 * std::numbers::pi * std::pow(theta, exponent);
      const double smooth = (original / length - low) / (high - low);
      const double divisor = length < original / high  ? 1
                             : length > original / low ? factor
                                                       : 1 / ((1 - smooth) / factor + smooth);
      rope_freqs_.push_back(static_cast<float>(divisor));
    }
    return {};
  }

  const BlockType* type_of(const TensorInfo& tensor, bool is_product) const {
    const auto named = [](std::string_view name) { return weights::find_block_type(name); };
    if (tensor.view.shape.rank() == 1) return named("F32");
    const BlockType* const first = named(is_product ? scheme_.layers : scheme_.others);
    if (tensor.view.shape[1] % first->values == 0) return first;
    const BlockType* const second =
        named(is_product ? scheme_.layers_otherwise : scheme_.others_otherwise);
    return tensor.view.shape[1] % second->values == 0 ? second : named("F16");
  }

  Result<void> declare(const TensorInfo& tensor, const std::string& name, bool is_product) {
    const DType dtype = tensor.view.dtype;
    const bool is_wide = dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
    if (tensor.packed || !is_wide) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("is {}; numbers of F32, F16 or BF16 are written",
                              tensor.packed ? "packed" : tensor::dtype_name(dtype)),
                  fmt::format("tensor '{}'", tensor.name));
    }
    const bool is_matrix = tensor.view.shape.rank() == 2;
    const BlockType* const type = type_of(tensor, is_product);
    out_.declare(name, *type, is_matrix ? static_cast<uint64_t>(tensor.view.shape[0]) : 0,
                 static_cast<uint64_t>(tensor.view.shape[is_matrix ? 1 : 0]));
    written_.push_back({&tensor, {}, type});
    return {};
  }

  Result<void> declare_tensors() {
    if (!rope_freqs_.empty()) {
      const BlockType* const type = weights::find_block_type("F32");
      out_.declare("rope_freqs.weight", *type, 0, rope_freqs_.size());
      written_.push_back({nullptr, rope_freqs_, type});
    }
    for (const TensorInfo& tensor : checkpoint_.tensors()) {
      const std::optional<std::string> name = name_in_file(*family_, tensor.name);
      if (!name) {
        // A tied head is the table, and buffers are computed.
        const bool is_tied_head = tensor.name == "lm_head.weight" && spec_.tied_head;
        if (is_tied_head || tensor.name.ends_with("rotary_emb.inv_freq")) continue;
        return fail(ErrorCode::kUnsupported, "a GGUF file of this architecture has no name for it",
                    fmt::format("tensor '{}'", tensor.name));
      }
      if (*name == "output.weight" && spec_.tied_head) continue;
      RUDDER_TRY_VOID(declare(tensor, *name, name->starts_with("blk.")));
    }
    return {};
  }

  // Row of the model that row `row` of the file is.
  int64_t row_of(const TensorInfo& tensor, int64_t row) const {
    const bool is_paired =
        family_->pairs_neighbours && (is_query(tensor.name) || is_key(tensor.name));
    if (!is_paired) return row;
    const int64_t in_head = row % head_dim_;
    return row - in_head + in_head / 2 + (in_head % 2 == 0 ? 0 : head_dim_ / 2);
  }

  static void read_numbers(const tensor::View& view, int64_t first, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = view.dtype == DType::kF32   ? view.as<float>()[first + i]
               : view.dtype == DType::kF16 ? tensor::to_float(view.as<tensor::F16>()[first + i])
                                           : tensor::to_float(view.as<tensor::BF16>()[first + i]);
    }
  }

  std::vector<std::byte> rounded(const Written& one, ThreadPool& pool) const {
    const weights::RoundBlocks round = weights::block_rounder(*one.type);
    if (one.tensor == nullptr) {
      std::vector<std::byte> out(one.numbers.size() * sizeof(float));
      round(one.numbers.data(), std::ssize(one.numbers), out.data());
      return out;
    }
    const tensor::View& view = one.tensor->view;
    const bool is_matrix = view.shape.rank() == 2;
    // Of a bias with heads each number is a row.
    const int64_t rows = view.shape[0];
    const int64_t columns = is_matrix ? view.shape[1] : 1;
    const int64_t row_bytes = one.type->row_bytes(columns);
    std::vector<std::byte> out(static_cast<size_t>(rows * row_bytes));
    const auto write_row = [&](int64_t row) {
      std::vector<float> numbers(static_cast<size_t>(columns));
      read_numbers(view, row_of(*one.tensor, row) * columns, columns, numbers.data());
      round(numbers.data(), columns / one.type->values, out.data() + row * row_bytes);
    };
    if (is_matrix) {
      pool.parallel_for(rows, write_row);
    } else {
      for (int64_t row = 0; row < rows; ++row) write_row(row);
    }
    return out;
  }

  Result<void> append_tensors(const ProgressFn& progress) {
    ThreadPool pool(0);
    int64_t done = 0;
    for (const Written& one : written_) {
      RUDDER_TRY_VOID(out_.append(rounded(one, pool)));
      checkpoint_.release_pages();
      if (one.tensor != nullptr) done += static_cast<int64_t>(one.tensor->view.bytes());
      progress(done, checkpoint_.tensor_bytes());
    }
    return {};
  }

  const weights::Checkpoint& checkpoint_;
  const GgufScheme& scheme_;
  ModelSpec spec_;
  json::object config_;
  const GgufArchitecture* family_ = nullptr;
  weights::GgufWriter out_;
  int64_t head_dim_ = 0;
  std::vector<float> rope_freqs_;
  std::vector<Written> written_;
};

// That what was written says what was meant.
Result<void> check_written(const weights::Checkpoint& checkpoint, const std::string& file) {
  RUDDER_TRY(const auto written, open_gguf(file));
  RUDDER_TRY(const ModelSpec spec, read_spec(*written));
  RUDDER_TRY_VOID(check_tensors(*written, spec));
  RUDDER_TRY(const std::string ours, checkpoint.read_text("tokenizer.json"));
  RUDDER_TRY(const std::string said, written->read_text("tokenizer.json"));
  return check_tokenizer_said(ours, said);
}

}  // namespace

const GgufScheme* find_gguf_scheme(std::string_view name) {
  const auto found = std::ranges::find(kGgufSchemes, name, &GgufScheme::name);
  return found == kGgufSchemes.end() ? nullptr : &*found;
}

Result<void> write_gguf(const weights::Checkpoint& checkpoint, const GgufScheme& scheme,
                        const std::string& file, const ProgressFn& progress) {
  std::error_code error;
  if (std::filesystem::exists(file, error)) {
    return fail(ErrorCode::kInvalidArgument, "it is there already", file);
  }
  RUDDER_TRY_VOID(GgufModelWriter(checkpoint, scheme).write(file, progress));
  Result<void> good = check_written(checkpoint, file);
  if (!good) std::filesystem::remove(file, error);
  return good;
}

}  // namespace rudder::model
