#include "rudder/draft/settings.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <optional>
#include <string_view>

#include "rudder/base/json.h"
#include "rudder/draft/ngram_proposer.h"
#include "rudder/draft/token_tree.h"

namespace rudder::draft {
namespace {

namespace json = boost::json;

constexpr int32_t kDefaultNgram = 5;         // as in vLLM, where neither bound is given
constexpr int32_t kDefaultNgramTokens = 16;  // the scheduler plans fewer where they do not pay
constexpr int32_t kDefaultModelTokens = 4;
constexpr int32_t kMaxNgram = 32;
constexpr std::string_view kNgramOnDevice = "ngram_gpu";  // vLLM's name
constexpr int32_t kMaxTreeDepth = 128;
constexpr int32_t kMaxCachedRequests = 1 << 20;
constexpr double kMaxSpecFactor = 16;
constexpr std::string_view kTreeKey = "speculative_token_tree";
constexpr std::string_view kSuffixTreeKey = "suffix_decoding_use_tree_spec";  // as Arctic's
// By vLLM's names.
constexpr std::pair<std::string_view, Method> kFolderMethods[] = {
    {"draft_model", Method::kDraftModel},
    {"eagle", Method::kEagle},
    {"eagle3", Method::kEagle3},
    {"medusa", Method::kMedusa},
    {"mtp", Method::kAssistant}};
constexpr std::string_view kMethods =
    "ngram, ngram_gpu, suffix, draft_model, eagle, eagle3, medusa and mtp";
constexpr std::string_view kNoLookahead =
    "lookahead decoding is not offered any more: use suffix or ngram for text that repeats, and a "
    "draft_model, or heads (eagle3, medusa), for other text";

// What the flags or the JSON say. A number below 0 was not given, nor an empty method.
struct Asked {
  std::string method;
  std::string model = {};
  std::string token_tree = {};
  std::optional<bool> suffix_trees = {};
  double num_speculative_tokens = -1;
  double prompt_lookup_min = -1;
  double prompt_lookup_max = -1;
  double max_tree_depth = -1;
  double max_cached_requests = -1;
  double max_spec_factor = -1;
  double min_token_prob = -1;
};

struct Key {
  std::string_view name;
  double Asked::*field;
  Method of;  // kNone: of every method
  double least, most;
  bool is_whole;
};

constexpr Key kKeys[] = {
    {"num_speculative_tokens", &Asked::num_speculative_tokens, Method::kNone, 1,
     kMaxSpeculativeTokens, true},
    {"prompt_lookup_min", &Asked::prompt_lookup_min, Method::kNgram, 1, kMaxNgram, true},
    {"prompt_lookup_max", &Asked::prompt_lookup_max, Method::kNgram, 1, kMaxNgram, true},
    {"suffix_decoding_max_tree_depth", &Asked::max_tree_depth, Method::kSuffix, 2, kMaxTreeDepth,
     true},
    {"suffix_decoding_max_cached_requests", &Asked::max_cached_requests, Method::kSuffix, 0,
     kMaxCachedRequests, true},
    {"suffix_decoding_max_spec_factor", &Asked::max_spec_factor, Method::kSuffix, 0, kMaxSpecFactor,
     false},
    {"suffix_decoding_min_token_prob", &Asked::min_token_prob, Method::kSuffix, 0, 1, false},
};

tl::unexpected<Error> bad(std::string message, std::string_view key) {
  return fail(ErrorCode::kInvalidArgument, std::move(message),
              fmt::format("speculative-config.{}", key));
}

Result<Method> read_method(const std::string& name) {
  if (name == "ngram" || name == kNgramOnDevice) return Method::kNgram;
  if (name == "suffix") return Method::kSuffix;
  if (name == "lookahead") return bad(std::string(kNoLookahead), "method");
  for (const auto& [known, method] : kFolderMethods) {
    if (name == known) return method;
  }
  return bad(fmt::format("the method '{}' is not supported: {} are", name, kMethods), "method");
}

Result<void> read_key(const json::value& value, const Key& key, Asked* asked) {
  const bool is_whole = value.is_int64() || value.is_uint64();
  if (!is_whole && (key.is_whole || !value.is_double())) {
    return bad(fmt::format("must be {}", key.is_whole ? "an integer" : "a number"), key.name);
  }
  const auto number = value.to_number<double>();
  if (!(number >= key.least && number <= key.most)) {
    return bad(fmt::format("must be from {} to {}", key.least, key.most), key.name);
  }
  asked->*key.field = number;
  return {};
}

std::string known_keys() {
  std::string names = fmt::format("method, model, {}, {}", kTreeKey, kSuffixTreeKey);
  for (const Key& key : kKeys) names += fmt::format(", {}", key.name);
  return names;
}

Result<Asked> read_config(const std::string& text) {
  RUDDER_TRY(const json::value value, parse_json(text, "--speculative-config"));
  if (!value.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "must be a JSON object", "speculative-config");
  }
  const json::object& config = value.get_object();
  const json::value* method = config.if_contains("method");
  if (method == nullptr) return bad(fmt::format("is missing: {}", kMethods), "method");
  if (!method->is_string()) return bad("must be a string", "method");
  Asked asked;
  asked.method = method->get_string();
  RUDDER_TRY_VOID(read_method(asked.method));  // before keys that another method may have
  for (const auto& [name, field] : config) {
    if (name == "method") continue;
    if (name == "model") {
      if (!field.is_string() || field.get_string().empty()) {
        return bad("must be the folder of a model", name);
      }
      asked.model = field.get_string();
      continue;
    }
    if (std::string_view(name) == kTreeKey) {
      if (!field.is_string()) return bad("must be a string with a list of tuples", name);
      asked.token_tree = field.get_string();
      if (asked.token_tree.empty()) return bad("must not be empty", name);
      continue;
    }
    if (std::string_view(name) == kSuffixTreeKey) {
      if (!field.is_bool()) return bad("must be true or false", name);
      asked.suffix_trees = field.get_bool();
      continue;
    }
    const Key* known = nullptr;
    for (const Key& key : kKeys) {
      if (key.name == std::string_view(name)) known = &key;
    }
    if (known == nullptr) {
      return bad(fmt::format("is not known; known are {}", known_keys()), name);
    }
    RUDDER_TRY_VOID(read_key(field, *known, &asked));
  }
  return asked;
}

Result<void> check_pairs(const Asked& asked, Method method) {
  for (const Key& key : kKeys) {
    if (asked.*key.field < 0 || key.of == Method::kNone || key.of == method) continue;
    return bad(fmt::format("is not of the method '{}'", asked.method), key.name);
  }
  if (asked.suffix_trees && method != Method::kSuffix) {
    return bad(fmt::format("is not of the method '{}'", asked.method), kSuffixTreeKey);
  }
  if (asked.model.empty() == has_model(method)) {
    return bad(asked.model.empty() ? "is missing: the folder of what guesses"
                                   : fmt::format("is not of the method '{}'", asked.method),
               "model");
  }
  if (asked.prompt_lookup_max >= 0 && asked.prompt_lookup_min > asked.prompt_lookup_max) {
    return bad(fmt::format("{} is above prompt_lookup_max {}", asked.prompt_lookup_min,
                           asked.prompt_lookup_max),
               "prompt_lookup_min");
  }
  return {};
}

bool takes_tree(Method method) {
  return method == Method::kDraftModel || method == Method::kEagle || method == Method::kEagle3 ||
         method == Method::kMedusa;
}

// Of models and heads: the tree, and as many drafts.
Result<void> read_tree(const Asked& asked, Speculation* out) {
  if (asked.token_tree.empty()) return {};
  if (!takes_tree(out->method)) {
    return bad(
        fmt::format("is not of the method '{}': draft_model, eagle, eagle3 and medusa take it",
                    asked.method),
        kTreeKey);
  }
  Result<step::RankedTree> tree = read_token_tree(asked.token_tree);
  if (!tree) return bad(tree.error().message, kTreeKey);
  out->tree = *std::move(tree);
  const int32_t size = out->tree.tree.size();
  if (asked.num_speculative_tokens >= 0 && asked.num_speculative_tokens != size) {
    return bad(fmt::format("must be {}, the drafts of {}, or left out", size, kTreeKey),
               "num_speculative_tokens");
  }
  out->num_speculative_tokens = size;
  return {};
}

int32_t given(double number, int32_t otherwise) {
  return number < 0 ? otherwise : static_cast<int32_t>(number);
}

}  // namespace

