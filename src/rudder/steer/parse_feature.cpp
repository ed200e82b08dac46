// The op "feature" of an element of `steering`, and the article's `sae_clamp_specs` and
// `sae_full_reconstruction_specs`, which mean the same.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <set>

#include "rudder/features/dictionary.h"
#include "rudder/steer/layers.h"
#include "rudder/steer/parse_common.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr std::array<std::string_view, 10> kFeatureFields = {
    "op",    "dictionary",     "layer", "feature", "kind",
    "value", "only_if_active", "mode",  "select",  "gate"};

std::vector<tap::Point> write_points(const features::Dictionary& dictionary) {
  std::vector<tap::Point> points;
  points.reserve(static_cast<size_t>(dictionary.num_writes));
  for (int32_t i = 0; i < dictionary.num_writes; ++i) points.push_back(dictionary.write_point(i));
  return points;
}

// Whether the server can encode the whole dictionary; `where` asks for it.
Result<void> check_encode(const FeatureClamp& clamp, const Model& model, const std::string& where) {
  const features::Dictionary& dictionary = *clamp.dictionary;
  const int32_t most = model.limits.max_features;
  if (clamp.full && dictionary.num_writes > 1) {
    return fail(ErrorCode::kUnsupported,
                "a cross-layer transcoder gives parts of rows: it reconstructs none", where);
  }
  if (clamp.full && !dictionary.is_autoencoder() &&
      (dictionary.read.index() >= dictionary.write.index() ||
       dictionary.write.site == tap::Site::kMlpAct || dictionary.write.site == tap::Site::kAttnZ)) {
    return fail(ErrorCode::kUnsupported,
                "a transcoder reconstructs a row of the residual's width, behind where it reads",
                where);
  }
  if (most == 0) {
    return fail(ErrorCode::kUnsupported,
                clamp.full
                    ? "a full reconstruction is not supported by this backend"
                    : "a feature of a topk dictionary depends on all the others, and this "
                      "backend encodes no whole dictionaries: only \"kind\": \"add\" without "
                      "\"only_if_active\" is supported there",
                where);
  }
  if (dictionary.num_features <= most) return {};
  return invalid_field(
      fmt::format("a dictionary of {} features is encoded, --steering-memory-mb has room for {}",
                  dictionary.num_features, most),
      where);
}

// What the clamp needs of the dictionary beside the decoder row. `path` is the clamp's object.
Result<void> check_clamp(const FeatureClamp& clamp, const Model& model, const std::string& path) {
  const features::Dictionary& dictionary = *clamp.dictionary;
  if (clamp.is_plain_add()) return {};
  const auto unsupported = [&](std::string_view why) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: only \"kind\": \"add\" without \"only_if_active\" is supported "
                            "there, of a dictionary that does not normalise its input",
                            why),
                join_path(path, "kind"));
  };
  if (!dictionary.is_autoencoder() && dictionary.read.index() >= dictionary.write.index()) {
    return unsupported("the dictionary reads behind its first write");
  }
  if (!clamp.encodes()) return {};
  return check_encode(clamp, model, join_path(path, clamp.full ? "mode" : "kind"));
}

// One op for each point that the dictionary writes; behind them the one that reads, if it is none
// of them; behind those the reconstruction, if the clamp wants it.
void place_clamp(const OpSpec& spec, std::vector<OpSpec>& ops) {
  const features::Dictionary& dictionary = *spec.clamp.dictionary;
  for (int32_t i = 0; i < dictionary.num_writes; ++i) {
    OpSpec& placed = ops.emplace_back(spec);
    placed.point = dictionary.write_point(i);
    if (spec.clamp.feature == FeatureClamp::kNoFeature) continue;
    placed.vector = dictionary.decoder_row(spec.clamp.feature, i);
  }
  if (!spec.clamp.is_plain_add() && !dictionary.is_autoencoder()) {
    OpSpec& reader = ops.emplace_back(spec);
    reader.point = dictionary.read;
    reader.schedule = {};
  }
  if (!spec.clamp.full || spec.clamp.feature == FeatureClamp::kNoFeature) return;
  OpSpec row = spec;  // that the change is made to: under no schedule
  row.clamp.feature = FeatureClamp::kNoFeature;
  row.schedule = {};
  place_clamp(row, ops);
}

