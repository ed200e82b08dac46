#include "metamorphic/guessers.h"

#include <algorithm>
#include <memory>

#include "metamorphic/harness.h"
#include "rudder/base/check.h"
#include "rudder/exec/assistant_proposer.h"
#include "rudder/exec/head_proposer.h"
#include "rudder/exec/look_up_proposer.h"
#include "rudder/exec/medusa_proposer.h"
#include "rudder/exec/model_proposer.h"
#include "rudder/exec/mtp_proposer.h"
#include "rudder/exec/pass_proposer.h"
#include "rudder/model/shard.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyHead;

constexpr step::LookUp kLookedUp = {.min_n = 1, .max_n = 3};

bool is_medusa(Guesser guesser) {
  return guesser == Guesser::kMedusa || guesser == Guesser::kSharedMedusa ||
         guesser == Guesser::kMedusaTree;
}

bool has_kv(Guesser guesser) {
  return guesser != Guesser::kNone && guesser != Guesser::kLookUp &&
         guesser != Guesser::kAssistant && !is_medusa(guesser);
}

TinyHead tiny_head(Guesser guesser) {
  switch (guesser) {
    case Guesser::kOwnEmbedding:
      return TinyHead::kOwnEmbedding;
    case Guesser::kSharedEmbedding:
      return TinyHead::kSharedEmbedding;
    default:
      RUDDER_CHECK(guesser == Guesser::kProduct);
      return TinyHead::kProduct;
  }
}

// Of a draft head for a model: as many as tiny models of its size have.
int32_t head_heads(const model::ModelSpec& whole) {
  const bool is_wide = std::ranges::any_of(whole.layers, [](const model::LayerSpec& layer) {
    const model::Attention* const attention = model::attention_of(layer);
    const model::LatentAttention* const latent = model::latent_of(layer);
    return (attention != nullptr && attention->num_heads > testing::kTinyHeads) ||
           (latent != nullptr && latent->shape.num_heads > testing::kTinyHeads);
  });
  return is_wide ? 8 : testing::kTinyHeads;
}

}  // namespace

std::string guesser_name(Guesser guesser) {
  constexpr const char* kNames[] = {
      "nobody",        "itself",      "own_embedding", "shared_embedding", "product", "medusa",
      "shared_medusa", "medusa_tree", "assistant",     "look_up",          "mtp"};
  return kNames[static_cast<size_t>(guesser)];
}

bool takes_guesser(testing::TinyArch arch, Guesser guesser) {
  const model::ModelSpec spec = testing::tiny_spec(arch);
  if (guesser == Guesser::kMedusaTree) return model::runs_trees(spec);
  if (guesser == Guesser::kAssistant) return testing::takes_assistant(spec);
  if (guesser == Guesser::kMtp) return model::mtp_layers(spec).has_value();
  if (!has_kv(guesser)) return true;
  const bool keeps_every_token = std::ranges::any_of(
      spec.layers,
      [](const model::LayerSpec& layer) { return model::kv_geometry(layer).window == 0; });
  if (guesser == Guesser::kItself) {
    return keeps_every_token && !model::keeps_states(spec) &&
           exec::draft_kv_layout(spec, ops::KvFormat{}, kRoomy.block_size).has_value();
  }
  return keeps_every_token && testing::takes_head(spec, tiny_head(guesser));
}

// An assistant reads the last layer of attention of each kind, which are then all on the last
// stage.
bool runs_in_stages(testing::TinyArch arch, Guesser guesser) {
  if (guesser == Guesser::kAssistant) {
    return !testing::has_windows(arch) &&
           model::attention_of(testing::tiny_spec(arch).layers.back()) != nullptr;
  }
  return guesser != Guesser::kMedusaTree;
}

