#include "metamorphic/groups.h"

#include "metamorphic/tap_asks.h"
#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/reference_ops.h"
#include "rudder/model/shard.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/wrap/group_executor.h"

namespace rudder::metamorphic {

using testing::TinyArch;

const std::vector<RankBackend>& rank_backends() {
  static const std::vector<RankBackend> all = {
      {"reference", [](CommPtr comm) { return cpu::make_reference_rank(std::move(comm)); }},
      {"fast_f32",
       [](CommPtr comm) {
         return value_of(cpu::make_cpu_ops(
             {.dtype = tensor::DType::kF32, .num_threads = 1, .isa = {}, .comm = std::move(comm)}));
       }},
      {"fast_bf16",
       [](CommPtr comm) {
         return value_of(cpu::make_cpu_ops({.dtype = tensor::DType::kBF16,
                                            .num_threads = 2,
                                            .isa = {},
                                            .comm = std::move(comm)}));
       }},
      {"fast_bf16_int8_kv", [](CommPtr comm) {
         return value_of(cpu::make_cpu_ops({.dtype = tensor::DType::kBF16,
                                            .num_threads = 2,
                                            .isa = {},
                                            .comm = std::move(comm),
                                            .kv = ops::kInt8TokenKv}));
       }}};
  return all;
}

std::unique_ptr<step::Executor> tiny_group(const RankBackend& backend, TinyArch arch,
                                           const step::Capacity& capacity, const GroupAsk& ask) {
  model::ModelSpec whole = testing::tiny_spec(arch, ask.num_heads);
  for (model::LayerSpec& layer : whole.layers) {
    if (model::Experts* const experts = experts_of(layer)) experts->by_expert = ask.by_expert;
  }
  std::vector<std::unique_ptr<step::Executor>> executors;
  for (const CommPtr& comm : cpu::HostComm::make_group(ask.num_ranks, ask.patience_ms)) {
    exec::DeviceExecutor::Model model;
    model.ops = backend.make(ask.num_ranks == 1 ? nullptr : comm);
    if (ask.wrap) model.ops = ask.wrap(std::move(model.ops));
    model.spec = value_of(model::shard_spec(whole, comm->rank()));
    model.weights = value_of(testing::random_weights(whole, *model.ops, kModelSeed));
    add_guesser(model, whole, ask.guesser, {}, ask.tree);
    step::Capacity mine = capacity;
    add_guesser(mine, ask.guesser);
    add_tree(mine, ask.tree);
    if (ask.has_taps) {
      mine = with_encodes(mine, arch);
      mine.geometry = model::tap_geometry(model.spec, tensor::DType::kF32, comm->rank());
    }
    executors.push_back(value_of(start_executor(std::move(model), mine)));
  }
  return wrap::GroupExecutor::of(std::move(executors));
}

namespace {

void expect_near_numbers(const std::vector<float>& expected, const std::vector<float>& got,
                         double most, const std::string& what) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(expected[i], got[i], most) << what;
}

}  // namespace

void expect_nearly_same(const std::vector<Got>& expected, const std::vector<Got>& got, double error,
                        double row_error) {
  ASSERT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const std::string what = "sequence " + std::to_string(i);
    EXPECT_FALSE(got[i].tokens.empty()) << what;
    ASSERT_EQ(expected[i].tokens, got[i].tokens) << what;
    EXPECT_EQ(expected[i].end, got[i].end) << what;
    EXPECT_EQ(expected[i].scored, got[i].scored) << what;
    expect_near_numbers(expected[i].logprobs, got[i].logprobs, error, what);
    expect_near_numbers(expected[i].scores, got[i].scores, error, what);
    ASSERT_EQ(expected[i].ranks.size(), got[i].ranks.size()) << what;
    for (size_t j = 0; j < got[i].ranks.size();
         ++j) {  // of two tokens that are as likely, either is first
      ASSERT_NEAR(expected[i].ranks[j], got[i].ranks[j], 1) << what;
    }
    ASSERT_EQ(expected[i].captured.size(), got[i].captured.size()) << what;
    for (const auto& [position, row] : expected[i].captured) {
      expect_near_numbers(row, got[i].captured.at(position), row_error, what);
    }
  }
}

sched::SchedSettings busy_settings() {
  sched::SchedSettings settings = plain_settings();
  settings.max_num_batched_tokens = 60;
  settings.max_in_flight = 3;
  settings.multi_step = 4;
  settings.enable_prefix_caching = true;
  return settings;
}

std::vector<Ask> spread_asks(std::vector<Ask> asks) {
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i * 7 % 23);
  return asks;
}

void HashingOps::add(const ops::View& view) {
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < view.bytes(); ++i) {
    hash = (hash ^ static_cast<const uint8_t*>(view.data)[i]) * 1099511628211u;
  }
  hashes_.push_back(hash);
}

std::string group_name(const ::testing::TestParamInfo<GroupParam>& test) {
  return rank_backends()[std::get<0>(test.param)].name + "_" +
         std::string(testing::tiny_arch_name(std::get<1>(test.param))) + "_" +
         std::to_string(std::get<2>(test.param));
}
GroupParams group_params(const std::vector<size_t>& backends, Turn turn) {
  GroupParams params;
  const auto add = [](std::vector<GroupParam>& to, const Pair& pair, int32_t ranks) {
    to.emplace_back(std::get<0>(pair), std::get<1>(pair), ranks);
  };
  for (const Pair& pair : daily_pairs(backends, turn)) {
    const int32_t ranks = params.daily.size() / backends.size() % 2 == 0 ? 2 : 4;
    add(params.daily, pair, ranks);
    add(params.others, pair, ranks == 2 ? 4 : 2);
    add(params.of_eight, pair, 8);
  }
  for (const Pair& pair : other_pairs(backends, turn)) {
    for (const int32_t ranks : {2, 4}) add(params.others, pair, ranks);
  }
  return params;
}

}  // namespace rudder::metamorphic