// Whether the element asks for a full reconstruction.
Result<bool> read_mode(const json::object& element, const std::string& path) {
  if (member(element, "mode") == nullptr) return false;
  RUDDER_TRY(const std::string_view mode, read_text(element, "mode", path));
  if (mode == "delta" || mode == "full") return mode == "full";
  return invalid_field("one of \"delta\", \"full\" is needed", join_path(path, "mode"));
}

// Of an element whose dictionary is known: the feature and what becomes of it. A full
// reconstruction may leave all of them as they are.
Result<void> read_edit(const json::object& element, const std::string& path, FeatureClamp& clamp) {
  if (clamp.full && member(element, "feature") == nullptr) {
    clamp.feature = FeatureClamp::kNoFeature;
    for (const std::string_view key : {"kind", "value", "only_if_active", "gate"}) {
      if (member(element, key) != nullptr) {
        return invalid_field("this needs a \"feature\"", join_path(path, key));
      }
    }
    return {};
  }
  RUDDER_TRY(clamp.feature, read_feature(element, "feature", *clamp.dictionary, path));
  RUDDER_TRY(const std::string_view kind, read_text(element, "kind", path));
  const std::optional<tap::FeatureEdit> edit = find_feature_edit(kind);
  if (!edit) {
    return invalid_field("one of \"set\", \"add\", \"multiply\", \"min\", \"max\" is needed",
                         join_path(path, "kind"));
  }
  clamp.edit = *edit;
  RUDDER_TRY(clamp.value, read_required(element, "value", path));
  RUDDER_TRY(clamp.only_if_active, read_bool(element, "only_if_active", path));
  return {};
}

// The parts of one entry of `sae_clamp_specs` or `sae_full_reconstruction_specs`.
struct SaeSpec {
  std::shared_ptr<const features::DictionarySet> set;
  Selector select;
};

class SaeClampParser {
 public:
  // `full`: rows are reconstructed, with the clamps or without any.
  SaeClampParser(const ParseContext& context, bool full, std::vector<OpSpec>& ops)
      : context_(context), full_(full), ops_(ops) {}

  Result<void> read(const json::value& value, const std::string& path) {
    static constexpr std::array<std::string_view, 3> kKeys = {"module_name", "clamps", "phase"};
    const json::object* object = value.if_object();
    if (object == nullptr) return invalid_field("an object is needed", path);
    RUDDER_TRY_VOID(check_keys(*object, kKeys, "a clamp spec", path));
    RUDDER_TRY(const std::string_view name, read_text(*object, "module_name", path));
    SaeSpec spec;
    spec.set = context_.names.find_dictionary(name);
    if (spec.set == nullptr) {
      return fail(ErrorCode::kNotFound, fmt::format("no dictionary is named '{}'", name),
                  join_path(path, "module_name"));
    }
    RUDDER_TRY(spec.select.phase, read_phase(*object, path));
    const std::string where = join_path(path, "clamps");
    const json::value* clamps = member(*object, "clamps");
    const json::object* sites = clamps == nullptr ? nullptr : clamps->if_object();
    if (full_ && (clamps == nullptr || (sites != nullptr && sites->empty()))) {
      for (const auto& dictionary : spec.set->layers) {
        RUDDER_TRY_VOID(reconstruct(dictionary, spec.select, path, "module_name"));
      }
      return {};
    }
    if (sites == nullptr || sites->empty()) {
      return invalid_field("an object {site: {layer: [entry]}} is needed", where);
    }
    for (const auto& [site, layers] : *sites) {
      const std::string_view key(site.data(), site.size());
      RUDDER_TRY_VOID(read_site_clamps(key, layers, spec, join_path(where, key)));
    }
    return {};
  }

