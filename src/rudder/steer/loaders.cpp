#include "rudder/steer/loaders.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <set>

#include "rudder/base/json.h"
#include "rudder/steer/file_tensor.h"
#include "rudder/steer/vectors.h"
#include "rudder/weights/mapped_file.h"
#include "rudder/weights/safetensors.h"

namespace rudder::steer {
namespace {

constexpr std::string_view kLayersSuffix = ".layers";

struct VectorName {
  Phase phase = Phase::kAll;
  tap::SiteRef site;
};

// "[prefill.|decode.]<site>[.<layer>]" or "direction.<layer>".
Result<VectorName> parse_name(std::string_view name, const std::string& where) {
  VectorName parsed;
  for (const auto& [prefix, phase] :
       {std::pair<std::string_view, Phase>("prefill.", Phase::kPrefill),
        std::pair<std::string_view, Phase>("decode.", Phase::kDecode)}) {
    if (!name.starts_with(prefix)) continue;
    parsed.phase = phase;
    name.remove_prefix(prefix.size());
    break;
  }
  constexpr std::string_view kDirection = "direction.";
  const std::string text = name.starts_with(kDirection)
                               ? fmt::format("resid_post.{}", name.substr(kDirection.size()))
                               : std::string(name);
  Result<tap::SiteRef> site = tap::parse_op_site(text);
  if (!site) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the tensor's name is no place for a vector: {}", site.error().message),
                where);
  }
  parsed.site = *site;
  return parsed;
}

class ModuleReader {
 public:
  ModuleReader(const FileTensors& tensors, const std::string& file, const Model& model)
      : tensors_(tensors), file_(file), model_(model) {}

  Result<std::vector<OpSpec>> read() {
    for (const FileTensor& tensor : tensors_.tensors) {
      if (tensor.name.ends_with(kLayersSuffix)) {
        const std::string_view base(tensor.name.data(), tensor.name.size() - kLayersSuffix.size());
        if (find(base) == nullptr) {
          return fail(ErrorCode::kInvalidArgument, "it lists the layers of no tensor",
                      where(tensor));
        }
        continue;
      }
      RUDDER_TRY_VOID(add(tensor));
    }
    return std::move(ops_);
  }

 private:
  std::string where(const FileTensor& tensor) const { return file_ + ": " + tensor.name; }

  const FileTensor* find(std::string_view name) const {
    const auto found = std::ranges::find(tensors_.tensors, name, &FileTensor::name);
    return found == tensors_.tensors.end() ? nullptr : &*found;
  }

  Result<void> add(const FileTensor& tensor) {
    RUDDER_TRY(const VectorName name, parse_name(tensor.name, where(tensor)));
    if (!is_vector_dtype(tensor.dtype)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("dtype {}: f64, f32, f16 or bf16 is needed",
                              tensor::dtype_name(tensor.dtype)),
                  where(tensor));
    }
    if (tensor.shape.empty() || tensor.shape.size() > 2 || tensor.bytes.empty()) {
      return fail(ErrorCode::kInvalidArgument, "one row or a row a layer is needed", where(tensor));
    }
    const uint64_t count = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
    RUDDER_TRY(const std::vector<int32_t> layers, layers_of(tensor, name.site, count));
    Row row;
    row.buffer = widen(tensor.bytes, tensor.dtype);
    const uint64_t width = tensor.shape.back();
    const std::span<const float> values(row.buffer.get(), count * width);
    if (const auto bad = first_bad(values)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("element {} of row {} is {}: finite numbers of at most {} in "
                              "magnitude are needed",
                              *bad % width, *bad / width, values[*bad], kMaxMagnitude),
                  where(tensor));
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      const tap::Point point = {layers[i], name.site.site};
      Result<void> known = model_.geometry.check(point);
      if (!known) return fail(known.error().code, known.error().message, where(tensor));
      if (width != static_cast<uint64_t>(model_.geometry.width(point))) {
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("vectors of {} elements; {} of layer {} has {}: {}", width,
                        tap::site_name(point.site), point.layer, model_.geometry.width(point),
                        model_.geometry.fits(point.layer, static_cast<int32_t>(width), false)),
            where(tensor));
      }
      if (!seen_.emplace(name.phase, point.index()).second) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} of layer {} has a vector already", tap::site_name(point.site),
                                point.layer),
                    where(tensor));
      }
      row.width = static_cast<int32_t>(width);
      row.begin = static_cast<int64_t>(i * width);
      OpSpec& spec = ops_.emplace_back();
      spec.point = point;
      spec.vector = row;
      spec.select.phase = name.phase;
      spec.where = where(tensor);
    }
    return {};
  }

  // One for each row of the tensor: of its name, of "<name>.layers", or all of the model's.
  Result<std::vector<int32_t>> layers_of(const FileTensor& tensor, const tap::SiteRef& site,
                                         uint64_t count) const {
    const auto refused = [&](std::string message) {
      return fail(ErrorCode::kInvalidArgument, std::move(message), where(tensor));
    };
    const FileTensor* list = find(tensor.name + std::string(kLayersSuffix));
    if (site.layer >= 0) {
      if (count != 1) return refused(fmt::format("{} rows for one layer", count));
      if (list != nullptr) return refused("its name and a tensor say which layer it is for");
      return std::vector<int32_t>{site.layer};
    }
    const auto num_layers = static_cast<uint64_t>(model_.geometry.num_layers);
    if (count > num_layers) return refused(fmt::format("{} rows: {} layers", count, num_layers));
    std::vector<int32_t> layers;
    if (list == nullptr) {
      if (count != num_layers) {
        return refused(
            fmt::format("{} rows, the model has {} layers: a tensor '{}{}' would list "
                        "which ones they are for",
                        count, num_layers, tensor.name, kLayersSuffix));
      }
      for (int32_t layer = 0; layer < model_.geometry.num_layers; ++layer) layers.push_back(layer);
      return layers;
    }
    const bool wide = list->dtype == tensor::DType::kI64;
    if ((!wide && list->dtype != tensor::DType::kI32) ||
        list->shape != std::vector<uint64_t>{count}) {
      return refused(fmt::format("'{}' is no list of {} integers", list->name, count));
    }
    ByteCursor cursor(list->bytes);
    for (uint64_t i = 0; i < count; ++i) {
      const int64_t layer = wide ? cursor.take<int64_t>() : cursor.take<int32_t>();
      if (layer < 0 || layer >= model_.geometry.num_layers) {
        return refused(fmt::format("'{}' names layer {}", list->name, layer));
      }
      layers.push_back(static_cast<int32_t>(layer));
    }
    return layers;
  }

  const FileTensors& tensors_;
  const std::string& file_;
  const Model& model_;
  std::set<std::pair<Phase, int32_t>> seen_;
  std::vector<OpSpec> ops_;
};