std::span<const std::pair<std::string_view, Method>> folder_methods() {
  return kFolderMethods;
}

void SpeculativeSettings::declare(SettingsTable& table) {
  table.section("draft");
  table.add("speculative-config", &config,
            "Speculation as a JSON object with vLLM's keys: method (ngram, ngram_gpu, suffix, "
            "draft_model, eagle, eagle3, medusa or mtp), model (the folder of what "
            "guesses: a smaller model for draft_model, a head for eagle and eagle3, heads for "
            "medusa, an assistant for mtp; without it mtp runs the MTP head of the model's own "
            "checkpoint), "
            "num_speculative_tokens, speculative_token_tree (of a model or heads, as \"[(0,), "
            "(1,), (0, 0)]\"), prompt_lookup_min, prompt_lookup_max, "
            "suffix_decoding_max_tree_depth, suffix_decoding_max_cached_requests, "
            "suffix_decoding_max_spec_factor, suffix_decoding_min_token_prob, "
            "suffix_decoding_use_tree_spec (true or false; left out: where a step takes trees).");
  table.add_choice(
      "speculative-method", &method,
      {"none", "ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mtp"},
      "Guess tokens and verify several in one step: ngram looks the last tokens up in "
      "prompt and output, ngram_gpu does so on the device without the host, suffix counts what "
      "followed them; a draft model, an EAGLE or "
      "EAGLE-3 head, Medusa heads or (mtp) an assistant guess from --speculative-model; without "
      "one mtp takes the MTP head of the model's own checkpoint. The text is the same without.",
      {{"lookahead", std::string(kNoLookahead)}});
  table.add("speculative-model", &model,
            "The folder of what guesses: a smaller model for draft_model, a head for eagle and "
            "eagle3, heads for medusa, an assistant for mtp (none: the model's own MTP head).");
  table.add("num-speculative-tokens", &num_tokens, 0, kMaxSpeculativeTokens,
            "Tokens guessed for a sequence in one step at most; fewer where they do not pay; 0 "
            "takes the method's default: 16 for ngram, the depth of the tree for suffix, 4 for a "
            "model and heads.");
  table.add("prompt-lookup-min", &prompt_lookup_min, 0, kMaxNgram,
            "Least tokens that ngram matches; 0 takes --prompt-lookup-max, or 5 without it.");
  table.add("prompt-lookup-max", &prompt_lookup_max, 0, kMaxNgram,
            "Most tokens that ngram matches; 0 takes --prompt-lookup-min, or 5 without it.");
  table.add("speculative-memory-mb", &memory_mb, 1, 1 << 20,
            "MiB of the host for what guesses are made from: the texts or n-grams of running "
            "sequences, and as many again for finished outputs where suffix keeps any.");
}

