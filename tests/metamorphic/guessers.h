// What guesses for a tiny model, on one device or on the ranks of a group.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rudder/exec/device_executor.h"
#include "rudder/model/spec.h"
#include "rudder/step/draft_tree.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::metamorphic {

enum class Guesser : uint8_t {
  kNone,
  kItself,        // a draft model: the same
  kOwnEmbedding,  // draft heads, as testing::TinyHead
  kSharedEmbedding,
  kProduct,
  kMedusa,        // Medusa heads with a product each for their logits
  kSharedMedusa,  // or one for all
  kMedusaTree,    // bushy_tree() of the former
  kAssistant,     // testing::tiny_assistant_spec
  kLookUp,        // prompt lookup, in slots
  kMtp,           // testing::tiny_mtp_spec
};
inline constexpr Guesser kTrainedHeads[] = {Guesser::kOwnEmbedding, Guesser::kSharedEmbedding,
                                            Guesser::kProduct, Guesser::kMedusa,
                                            Guesser::kSharedMedusa};
// On ranks, where stages are alone, trees, an assistant and prompt lookup too.
inline constexpr Guesser kGuessersOnRanks[] = {
    Guesser::kOwnEmbedding, Guesser::kSharedEmbedding, Guesser::kProduct,
    Guesser::kMedusa,       Guesser::kSharedMedusa,    Guesser::kMedusaTree,
    Guesser::kAssistant,    Guesser::kLookUp,          Guesser::kMtp};
// Of guess_cuda_test, whose model they have kernels for.
inline constexpr Guesser kGuessersOnAGpu[] = {Guesser::kAssistant, Guesser::kMtp};
std::string guesser_name(Guesser guesser);

// That runs of a few random sequences have at least: these repeat little.
constexpr uint64_t least_drafts(Guesser guesser) {
  return guesser == Guesser::kLookUp ? 5 : 80;  // random texts repeat little
}
// Whether it can guess for the model.
bool takes_guesser(testing::TinyArch arch, Guesser guesser);
// Whether it can on the last of several stages, whatever their number.
bool runs_in_stages(testing::TinyArch arch, Guesser guesser);
// To a model whose ops and spec are there, a rank's, a stage's or those of a device that is alone
// (of stages to the last); `whole` is the spec of all ranks and stages. `change` makes the tiny
// draft head one that the backend has kernels for; `tree` is what it guesses, empty: what
// add_guesser() of the capacity says.
void add_guesser(exec::DeviceExecutor::Model& model, const model::ModelSpec& whole, Guesser guesser,
                 const std::function<void(model::DraftHeadSpec&)>& change = {},
                 const step::RankedTree& tree = {});
void add_guesser(step::Capacity& capacity, Guesser guesser);
// Guesses of the first four of tiny Medusa heads: three ranks of the first, two of the second
// behind each, and a branch that goes on.
step::RankedTree bushy_tree();
// Of an executor whose heads guess the tree; none: chains.
void add_tree(step::Capacity& capacity, const step::RankedTree& tree);
// To stages of `whole` before they are loaded: what its guesser reads of them.
void join_guesser(std::vector<model::Stage>& stages, const model::ModelSpec& whole,
                  Guesser guesser);

}  // namespace rudder::metamorphic