// A direction is of a block's output. llama.cpp's files begin with that of block 1, EasySteer's
// with that of block 0.
Result<void> check_directions(const FileTensors& tensors, const std::string& file) {
  for (const FileTensor& tensor : tensors.tensors) {
    if (!tensor.name.starts_with("direction.")) {
      return corrupt_file("a control vector has tensors direction.0, direction.1, ...", file,
                          tensor.name);
    }
  }
  return {};
}

Result<LoadedModule> load_json(std::span<const std::byte> bytes, const std::string& file,
                               const Model& model, const Names& names) {
  RUDDER_TRY(const boost::json::value value,
             parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file));
  const boost::json::object* body = value.if_object();
  if (body == nullptr) return corrupt_file("a JSON object is needed", file);
  Result<ParsedSteering> parsed = parse_admin_steering(*body, {}, model, names);
  LoadedModule loaded;
  Result<void> done = parsed ? Result<void>() : tl::unexpected<Error>(parsed.error());
  if (done) {
    for (const NamedRef& ref : parsed->named) {
      if (done) done = append_scaled(ref, loaded.ops);
    }
  }
  if (!done) {
    Error error = std::move(done.error());
    error.where = error.where.empty() ? file : file + ": " + error.where;
    return tl::unexpected<Error>(std::move(error));
  }
  std::ranges::move(parsed->ops, std::back_inserter(loaded.ops));
  return loaded;
}

}  // namespace

Result<FileTensors> read_safetensors(std::span<const std::byte> bytes, const std::string& file) {
  RUDDER_TRY(const weights::Safetensors parsed, weights::parse_safetensors(bytes, file));
  FileTensors result;
  for (const weights::TensorEntry& entry : parsed.tensors) {
    FileTensor& tensor = result.tensors.emplace_back();
    tensor.name = entry.name;
    tensor.dtype = entry.dtype;
    tensor.shape.assign(entry.shape.extents().begin(), entry.shape.extents().end());
    tensor.bytes = parsed.bytes_of(entry);
  }
  for (const auto& [key, value] : parsed.metadata) {
    if (key == "model_hint") result.model_hint = value;
    if (key != kUnitKey) continue;
    const auto [end, error] =
        std::from_chars(value.data(), value.data() + value.size(), result.unit);
    const bool is_whole = error == std::errc() && end == value.data() + value.size();
    if (!is_whole || !(result.unit > 0 && result.unit <= kMaxMagnitude)) {
      return corrupt_file(fmt::format("the unit '{}' is no number above 0", value), file, kUnitKey);
    }
  }
  return result;
}

Result<LoadedModule> load_module_bytes(std::span<const std::byte> bytes, const std::string& file,
                                       const Model& model, const Names& names) {
  if (file.ends_with(".json")) return load_json(bytes, file, model, names);
  FileTensors tensors;
  if (file.ends_with(".safetensors")) {
    RUDDER_TRY(tensors, read_safetensors(bytes, file));
  } else if (file.ends_with(".npz")) {
    RUDDER_TRY(tensors, read_npz(bytes, file));
  } else if (file.ends_with(".gguf")) {
    RUDDER_TRY(tensors, read_gguf(bytes, file));
    RUDDER_TRY_VOID(check_directions(tensors, file));
  } else {
    return fail(ErrorCode::kUnsupported,
                "a steering module is a .safetensors, .npz, .gguf or .json file; pickles (.pt, "
                ".pth, .pkl) are never opened",
                file);
  }
  LoadedModule loaded;
  loaded.model_hint = tensors.model_hint;
  RUDDER_TRY(loaded.ops, ModuleReader(tensors, file, model).read());
  for (OpSpec& op : loaded.ops) op.scale *= tensors.unit;
  return loaded;
}

Result<LoadedModule> load_module(const std::string& path, const Model& model, const Names& names) {
  RUDDER_TRY(const auto mapped, weights::MappedFile::open(path));
  RUDDER_TRY(LoadedModule loaded, load_module_bytes(mapped->bytes(), path, model, names));
  RUDDER_TRY_VOID(mapped->check_unchanged());
  return loaded;
}

}  // namespace rudder::steer
