#include "rudder/server/steering/patch_sweep_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "rudder/server/request/field_reader.h"
#include "rudder/server/request/sampling_fields.h"
#include "rudder/server/request/text_prompts.h"
#include "rudder/server/request/tool_fields.h"
#include "rudder/steer/layers.h"
#include "rudder/steer/vectors.h"

namespace rudder::server {
namespace {

namespace json = boost::json;

// An error in an object of the body, whose path begins there.
tl::unexpected<Error> below(const std::string& name, Error error) {
  if (error.where.empty() || error.where.starts_with(name)) {
    return tl::unexpected(std::move(error));
  }
  if (error.message.starts_with(error.where)) error.message.insert(0, name + ".");
  error.where.insert(0, name + ".");
  return tl::unexpected(std::move(error));
}

// A text, token ids, or {"messages": […]} and what else a chat is rendered with.
Result<std::vector<int32_t>> read_sweep_prompt(FieldReader& reader, const char* field,
                                               const GenerationScope& scope) {
  const json::value* value = reader.raw(field);  // which keeps the name
  const std::string name = field;
  if (value == nullptr) return invalid_field("is required", name);
  const auto max_tokens = static_cast<size_t>(scope.limits.max_seq_len - 1);
  PromptText prompt;
  if (const json::object* chat = value->if_object()) {
    FieldReader fields(*chat, name);
    Result<PromptText> rendered =
        render_chat(fields, scope.model, ToolFields(), {.max_tokens = max_tokens});
    if (!rendered) return below(name, rendered.error());
    RUDDER_TRY_VOID(fields.result());
    prompt = std::move(*rendered);
  } else {
    const json::array* ids = value->if_array();
    if (ids != nullptr && !ids->empty() && !ids->front().is_number()) {
      return invalid_field("must be a token id", name + "[0]");
    }
    const json::object body = {{name, *value}};
    FieldReader fields(body, "");
    RUDDER_TRY(auto prompts, read_text_prompts(fields, *scope.model.tokenizer,
                                               {.field = field, .max_tokens = max_tokens}));
    prompt = std::move(prompts.front());
  }
  if (prompt.ids.empty() || prompt.is_cut) {
    return invalid_field(fmt::format("must have 1 to {} tokens", max_tokens), name);
  }
  for (size_t i = 0; i < prompt.ids.size(); ++i) {
    if (prompt.ids[i] >= 0 && prompt.ids[i] < scope.limits.vocab_size) continue;
    return invalid_field(
        fmt::format("must be a token id between 0 and {}", scope.limits.vocab_size - 1),
        fmt::format("{}[{}]", name, i));
  }
  return std::move(prompt.ids);
}

// A token id, or a text that is one token.
Result<int32_t> read_answer(const json::value& value, const GenerationScope& scope,
                            const std::string& path) {
  if (!value.is_string()) {
    RUDDER_TRY(const int32_t token, steer::read_int(value, path));
    if (token >= 0 && token < scope.limits.vocab_size) return token;
    return invalid_field(
        fmt::format("must be a token id between 0 and {}", scope.limits.vocab_size - 1), path);
  }
  const text::EncodeOptions plain = {.add_special_tokens = false};
  RUDDER_TRY(const std::vector<int32_t> ids,
             scope.model.tokenizer->encode(std::string_view(value.get_string()), plain));
  if (ids.size() == 1) return ids.front();
  return invalid_field(fmt::format("must be one token; this text is {}", ids.size()), path);
}

Result<std::vector<int32_t>> read_answers(FieldReader& reader, const GenerationScope& scope) {
  const json::object* object = reader.object("answer");
  RUDDER_TRY_VOID(reader.result());
  if (object == nullptr) {
    return invalid_field(R"(must be an object: {"right": " Paris", "wrong": " Rome"})", "answer");
  }
  FieldReader fields(*object, "answer");
  const json::value* right = fields.raw("right");
  const json::value* wrong = fields.raw("wrong");
  if (right == nullptr) return invalid_field("is required", "answer.right");
  if (const std::vector<std::string> others = fields.ignored(); !others.empty()) {
    return invalid_field("unknown: right and wrong are known", others.front());
  }
  std::vector<int32_t> answers;
  RUDDER_TRY(answers.emplace_back(), read_answer(*right, scope, "answer.right"));
  if (wrong == nullptr) return answers;
  RUDDER_TRY(answers.emplace_back(), read_answer(*wrong, scope, "answer.wrong"));
  if (answers[0] != answers[1]) return answers;
  return invalid_field("must be another token than the right one", "answer.wrong");
}

// {site: layers, …}, as of a capture; ["resid_post", …] with the layers of `layers`.
Result<std::vector<SweepGrid>> read_grids(FieldReader& reader, const tap::Geometry& geometry) {
  const json::object* object = reader.object("sites");
  RUDDER_TRY_VOID(reader.result());
  if (object == nullptr || object->empty()) {
    return invalid_field(R"(must be an object of sites and layers: {"resid_post": "all"})",
                         "sites");
  }
  std::vector<SweepGrid> grids;
  for (const auto& [name, layers] : *object) {
    const std::string path = fmt::format("sites.{}", std::string_view(name));
    const Result<tap::SiteRef> ref = tap::parse_op_site(name);
    if (!ref) return fail(ref.error().code, ref.error().message, path);
    if (ref->layer >= 0) return invalid_field("the layers stand beside the site", path);
    SweepGrid grid;
    grid.site = ref->site;
    RUDDER_TRY(grid.layers, steer::read_layers(layers, grid.site, geometry, path));
    if (grid.layers.empty()) return invalid_field("no layer of this model has the site", path);
    std::ranges::sort(grid.layers);
    if (std::ranges::find(grids, grid.site, &SweepGrid::site) != grids.end()) {
      return invalid_field("is named twice", path);
    }
    grids.push_back(std::move(grid));
  }
  return grids;
}

Result<int32_t> read_position(const json::value& value, int32_t length, bool is_end,
                              const std::string& path) {
  if (is_end && value.is_null()) return length;
  RUDDER_TRY(const int32_t number, steer::read_int(value, path));
  const int32_t position = number < 0 ? length + number : number;
  if (position >= 0 && position < length + (is_end ? 1 : 0)) return position;
  return invalid_field(fmt::format("{} of a prompt of {} tokens", number, length), path);
}

// "all", or a list of positions and of windows [begin, end): each is patched by itself, and once.
Result<std::vector<tap::PositionRange>> read_positions(FieldReader& reader, int32_t length) {
  const json::value* value = reader.raw("positions");
  std::vector<tap::PositionRange> positions;
  if (value == nullptr || *value == "all") {
    for (int32_t i = 0; i < length; ++i) positions.push_back({i, i + 1});
    return positions;
  }
  const json::array* list = value->if_array();
  if (list == nullptr || list->empty() || std::ssize(*list) > kMaxSweepRuns) {
    return invalid_field(R"(must be "all", or a list of positions and of windows [begin, end])",
                         "positions");
  }
  std::set<std::pair<int32_t, int32_t>> known;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = fmt::format("positions[{}]", i);
    const json::array* window = (*list)[i].if_array();
    tap::PositionRange& range = positions.emplace_back();
    if (window == nullptr) {
      RUDDER_TRY(range.begin, read_position((*list)[i], length, false, path));
      range.end = range.begin + 1;
    } else {
      if (window->size() != 2) return invalid_field("a window is [begin, end]", path);
      RUDDER_TRY(range.begin, read_position((*window)[0], length, false, path + "[0]"));
      RUDDER_TRY(range.end, read_position((*window)[1], length, true, path + "[1]"));
      if (range.end <= range.begin || range.end - range.begin > kMaxSweepWindow) {
        return invalid_field(fmt::format("a window has 1 to {} positions", kMaxSweepWindow), path);
      }
    }
    if (!known.emplace(range.begin, range.end).second) {
      return invalid_field("is named twice", path);
    }
  }
  return positions;
}

// All that it will cost, before anything is spent.
Result<void> check_work(const PatchSweepRequest& sweep) {
  const int64_t measured = sweep.num_cells() + 2;
  const int64_t runs = 1 + measured * std::ssize(sweep.answers);
  const int64_t tokens = runs * (std::ssize(sweep.clean) + 1);
  if (runs <= kMaxSweepRuns && tokens <= kMaxSweepTokens) return {};
  return invalid_field(
      fmt::format("{} cells are {} runs of {} tokens; a sweep has at most {} runs and {} tokens",
                  sweep.num_cells(), runs, tokens, kMaxSweepRuns, kMaxSweepTokens),
      "positions");
}

// The rows of the clean prompt, before what steers them.
Result<std::shared_ptr<const steer::capture::CaptureSpec>> capture_of(
    const std::vector<SweepGrid>& grids, steer::capture::Dispatcher& captures) {
  json::object sites;
  for (const SweepGrid& grid : grids) {
    sites[tap::site_name(grid.site)] = json::value_from(grid.layers);
  }
  const json::value field = {{"response",
                              {{"sites", std::move(sites)},
                               {"positions", "all_prompt"},
                               {"values", json::array{"rows"}},
                               {"dtype", "float32"}}}};
  return captures.spec(&field);
}

Result<PatchSweepRequest> read_sweep(FieldReader& reader, const GenerationScope& scope) {
  if (scope.taps.steering == nullptr || scope.taps.captures == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "a sweep needs a server that was started with --enable-steering and "
                "--capture-memory-mb",
                "sites");
  }
  PatchSweepRequest sweep;
  RUDDER_TRY(sweep.grids, read_grids(reader, scope.limits.geometry));
  RUDDER_TRY(sweep.clean, read_sweep_prompt(reader, "clean", scope));
  RUDDER_TRY(sweep.corrupted, read_sweep_prompt(reader, "corrupted", scope));
  if (sweep.clean.size() != sweep.corrupted.size()) {
    return invalid_field(
        fmt::format("has {} tokens and the clean prompt {}: positions must mean the same in both",
                    sweep.corrupted.size(), sweep.clean.size()),
        "corrupted");
  }
  RUDDER_TRY(sweep.answers, read_answers(reader, scope));
  RUDDER_TRY(sweep.positions, read_positions(reader, static_cast<int32_t>(sweep.clean.size())));
  reader.boolean("svg", &sweep.with_svg);
  RUDDER_TRY_VOID(reader.result());
  if (const std::vector<std::string> others = reader.ignored(); !others.empty()) {
    return invalid_field("is not a field of a sweep", others.front());
  }
  RUDDER_TRY_VOID(check_work(sweep));
  RUDDER_TRY(sweep.capture, capture_of(sweep.grids, *scope.taps.captures));
  sweep.global = scope.taps.steering->global();
  return sweep;
}

}  // namespace

