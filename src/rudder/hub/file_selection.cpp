#include "rudder/hub/file_selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cctype>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "rudder/base/json.h"

namespace rudder::hub {
namespace json = boost::json;

namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr size_t kMaxShards = 10'000;
constexpr int64_t kMaxTextBytes = int64_t{256} << 20;  // as the reader of a checkpoint has it

bool is_top_level(std::string_view path) {
  return path.find('/') == std::string_view::npos;
}

// Templates beside the one that is taken without a name.
bool is_further_template(std::string_view path) {
  constexpr std::string_view kFolder = "additional_chat_templates/";
  return path.starts_with(kFolder) && path.ends_with(".jinja") &&
         is_top_level(path.substr(kFolder.size()));
}

// Of embedding models: modules.json names folders as 1_Pooling, each with a config.json.
bool is_module_config(std::string_view path) {
  const size_t slash = path.find('/');
  return slash != std::string_view::npos && path.substr(slash) == "/config.json" &&
         path.front() >= '0' && path.front() <= '9';
}

bool is_wanted_text(std::string_view path) {
  constexpr std::array<std::string_view, 3> kNames = {"merges.txt", "vocab.txt", "tokenizer.model"};
  if (!is_top_level(path)) return is_further_template(path) || is_module_config(path);
  if (path.ends_with(".jinja") || path.ends_with(".tiktoken")) return true;
  // An index of weights is one of weights that are not fetched, but for its own kind.
  if (path.ends_with(".index.json")) return path == kIndex;
  return path.ends_with(".json") || std::find(kNames.begin(), kNames.end(), path) != kNames.end();
}

bool is_weight_file(std::string_view path) {
  return is_top_level(path) && path.ends_with(".safetensors");
}

const RemoteFile* find_file(const std::vector<RemoteFile>& listing, std::string_view path) {
  const auto at = std::find_if(listing.begin(), listing.end(),
                               [&](const RemoteFile& file) { return file.path == path; });
  return at == listing.end() ? nullptr : &*at;
}

bool has_suffix(const std::vector<RemoteFile>& listing,
                std::initializer_list<std::string_view> suffixes) {
  return std::any_of(listing.begin(), listing.end(), [&](const RemoteFile& file) {
    return std::any_of(suffixes.begin(), suffixes.end(), [&](std::string_view suffix) {
      return std::string_view(file.path).ends_with(suffix);
    });
  });
}

// A GGUF file without the ending that says which part of it this is.
struct GgufName {
  std::string whole;  // "Q4_K_M/Demo-Q4_K_M"
  int part = 1;
  int parts = 1;
};

std::optional<GgufName> gguf_name(std::string_view path) {
  constexpr std::string_view kSuffix = ".gguf";
  constexpr size_t kPart = std::string_view("-00001-of-00002").size();
  if (!path.ends_with(kSuffix) || !is_safe_path(path)) return std::nullopt;
  const std::string_view base = path.substr(path.rfind('/') + 1);
  // Encoders of images, and statistics that a quantisation was made with.
  if (base.starts_with("mmproj") || base.starts_with("imatrix")) return std::nullopt;
  path.remove_suffix(kSuffix.size());
  GgufName name{.whole = std::string(path)};
  if (path.size() <= kPart) return name;
  const std::string ending(path.substr(path.size() - kPart));
  int read = 0;
  if (std::sscanf(ending.c_str(), "-%5d-of-%5d%n", &name.part, &name.parts, &read) == 2 &&
      read == static_cast<int>(kPart) && name.part >= 1 && name.part <= name.parts) {
    name.whole.resize(name.whole.size() - kPart);
  } else {
    name.part = name.parts = 1;
  }
  return name;
}

// The first of them, for people.
std::string gguf_names(const std::vector<RemoteFile>& listing) {
  std::set<std::string> names;
  for (const RemoteFile& file : listing) {
    if (const auto name = gguf_name(file.path)) names.insert(name->whole);
  }
  constexpr size_t kMost = 24;
  std::string out;
  size_t count = 0;
  for (const std::string& name : names) {
    if (++count > kMost) return out + ", ...";
    out += (out.empty() ? "" : ", ") + name;
  }
  return out.empty() ? "none" : out;
}

// How well a quantisation names a file, best first.
enum class QuantMatch : uint8_t { kEnding, kEndingInOtherCase, kFolder, kDynamic, kNone };

// Quantisations whose layers differ are called so, and are others: UD-Q4_K_XL is not Q4_K_XL.
bool is_dynamic(std::string_view before) {
  constexpr std::string_view kMark = "UD-";
  if (!before.ends_with(kMark)) return false;
  before.remove_suffix(kMark.size());
  return before.empty() || std::string_view("-._").find(before.back()) != std::string_view::npos;
}

// "Demo-Q4_K_M" ends with q4_k_m, and "Demo-IQ4_K_M" does not.
QuantMatch match_ending(std::string_view text, std::string_view quant) {
  if (text.size() < quant.size()) return QuantMatch::kNone;
  const std::string_view ending = text.substr(text.size() - quant.size());
  const bool is_same = std::equal(ending.begin(), ending.end(), quant.begin(), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  });
  const bool is_part =
      text.size() == quant.size() ||
      std::string_view("-._").find(text[text.size() - quant.size() - 1]) != std::string_view::npos;
  if (!is_same || !is_part) return QuantMatch::kNone;
  if (is_dynamic(text.substr(0, text.size() - quant.size()))) return QuantMatch::kDynamic;
  return ending == quant ? QuantMatch::kEnding : QuantMatch::kEndingInOtherCase;
}