 private:
  static Result<Phase> read_phase(const json::object& object, const std::string& path) {
    if (member(object, "phase") == nullptr) return Phase::kAll;
    RUDDER_TRY(const std::string_view phase, read_text(object, "phase", path));
    if (phase == "both") return Phase::kAll;
    if (phase == "prefill") return Phase::kPrefill;
    if (phase == "decode") return Phase::kDecode;
    return invalid_field("one of \"both\", \"prefill\", \"decode\" is needed",
                         join_path(path, "phase"));
  }

  Result<void> read_site_clamps(std::string_view site, const json::value& value,
                                const SaeSpec& spec, const std::string& path) {
    const Result<tap::SiteRef> ref = tap::parse_site(site);
    if (!ref) return invalid_field(ref.error().message, path);
    if (ref->layer >= 0) return invalid_field("a site without a layer is needed", path);
    const json::object* layers = value.if_object();
    if (layers == nullptr || layers->empty()) {
      return invalid_field("an object {layer: [entry]} is needed", path);
    }
    for (const auto& [key, entries] : *layers) {
      const std::string_view text(key.data(), key.size());
      const std::string where = join_path(path, text);
      RUDDER_TRY(const int32_t layer, read_layer(text, context_.model.geometry, where));
      const auto* dictionary = spec.set->at_layer(layer);
      if (dictionary == nullptr || (*dictionary)->read.site != ref->site) {
        return invalid_field(fmt::format("the dictionary '{}' does not read there", spec.set->name),
                             where);
      }
      const json::array* list = entries.if_array();
      if (list == nullptr || (list->empty() && !full_)) {
        return invalid_field("a list of entries is needed", where);
      }
      if (full_) {
        RUDDER_TRY_VOID(reconstruct(*dictionary, spec.select, where, ""));
      }
      std::set<int32_t> seen;
      for (size_t i = 0; i < list->size(); ++i) {
        RUDDER_TRY(const int32_t feature, read_entry((*list)[i], *dictionary, spec.select,
                                                     fmt::format("{}[{}]", where, i)));
        if (!seen.insert(feature).second) {
          return invalid_field(fmt::format("feature {} is clamped twice", feature),
                               fmt::format("{}[{}].feature_idx", where, i));
        }
      }
    }
    return {};
  }

  // The row as a whole; the entries of the same clamp its features. `key` of `path` asks for it.
  Result<void> reconstruct(const std::shared_ptr<const features::Dictionary>& dictionary,
                           const Selector& select, const std::string& path, std::string_view key) {
    OpSpec op;
    op.op = OpName::kFeature;
    op.where = path;
    op.select = select;
    op.clamp.dictionary = dictionary;
    op.clamp.feature = FeatureClamp::kNoFeature;
    op.clamp.full = true;
    RUDDER_TRY_VOID(
        check_encode(op.clamp, context_.model, key.empty() ? path : join_path(path, key)));
    place_clamp(op, ops_);
    return {};
  }

  // The feature that it clamps.
  Result<int32_t> read_entry(const json::value& value,
                             const std::shared_ptr<const features::Dictionary>& dictionary,
                             const Selector& select, const std::string& path) {
    static constexpr std::array<std::string_view, 4> kKeys = {"feature_idx", "kind", "value",
                                                              "only_if_active"};
    const json::object* entry = value.if_object();
    if (entry == nullptr) return invalid_field("an object is needed", path);
    RUDDER_TRY_VOID(check_keys(*entry, kKeys, "an entry", path));
    OpSpec op;
    op.op = OpName::kFeature;
    op.where = path;
    op.select = select;
    FeatureClamp& clamp = op.clamp;
    clamp.dictionary = dictionary;
    clamp.full = full_;
    RUDDER_TRY(clamp.feature, read_feature(*entry, "feature_idx", *dictionary, path));
    RUDDER_TRY(const std::string_view kind, read_text(*entry, "kind", path));
    if (kind != "absolute" && kind != "additive") {
      return invalid_field("one of \"absolute\", \"additive\" is needed", join_path(path, "kind"));
    }
    clamp.edit = kind == "absolute" ? tap::FeatureEdit::kSet : tap::FeatureEdit::kAdd;
    RUDDER_TRY(clamp.value, read_required(*entry, "value", path));
    RUDDER_TRY(clamp.only_if_active, read_bool(*entry, "only_if_active", path));
    RUDDER_TRY_VOID(check_clamp(clamp, context_.model, path));
    place_clamp(op, ops_);
    return clamp.feature;
  }

