// Which files of a repository a server needs: configuration, tokenizer, templates, and weights as
// safetensors; or a GGUF file, where one is named. Nothing else is ever fetched: pickles and code
// are not even asked for. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rudder/hub/listing.h"

namespace rudder::hub {

// All that is wanted but the weights, in order of their paths.
std::vector<RemoteFile> select_texts(const std::vector<RemoteFile>& listing);

// The index of the shards where the weights are in several files; null: they are not.
const RemoteFile* find_weight_index(const std::vector<RemoteFile>& listing);

// The weights: model.safetensors, or the shards that the index lists (`index_json`, of
// find_weight_index), or what else there is of safetensors. kNotFound says what the repository has
// in place of such weights, and what to do.
Result<std::vector<RemoteFile>> select_weights(const std::vector<RemoteFile>& listing,
                                               std::string_view index_json,
                                               const std::string& repository);

// The GGUF file that ends with the name of a quantisation, in any case of letters ("q4_k_m" of
// Demo-Q4_K_M.gguf or of Q4_K_M/Demo-Q4_K_M-00001-of-00002.gguf), or whose folder does where no
// file is called so; of a split one all parts in turn. One with the very letters goes before
// others. UD-Q4_K_XL is taken for Q4_K_XL where there is no other and `is_all`: the listing has
// all that the repository has. kNotFound names the files that there are.
Result<std::vector<RemoteFile>> select_gguf(const std::vector<RemoteFile>& listing,
                                            std::string_view quant, const std::string& repository,
                                            bool is_all = true);

// The shards that an index lists, each once, sorted. kCorruptFile.
Result<std::vector<std::string>> shards_of_index(std::string_view index_json);

}  // namespace rudder::hub