int64_t PatchSweepRequest::num_cells() const {
  int64_t layers = 0;
  for (const SweepGrid& grid : grids) layers += std::ssize(grid.layers);
  return layers * std::ssize(positions);
}

SweepCell PatchSweepRequest::cell(int64_t number) const {
  int64_t row = number / std::ssize(positions);
  const tap::PositionRange range = positions[static_cast<size_t>(number % std::ssize(positions))];
  for (const SweepGrid& grid : grids) {
    if (row < std::ssize(grid.layers)) {
      return {{grid.layers[static_cast<size_t>(row)], grid.site}, range};
    }
    row -= std::ssize(grid.layers);
  }
  return {};
}

tl::expected<PatchSweepRequest, ApiError> parse_patch_sweep(std::string_view body,
                                                            const GenerationScope& scope) {
  const auto object = parse_body(body);
  if (!object) return tl::unexpected(object.error());
  FieldReader reader(*object, "");
  auto model = read_model(reader, scope.model);
  if (!model) return tl::unexpected(model.error());
  std::string id = scope.request_id;
  read_request_id(reader, scope.is_named, &id);
  const std::string salt = read_cache_salt(reader);
  Result<PatchSweepRequest> sweep = read_sweep(reader, scope);
  if (!sweep) return tl::unexpected(to_api_error(sweep.error()));
  sweep->id = "sweep-" + id;
  sweep->model = std::move(model->name);
  sweep->adapter = std::move(model->adapter);
  sweep->tenant = scope.tenant;
  sweep->cache_salt = scope.keys.cache_salt(scope.tenant, salt);
  return std::move(*sweep);
}

}  // namespace rudder::server