void add_guesser(exec::DeviceExecutor::Model& model, const model::ModelSpec& whole, Guesser guesser,
                 const std::function<void(model::DraftHeadSpec&)>& change,
                 const step::RankedTree& tree) {
  if (guesser == Guesser::kNone || !model.spec.stage.is_last()) return;
  const ops::Rank rank = ops::rank_of(*model.ops);
  if (guesser == Guesser::kLookUp) {
    model.draft = exec::LookUpProposer::of(kLookedUp);
  } else if (guesser == Guesser::kItself) {
    model.draft = std::make_unique<exec::ModelProposer>(
        value_of(model::shard_spec(whole, rank)),
        value_of(testing::random_weights(whole, *model.ops, kModelSeed)), tree);
  } else if (is_medusa(guesser)) {
    const model::MedusaSpec spec = testing::tiny_medusa_spec(guesser == Guesser::kSharedMedusa);
    model.draft = std::make_unique<exec::MedusaProposer>(
        spec, value_of(testing::random_medusa_weights(spec, *model.ops, 12)),
        guesser == Guesser::kMedusaTree ? bushy_tree() : tree);
  } else if (guesser == Guesser::kAssistant) {
    const model::AssistantSpec spec = testing::tiny_assistant_spec(whole);
    model.draft = std::make_unique<exec::AssistantProposer>(
        value_of(model::shard_assistant(spec, rank)),
        value_of(testing::random_assistant_weights(spec, *model.ops, 13)));
  } else if (guesser == Guesser::kMtp) {
    const model::MtpSpec spec = testing::tiny_mtp_spec(whole);
    model.draft = std::make_unique<exec::MtpProposer>(
        value_of(model::shard_mtp(spec, rank)),
        value_of(testing::random_mtp_weights(spec, *model.ops, 14)));
  } else {
    model::DraftHeadSpec head = testing::tiny_head_spec(tiny_head(guesser), head_heads(whole));
    if (change) change(head);
    RUDDER_CHECK(model::fit_draft_head(whole, head).has_value());
    model.draft = std::make_unique<exec::HeadProposer>(
        value_of(model::shard_draft_head(head, rank)),
        value_of(testing::random_head_weights(head, *model.ops, 11)), tree);
  }
}

step::RankedTree bushy_tree() {
  step::RankedTree out;
  const auto add = [&](int32_t parent, int32_t rank) {
    out.tree.add(parent);
    out.ranks.push_back(rank);
  };
  for (const int32_t rank : {0, 1, 4}) add(0, rank);
  for (const int32_t parent : {1, 2, 3}) {
    for (const int32_t rank : {0, 2}) add(parent, rank);
  }
  for (const int32_t rank : {0, 1}) add(4, rank);
  add(10, 0);
  return out;
}

void add_tree(step::Capacity& capacity, const step::RankedTree& tree) {
  if (tree.tree.empty()) return;
  capacity.drafts.takes_trees = true;
  capacity.drafts.keeps_guesses = false;
  capacity.drafts.guess_tree = tree.tree;
  capacity.drafts.max_draft = tree.tree.size();
}

void join_guesser(std::vector<model::Stage>& stages, const model::ModelSpec& whole,
                  Guesser guesser) {
  if (guesser == Guesser::kAssistant) {
    RUDDER_CHECK(model::join_assistant(testing::tiny_assistant_spec(whole), stages).has_value());
    return;
  }
  if (stages.size() == 1 || !has_kv(guesser) || guesser == Guesser::kItself) return;
  if (guesser == Guesser::kMtp) {
    stages.back().has_table = true;
    return;
  }
  model::DraftHeadSpec head = testing::tiny_head_spec(tiny_head(guesser), head_heads(whole));
  RUDDER_CHECK(model::fit_draft_head(whole, head).has_value());
  model::join_head(head, stages);
}

void add_guesser(step::Capacity& capacity, Guesser guesser) {
  capacity.drafts.guesses = guesser != Guesser::kNone;
  capacity.drafts.guesses_from_rows = capacity.drafts.guesses && !has_kv(guesser);
  capacity.drafts.keeps_guesses = capacity.drafts.guesses;
  if (guesser == Guesser::kLookUp) capacity.drafts.look_up = kLookedUp;
  if (guesser == Guesser::kMedusaTree) add_tree(capacity, bushy_tree());
}

}  // namespace rudder::metamorphic
