// What the readers of dictionary formats share: the configuration beside the weights, hooks, and
// the steps from tensors to a Dictionary. One source a format. Internal to the room; one thread.
//
// A configuration has many fields that say how a dictionary was trained; a reader looks at those
// that change what it computes, and refuses values of them that it does not know.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/features/dictionary.h"
#include "rudder/steer/features/tensor_reader.h"

namespace rudder::steer {

// Where the caller says that a dictionary reads and writes; `write` is `read` unless it is named.
struct DictionaryPoints {
  tap::Point read;
  tap::Point write;
  bool reads_without_gain = false;  // what the norm makes of `read`, before it multiplies
};

// A folder of files, and what the caller said of them.
struct DictionaryFolder {
  std::string path;
  std::optional<DictionaryPoints> points;

  std::string file(std::string_view name) const { return path + "/" + std::string(name); }
  bool has(std::string_view name) const;
};

// A JSON object in a file, read field by field; errors are kInvalidArgument at "file: field".
class ConfigFile {
 public:
  static Result<ConfigFile> open(const std::string& path);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  Result<std::string> text(std::string_view key) const;
  Result<std::string> text_or(std::string_view key, std::string_view absent) const;
  Result<bool> flag(std::string_view key, bool absent) const;
  Result<int32_t> count(std::string_view key) const;  // at least 1
  Result<double> positive(std::string_view key) const;
  // The field is absent, or the number that the tensors have.
  Result<void> check_count(std::string_view key, uint64_t count) const;
  // Refuses a field with another value than the one that this program computes.
  Result<void> check_flag(std::string_view key, bool needed, bool absent) const;
  Result<ConfigFile> object(std::string_view key) const;
  const boost::json::object& fields() const { return *fields_; }

  tl::unexpected<Error> refused(std::string_view key, std::string message) const;
  const std::string& path() const { return path_; }

 private:
  const boost::json::value* find(std::string_view key) const;

  std::string path_;
  std::shared_ptr<const boost::json::object> fields_;
};

// A point as the files of a format name it: TransformerLens's hooks and our own names
// ("blocks.5.hook_resid_post", "resid_post.5"), Hugging Face's modules ("model.layers.5.output").
Result<tap::Point> parse_hook(std::string_view hook, const std::string& where);

// "blocks.5.ln2.hook_normalized" is mlp_in without the norm's gain: the hook of the row with it.
// Nothing where the text is another.
std::optional<std::string> hook_with_gain(std::string_view hook);

// The points of a file that names its hooks; those that the caller named must be the same.
Result<DictionaryPoints> hooked_points(const DictionaryFolder& folder, std::string_view read,
                                       std::string_view write, const std::string& where);
// The points of a file that does not: the caller has to have said them.
Result<DictionaryPoints> named_points(const DictionaryFolder& folder);
// The caller said points, or did not, of files that hold several layers: refuses the former.
Result<void> refuse_points(const DictionaryFolder& folder);

// What most formats have in common.
features::Dictionary make_dictionary(const DictionaryPoints& points, uint64_t num_features,
                                     uint64_t d_in, uint64_t d_out);
// Features in units of their decoder row: its length goes from the decoder into encoder and biases.
// For dictionaries that choose the active features by what they add, in one write.
void fold_decoder_norm(features::Dictionary& dictionary);
// The length of each feature's decoder row, of one write.
std::vector<double> decoder_norms(const features::Dictionary& dictionary);

struct LoadedDictionaries {
  std::string format;
  std::string model = {};
  std::vector<features::Dictionary> layers = {};
};

Result<LoadedDictionaries> load_manifest(const DictionaryFolder& folder);
Result<LoadedDictionaries> load_saelens(const DictionaryFolder& folder);
Result<LoadedDictionaries> load_gemma_scope(const DictionaryFolder& folder);
Result<LoadedDictionaries> load_gemma_scope_2(const DictionaryFolder& folder);
Result<LoadedDictionaries> load_gemma_scope_2_clt(const DictionaryFolder& folder);
Result<LoadedDictionaries> load_llama_scope(const DictionaryFolder& folder);
Result<LoadedDictionaries> load_sparsify(const DictionaryFolder& folder);
Result<LoadedDictionaries> load_circuit_tracer(const DictionaryFolder& folder);
Result<LoadedDictionaries> load_circuit_tracer_clt(const DictionaryFolder& folder);

}  // namespace rudder::steer