// Of "Q4_K_M/Demo" the folder says it.
QuantMatch match_quant(std::string_view name, std::string_view quant) {
  const size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return match_ending(name, quant);
  const QuantMatch of_file = match_ending(name.substr(slash + 1), quant);
  if (of_file < QuantMatch::kFolder) return of_file;
  const std::string_view folders = name.substr(0, slash);
  const QuantMatch of_folder = match_ending(folders.substr(folders.rfind('/') + 1), quant);
  return of_folder < QuantMatch::kFolder ? QuantMatch::kFolder : std::min(of_file, of_folder);
}

tl::unexpected<Error> no_weights(const std::vector<RemoteFile>& listing,
                                 const std::string& repository) {
  std::string why = "no weights at all; is it a model?";
  if (has_suffix(listing, {".gguf"})) {
    why = fmt::format("GGUF weights alone; name one of them as {}:QUANT: {}", repository,
                      gguf_names(listing));
  } else if (has_suffix(listing, {".bin", ".pt", ".pth", ".ckpt"})) {
    why =
        "pickled weights alone, which can run code and are never loaded; look for a repository "
        "or a revision (--revision refs/pr/N) with safetensors, or convert them: "
        "from_pretrained(...).save_pretrained(FOLDER) of transformers, then name FOLDER";
  } else if (has_suffix(listing, {".safetensors"})) {
    why = "safetensors in folders of it alone, and none where models have them";
  }
  return fail(ErrorCode::kNotFound, fmt::format("{} has {}", repository, why), "model");
}

}  // namespace

