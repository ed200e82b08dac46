#include "rudder/steer/train/vector_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <iterator>
#include <utility>

#include "rudder/base/json.h"
#include "rudder/steer/loaders.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"
#include "rudder/weights/safetensors_writer.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr const char* kCardKey = "rudder.card";

std::string tensor_name(tap::Point point) {
  return fmt::format("{}.{}", tap::site_name(point.site), point.layer);
}

json::object vector_json(const TrainedVector& vector) {
  json::object out = {{"layer", vector.point.layer},
                      {"norm", norm(vector.direction.values)},
                      {"row_norm", vector.row_norm},
                      {"projection_positive", vector.train.positive},
                      {"projection_negative", vector.train.negative},
                      {"projection_spread", vector.train.spread},
                      {"train_accuracy", vector.train_accuracy},
                      {"held_out_accuracy", vector.held_out_accuracy}};
  if (vector.direction.explained > 0) out["explained"] = vector.direction.explained;
  return out;
}

// GGUF version 3, little-endian; the format: https://github.com/ggml-org/ggml, docs/gguf.md.
class GgufBytes {
 public:
  template <typename T>
  void put(T value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void text(std::string_view value) {
    put<uint64_t>(value.size());
    const auto bytes = std::as_bytes(std::span(value));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void entry(std::string_view key, std::string_view value) {
    constexpr uint32_t kString = 8;
    text(key);
    put(kString);
    text(value);
  }
  void entry(std::string_view key, uint32_t value) {
    constexpr uint32_t kUint32 = 4;
    text(key);
    put(kUint32);
    put(value);
  }
  void floats(std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void pad() {
    while (bytes_.size() % kAlignment != 0) bytes_.push_back(std::byte{0});
  }
  std::string_view view() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

  static constexpr uint64_t kAlignment = 32;

 private:
  std::vector<std::byte> bytes_;
};

double number(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_number() ? value->to_number<double>() : 0;
}

std::string text(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

int64_t whole(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_int64() ? value->get_int64() : -1;
}

json::object unit_json(const VectorUnit& unit) {
  return {{"part", unit.part},
          {"kl_budget", unit.kl_budget},
          {"kl", unit.kl},
          {"kl_error", unit.kl_error}};
}

// Of a file that does not say, scale 1 is the whole difference.
VectorUnit read_unit(const json::object& card) {
  const json::value* value = card.if_contains("unit");
  const json::object* object = value == nullptr ? nullptr : value->if_object();
  if (object == nullptr) return {};
  return {number(*object, "part"), number(*object, "kl_budget"), number(*object, "kl"),
          number(*object, "kl_error")};
}

std::string unit_text(const VectorUnit& unit) {
  std::string text =
      "A whole vector moves the mean of the negative rows onto that of the positive ones, along "
      "the "
      "vector; ";
  if (unit.kl_budget == 0) return text + "scale 1 of the module adds it.";
  if (unit.part == 1) {
    text += "scale 1 of the module adds it. ";
  } else {
    text += fmt::format(
        "scale 1 of the module adds {:.3g} of it, the largest part that keeps within {} nats a "
        "token. ",
        unit.part, unit.kl_budget);
  }
  return text + fmt::format(
                    "All layers together then change the next token's distribution by {:.2f} ± "
                    "{:.2f} nats a token, with either sign at most.",
                    unit.kl, unit.kl_error);
}

Result<TrainedVector> read_vector(const json::value& entry, const VectorCard& card,
                                  const weights::Safetensors& file, const std::string& path) {
  const auto corrupt = [&](std::string message) {
    return fail(ErrorCode::kCorruptFile, std::move(message), path + ": " + kCardKey);
  };
  const json::object* object = entry.if_object();
  if (object == nullptr) return corrupt("a vector is no object");
  const auto site = tap::parse_site(card.site);
  if (!site) return corrupt(site.error().message);
  TrainedVector vector;
  vector.point = {static_cast<int32_t>(whole(*object, "layer")), site->site};
  const weights::TensorEntry* tensor = file.find(tensor_name(vector.point));
  if (tensor == nullptr || tensor->dtype != tensor::DType::kF32 || tensor->shape.rank != 1) {
    return corrupt(
        fmt::format("it names {}, which the file does not hold", tensor_name(vector.point)));
  }
  vector.direction.values.resize(tensor->bytes() / sizeof(float));
  std::memcpy(vector.direction.values.data(), file.bytes_of(*tensor).data(), tensor->bytes());
  vector.direction.explained = number(*object, "explained");
  vector.row_norm = number(*object, "row_norm");
  vector.train = {number(*object, "projection_positive"), number(*object, "projection_negative"),
                  number(*object, "projection_spread")};
  vector.train_accuracy = number(*object, "train_accuracy");
  vector.held_out_accuracy = number(*object, "held_out_accuracy");
  return vector;
}

}  // namespace

std::string card_json(const VectorCard& card) {
  json::array vectors;
  for (const TrainedVector& vector : card.vectors) vectors.push_back(vector_json(vector));
  const json::object out = {{"format", "rudder.vectors.1"},
                            {"name", card.name},
                            {"model", card.model},
                            {"method", method_name(card.method)},
                            {"site", card.site},
                            {"tokens", card.tokens},
                            {"positive", card.positive_file},
                            {"negative", card.negative_file},
                            {"num_positive", card.num_positive},
                            {"num_negative", card.num_negative},
                            {"num_held_out", card.num_held_out},
                            {"unit", unit_json(card.unit)},
                            {"vectors", std::move(vectors)}};
  return to_json_text(out);
}

std::string card_markdown(const VectorCard& card) {
  std::string out = fmt::format(
      "# {}\n\nSteering vectors for `{}` at `{}`, by {} over {} positive and {} negative prompts "
      "({} more held out; {} and {}), rows: {}.\n\n{}\n\n"
      "| layer | norm | norm / row | separation | accuracy | held out |{}\n"
      "|---|---|---|---|---|---|{}\n",
      card.name, card.model, card.site, method_name(card.method), card.num_positive,
      card.num_negative, card.num_held_out, card.positive_file, card.negative_file,
      card.tokens == "mean" ? "mean over the prompt's tokens" : "last token of the prompt",
      unit_text(card.unit), takes_pairs(card.method) ? " explained |" : "",
      takes_pairs(card.method) ? "---|" : "");
  for (const TrainedVector& vector : card.vectors) {
    const double length = norm(vector.direction.values);
    const double apart = vector.train.positive - vector.train.negative;
    fmt::format_to(
        std::back_inserter(out), "| {} | {:.4g} | {:.3f} | {:.2f} σ | {:.1f} % | {} |",
        vector.point.layer, length, vector.row_norm > 0 ? length / vector.row_norm : 0,
        vector.train.spread > 0 ? apart / vector.train.spread : 0, 100 * vector.train_accuracy,
        card.num_held_out > 0 ? fmt::format("{:.1f} %", 100 * vector.held_out_accuracy) : "-");
    if (takes_pairs(card.method)) {
      fmt::format_to(std::back_inserter(out), " {:.1f} % |", 100 * vector.direction.explained);
    }
    out += '\n';
  }
  fmt::format_to(std::back_inserter(out),
                 "\nSeparation: distance of the sets' mean projections, in standard deviations "
                 "within them.\n\n```bash\nrudder serve --enable-steering --steering-module "
                 "{0}={0}.safetensors\n```\n",
                 card.name);
  return out;
}

Result<void> write_vectors_safetensors(const VectorCard& card, const std::string& path) {
  std::vector<weights::TensorDecl> tensors;
  tensors.reserve(card.vectors.size());
  for (const TrainedVector& vector : card.vectors) {
    tensors.push_back({tensor_name(vector.point), tensor::DType::kF32,
                       weights::TensorShape::of({vector.direction.values.size()})});
  }
  RUDDER_TRY(const std::unique_ptr<weights::SafetensorsWriter> writer,
             weights::SafetensorsWriter::create(path, tensors,
                                                {{"model", card.model},
                                                 {kUnitKey, fmt::format("{}", card.unit.part)},
                                                 {kCardKey, card_json(card)}}));
  for (size_t i = 0; i < card.vectors.size(); ++i) {
    const auto bytes = std::as_bytes(std::span(card.vectors[i].direction.values));
    RUDDER_TRY_VOID(writer->write(i, 0, bytes));
  }
  return writer->finish(true);
}

Result<void> write_control_vector(const VectorCard& card, const std::string& path) {
  std::vector<const TrainedVector*> vectors;
  for (const TrainedVector& vector : card.vectors) {
    if (vector.point.site != tap::Site::kResidPost) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a GGUF control vector is for resid_post, not for {}",
                              tap::site_name(vector.point.site)),
                  path);
    }
    if (vector.point.layer > 0) vectors.push_back(&vector);
  }
  if (vectors.empty()) {
    return fail(ErrorCode::kInvalidArgument, "a GGUF control vector needs a layer beyond the first",
                path);
  }
  GgufBytes gguf;
  constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
  constexpr uint32_t kVersion = 3;
  gguf.put(kMagic);
  gguf.put(kVersion);
  gguf.put<uint64_t>(vectors.size());
  gguf.put<uint64_t>(4);
  gguf.entry("general.architecture", "controlvector");
  gguf.entry("controlvector.model_hint", card.model);
  gguf.entry("controlvector.method", method_name(card.method));
  gguf.entry("controlvector.layer_count", static_cast<uint32_t>(vectors.size()));
  uint64_t offset = 0;
  for (const TrainedVector* vector : vectors) {
    constexpr uint32_t kRank = 1;
    constexpr uint32_t kF32 = 0;
    const uint64_t count = vector->direction.values.size();
    gguf.text(fmt::format("direction.{}", vector->point.layer));
    gguf.put(kRank);
    gguf.put(count);
    gguf.put(kF32);
    gguf.put(offset);
    offset += (count * sizeof(float) + GgufBytes::kAlignment - 1) / GgufBytes::kAlignment *
              GgufBytes::kAlignment;
  }
  for (const TrainedVector* vector : vectors) {
    gguf.pad();
    std::vector<float> values = vector->direction.values;  // who reads these files knows no unit
    for (float& value : values) value *= static_cast<float>(card.unit.part);
    gguf.floats(values);
  }
  gguf.pad();
  return weights::write_file_atomically(path, gguf.view(), true);
}