Result<Speculation> SpeculativeSettings::resolve() const {
  Asked asked = {.method = method, .model = model};
  if (num_tokens > 0) asked.num_speculative_tokens = num_tokens;
  if (prompt_lookup_min > 0) asked.prompt_lookup_min = prompt_lookup_min;
  if (prompt_lookup_max > 0) asked.prompt_lookup_max = prompt_lookup_max;
  const bool has_method = method != "none";
  const bool has_plain = has_method || !model.empty() || num_tokens > 0 || prompt_lookup_min > 0 ||
                         prompt_lookup_max > 0;
  if (!config.empty()) {
    if (has_plain) {
      return fail(ErrorCode::kInvalidArgument,
                  "stands beside plain flags that say the same: one of the two",
                  "speculative-config");
    }
    RUDDER_TRY(asked, read_config(config));
  } else if (!has_method) {
    if (!has_plain) return Speculation();
    return fail(ErrorCode::kInvalidArgument, fmt::format("is missing: {}", kMethods),
                "speculative-method");
  }
  RUDDER_TRY(Method of, read_method(asked.method));
  if (of == Method::kAssistant && asked.model.empty()) of = Method::kMtp;
  RUDDER_TRY_VOID(check_pairs(asked, of));
  Speculation out;
  out.method = of;
  out.max_bytes = memory_mb << 20;
  out.num_speculative_tokens = given(asked.num_speculative_tokens, kDefaultModelTokens);
  RUDDER_TRY_VOID(read_tree(asked, &out));
  if (has_model(of) || of == Method::kMtp) {
    out.model = asked.model;
    return out;
  }
  if (of == Method::kNgram) {
    const int32_t max =
        given(asked.prompt_lookup_max, given(asked.prompt_lookup_min, kDefaultNgram));
    out.prompt_lookup_max = max;
    out.prompt_lookup_min = given(asked.prompt_lookup_min, max);
    out.on_device = asked.method == kNgramOnDevice;
    out.num_speculative_tokens = given(asked.num_speculative_tokens, kDefaultNgramTokens);
    return out;
  }
  SuffixSettings& suffix = out.suffix;
  suffix.max_tree_depth = given(asked.max_tree_depth, suffix.max_tree_depth);
  suffix.max_cached_requests = given(asked.max_cached_requests, suffix.max_cached_requests);
  if (asked.max_spec_factor >= 0) suffix.max_spec_factor = asked.max_spec_factor;
  if (asked.min_token_prob >= 0) suffix.min_token_prob = asked.min_token_prob;
  suffix.makes_trees = asked.suffix_trees.value_or(true);
  if (asked.suffix_trees.value_or(false)) out.tree_key = kSuffixTreeKey;
  out.num_speculative_tokens = given(asked.num_speculative_tokens, suffix.max_tree_depth);
  return out;
}

std::unique_ptr<sched::DraftProposer> make_proposer(const Speculation& speculation) {
  if (speculation.method == Method::kNgram) {
    return std::make_unique<NgramProposer>(speculation.prompt_lookup_min,
                                           speculation.prompt_lookup_max, speculation.max_bytes);
  }
  if (speculation.method == Method::kSuffix) {
    return std::make_unique<SuffixProposer>(speculation.suffix, speculation.max_bytes);
  }
  return nullptr;
}

}  // namespace rudder::draft