Result<std::vector<RemoteFile>> select_gguf(const std::vector<RemoteFile>& listing,
                                            std::string_view quant, const std::string& repository,
                                            bool is_all) {
  // By the whole name and the number of its parts; some have the same file whole and in parts.
  std::map<std::pair<std::string, int>, std::map<int, RemoteFile>> found;
  QuantMatch best = QuantMatch::kNone;
  for (const RemoteFile& file : listing) {
    const auto name = gguf_name(file.path);
    const QuantMatch match = name ? match_quant(name->whole, quant) : QuantMatch::kNone;
    if (match == QuantMatch::kNone || match > best) continue;
    if (match == QuantMatch::kDynamic && !is_all) continue;
    if (match < best) found.clear();
    best = match;
    found[{name->whole, name->parts}].emplace(name->part, file);
  }
  const auto is_complete = [](const auto& of) {
    return static_cast<int>(of.second.size()) == of.first.second;
  };
  // Of one name, what is complete in the fewest parts.
  std::map<std::string, const decltype(found)::value_type*> by_name;
  for (const auto& of : found) {
    const auto*& taken = by_name[of.first.first];
    if (taken == nullptr || (!is_complete(*taken) && is_complete(of))) taken = &of;
  }
  if (by_name.size() != 1) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{} has {} GGUF file whose name ends with '{}'; it has {}", repository,
                            found.empty() ? "no" : "more than one", quant, gguf_names(listing)),
                "model");
  }
  const auto& [name, files] = *by_name.begin()->second;
  const auto& [whole, parts] = name;
  if (static_cast<int>(files.size()) != parts) {
    return fail(
        ErrorCode::kNotFound,
        fmt::format("{} has {} of the {} parts of {}", repository, files.size(), parts, whole),
        "model");
  }
  std::vector<RemoteFile> out;
  for (const auto& [part, file] : files) out.push_back(file);
  return out;
}

std::vector<RemoteFile> select_texts(const std::vector<RemoteFile>& listing) {
  const bool is_single = find_file(listing, kSingle) != nullptr;
  std::vector<RemoteFile> texts;
  for (const RemoteFile& file : listing) {
    const bool is_idle_index = is_single && file.path == kIndex;
    if (is_wanted_text(file.path) && file.size <= kMaxTextBytes && !is_idle_index) {
      texts.push_back(file);
    }
  }
  std::sort(texts.begin(), texts.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  return texts;
}

const RemoteFile* find_weight_index(const std::vector<RemoteFile>& listing) {
  return find_file(listing, kSingle) == nullptr ? find_file(listing, kIndex) : nullptr;
}

Result<std::vector<std::string>> shards_of_index(std::string_view index_json) {
  const auto corrupt = [](std::string message) {
    return fail(ErrorCode::kCorruptFile, std::move(message), std::string(kIndex));
  };
  auto parsed = parse_json(index_json, kIndex, {.max_depth = 8, .max_bytes = kMaxTextBytes});
  if (!parsed) return corrupt(parsed.error().message);
  const json::object* top = parsed->if_object();
  const json::value* map = top == nullptr ? nullptr : top->if_contains("weight_map");
  if (map == nullptr || !map->is_object()) return corrupt("'weight_map' is not an object");
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->get_object()) {
    const std::string_view name =
        shard.is_string() ? std::string_view(shard.get_string()) : std::string_view();
    if (!is_weight_file(name) || !is_safe_path(name)) {
      return corrupt("'weight_map' names a file that is no safetensors file of the repository");
    }
    shards.emplace(name);
    if (shards.size() > kMaxShards) return corrupt(fmt::format("over {} shards", kMaxShards));
  }
  if (shards.empty()) return corrupt("'weight_map' lists no tensor");
  return std::vector<std::string>(shards.begin(), shards.end());
}

Result<std::vector<RemoteFile>> select_weights(const std::vector<RemoteFile>& listing,
                                               std::string_view index_json,
                                               const std::string& repository) {
  if (const RemoteFile* single = find_file(listing, kSingle)) {
    return std::vector<RemoteFile>{*single};
  }
  std::vector<RemoteFile> weights;
  if (find_weight_index(listing) != nullptr) {
    RUDDER_TRY(const std::vector<std::string> shards, shards_of_index(index_json));
    for (const std::string& shard : shards) {
      const RemoteFile* file = find_file(listing, shard);
      if (file == nullptr) {
        return fail(ErrorCode::kCorruptFile,
                    fmt::format("its index names {}, which {} does not have", shard, repository),
                    std::string(kIndex));
      }
      weights.push_back(*file);
    }
    return weights;
  }
  // Draft heads and other parts have names of their own; a second copy of a model is left out.
  for (const RemoteFile& file : listing) {
    if (is_weight_file(file.path) && !file.path.starts_with("consolidated"))
      weights.push_back(file);
  }
  if (weights.empty()) return no_weights(listing, repository);
  return weights;
}

}  // namespace rudder::hub