Result<VectorCard> read_vectors_safetensors(const std::string& path) {
  RUDDER_TRY(const std::shared_ptr<const weights::MappedFile> mapped,
             weights::MappedFile::open(path));
  RUDDER_TRY(const weights::Safetensors file, weights::parse_safetensors(mapped->bytes(), path));
  const auto found =
      std::ranges::find(file.metadata, kCardKey, &std::pair<std::string, std::string>::first);
  if (found == file.metadata.end()) {
    return fail(ErrorCode::kInvalidArgument, "was not written by rudder vectors train", path);
  }
  RUDDER_TRY(const json::value parsed, parse_json(found->second, path + ": " + kCardKey));
  const json::object* object = parsed.if_object();
  const json::value* vectors = object == nullptr ? nullptr : object->if_contains("vectors");
  if (vectors == nullptr || !vectors->is_array()) {
    return fail(ErrorCode::kCorruptFile, "the card has no vectors", path);
  }
  VectorCard card;
  card.name = text(*object, "name");
  card.model = text(*object, "model");
  const std::optional<Method> method = find_method(text(*object, "method"));
  if (!method) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("the card's method is '{}'", text(*object, "method")), path);
  }
  card.method = *method;
  card.site = text(*object, "site");
  card.tokens = text(*object, "tokens");
  card.positive_file = text(*object, "positive");
  card.negative_file = text(*object, "negative");
  card.num_positive = whole(*object, "num_positive");
  card.num_negative = whole(*object, "num_negative");
  card.num_held_out = whole(*object, "num_held_out");
  card.unit = read_unit(*object);
  for (const json::value& entry : vectors->get_array()) {
    RUDDER_TRY(TrainedVector vector, read_vector(entry, card, file, path));
    card.vectors.push_back(std::move(vector));
  }
  return card;
}

}  // namespace rudder::steer