  const ParseContext& context_;
  const bool full_;
  std::vector<OpSpec>& ops_;
};

}  // namespace

Result<std::shared_ptr<const features::Dictionary>> read_dictionary(const json::object& object,
                                                                    const ParseContext& context,
                                                                    const std::string& path) {
  RUDDER_TRY(const std::string_view name, read_text(object, "dictionary", path));
  const auto set = context.names.find_dictionary(name);
  if (set == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("no dictionary is named '{}'", name),
                join_path(path, "dictionary"));
  }
  const std::string where = join_path(path, "layer");
  const json::value* layer = member(object, "layer");
  if (layer == nullptr) {
    if (set->layers.size() == 1) return set->layers[0];
    return invalid_field(fmt::format("'{}' has dictionaries of {} layers: a layer is needed", name,
                                     set->layers.size()),
                         where);
  }
  RUDDER_TRY(const int32_t number, read_layer(*layer, context.model.geometry, where));
  if (const auto* found = set->at_layer(number)) return *found;
  return invalid_field(fmt::format("'{}' has no dictionary of layer {}", name, number), where);
}

Result<int32_t> read_feature(const json::object& object, std::string_view key,
                             const features::Dictionary& dictionary, const std::string& path) {
  const std::string where = join_path(path, key);
  const json::value* value = member(object, key);
  if (value == nullptr) return invalid_field("the number of a feature is needed", where);
  RUDDER_TRY(const int32_t feature, read_int(*value, where));
  if (feature >= 0 && feature < dictionary.num_features) return feature;
  return invalid_field(
      fmt::format("feature {} of a dictionary with {}", feature, dictionary.num_features), where);
}

Result<void> parse_feature_element(const json::object& element, const ParseContext& context,
                                   const std::string& path, std::vector<OpSpec>& ops) {
  RUDDER_TRY_VOID(check_keys(element, kFeatureFields, "the op 'feature'", path));
  OpSpec spec;
  spec.op = OpName::kFeature;
  spec.where = path;
  FeatureClamp& clamp = spec.clamp;
  RUDDER_TRY(clamp.dictionary, read_dictionary(element, context, path));
  RUDDER_TRY(clamp.full, read_mode(element, path));
  RUDDER_TRY_VOID(read_edit(element, path, clamp));
  RUDDER_TRY_VOID(check_clamp(clamp, context.model, path));
  if (const json::value* select = member(element, "select")) {
    RUDDER_TRY(spec.select, parse_selector(*select, join_path(path, "select")));
  }
  if (const json::value* gate = member(element, "gate")) {
    const std::vector<tap::Point> points = write_points(*clamp.dictionary);
    RUDDER_TRY(const ParsedGate parsed,
               parse_gate(*gate, points, context, join_path(path, "gate")));
    spec.schedule = parsed.schedule;
    const size_t first = ops.size();
    place_clamp(spec, ops);
    for (size_t i = 0; i < points.size(); ++i) ops[first + i].gate = parsed.at(i);
    return {};
  }
  place_clamp(spec, ops);
  return {};
}

Result<void> parse_sae_clamps(const json::value& value, bool full, const ParseContext& context,
                              const std::string& path, std::vector<OpSpec>& ops) {
  const json::array* specs = value.if_array();
  if (specs == nullptr) return invalid_field("a list of clamp specs is needed", path);
  SaeClampParser parser(context, full, ops);
  for (size_t i = 0; i < specs->size(); ++i) {
    RUDDER_TRY_VOID(parser.read((*specs)[i], fmt::format("{}[{}]", path, i)));
  }
  return {};
}

}  // namespace rudder::steer
