// Recordings: what is written is read back, whatever damages a file is an error that names the
// place, and a replay finds what came out differently (step.I7).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "rudder/record/flight_recorder.h"
#include "rudder/record/plan_fields.h"
#include "rudder/record/replay.h"
#include "rudder/sched/scheduler.h"
#include "rudder/testing/fake_executor.h"
#include "rudder/testing/random_tree.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::testing {
namespace {

namespace fs = std::filesystem;

using record::ArchiveReader;
using record::ArchiveWriter;
using record::FlightRecorder;
using record::Record;
using record::RecordingHeader;
using record::RecordingReader;
using record::RecordingWriter;
using record::ReplayReport;
using record::SuppliedMasks;
using step::Executor;
using step::LogitsWanted;
using step::SeqWork;
using step::StepId;
using step::StepPlan;
using step::StepResult;
using step::Ticket;

constexpr int64_t kPlenty = int64_t{1} << 30;

class RecordingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              fmt::format("{}_{}", ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                          ::getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }

  static testing::FakeOptions machine() {
    testing::FakeOptions options;
    options.capacity = {.num_slots = 6,
                        .num_blocks = 24,
                        .block_size = 4,
                        .max_tokens_per_step = 24,
                        .max_seq_len = 64,
                        .vocab_size = 1000,
                        .max_in_flight = 2,
                        .max_repeat = 4};
    return options;
  }

  // Runs sequences, some constrained, under more pressure than the blocks allow; returns the path
  // of the recording's last file.
  std::string record_run(int64_t max_bytes = kPlenty, uint64_t num_sequences = 12) {
    return record_run_on(machine(), max_bytes, num_sequences);
  }

  std::string record_run_on(const testing::FakeOptions& options, int64_t max_bytes,
                            uint64_t num_sequences) {
    auto made = FlightRecorder::create(std::make_unique<testing::FakeExecutor>(options),
                                       folder_.string(), "fake", max_bytes);
    EXPECT_TRUE(made) << made.error().to_string();
    FlightRecorder& executor = **made;
    sched::SchedSettings settings;
    settings.model_identity = "fake";
    settings.multi_step = 4;
    sched::Scheduler scheduler(executor.capacity(), settings);
    for (uint64_t id = 1; id <= num_sequences; ++id) {
      sched::NewSequence sequence =
          testing::test_sequence(id, testing::test_prompt(static_cast<int32_t>(id % 5 + 6), 3), 20);
      if (id % 3 == 0) sequence.sampling.presence_penalty = 0.5f;
      if (id % 3 == 1) sequence.sampling.num_logprobs = 2;
      if (id % 4 == 0) sequence.sampling.num_prompt_logprobs = 1;
      sequence.constrained = id % 4 == 3;
      EXPECT_TRUE(scheduler.add(std::move(sequence)));
    }
    run(scheduler, executor);
    EXPECT_GT(scheduler.stats().preemptions, 0u);
    num_steps_ = scheduler.stats().steps;
    paths_.assign(executor.paths().begin(), executor.paths().end());
    return paths_.back();
  }

  static void run(sched::Scheduler& scheduler, Executor& executor) {
    std::deque<std::pair<Ticket, int32_t>> in_flight;
    std::vector<sched::SequenceOutput> outputs;
    const auto collect = [&] {
      const auto result = executor.collect(in_flight.front().first);
      ASSERT_TRUE(result) << result.error().to_string();
      if (--in_flight.front().second == 0) in_flight.pop_front();
      scheduler.commit(*result, &outputs);
    };
    while (scheduler.has_work() || !in_flight.empty()) {
      if (executor.wants_fresh_start()) {
        while (!in_flight.empty()) collect();
        scheduler.start_afresh();
        executor.start_afresh();
      }
      if (auto plan = scheduler.plan()) {
        const int32_t repeat = plan->repeat;
        const auto num_masks = static_cast<size_t>(plan->num_masks());
        const auto ticket = executor.launch(std::move(plan));
        ASSERT_TRUE(ticket);
        in_flight.emplace_back(*ticket, repeat);
        if (num_masks == 0) continue;
        while (in_flight.size() > 1) collect();
        const std::vector<uint32_t> masks(num_masks * ((1000 + 31) / 32), 0x5A5A5A5Au);
        ASSERT_TRUE(executor.supply(*ticket, masks));
      } else {
        collect();
      }
    }
  }

  static std::vector<Record> records_of(const std::string& file) {
    auto reader = RecordingReader::open(file);
    EXPECT_TRUE(reader) << reader.error().to_string();
    std::vector<Record> records;
    while (true) {
      auto record = (*reader)->next();
      EXPECT_TRUE(record) << record.error().to_string();
      if (!record || !*record) return records;
      records.push_back(std::move(**record));
    }
  }

  static void write_records(const std::string& file, const RecordingHeader& header,
                            const std::vector<Record>& records) {
    auto writer = RecordingWriter::create(file, header, kPlenty);
    ASSERT_TRUE(writer) << writer.error().to_string();
    for (const Record& record : records) {
      ASSERT_TRUE(std::visit([&](const auto& value) { return (*writer)->write(value); }, record));
    }
  }

  static Result<ReplayReport> replay_on(const std::string& file, const testing::FakeOptions& fake) {
    ReplayReport report;
    RUDDER_TRY(const auto reader, RecordingReader::open(file));
    testing::FakeExecutor executor(fake);
    RUDDER_TRY_VOID(record::replay(*reader, executor, &report));
    EXPECT_TRUE(report.num_different > 0 || executor.violations().empty());
    return report;
  }

  static std::string bytes_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void put_bytes(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
  }

  // Reads a damaged file to its end or to its error.
  static Result<void> read_all(const std::string& file) {
    RUDDER_TRY(const auto reader, RecordingReader::open(file));
    while (true) {
      RUDDER_TRY(const auto record, reader->next());
      if (!record) return {};
    }
  }

  fs::path folder_;
  std::vector<std::string> paths_;  // of the files of record_run()
  uint64_t num_steps_ = 0;          // that it ran
};

TEST_F(RecordingTest, AReplayGivesTheSameTokens) {
  const std::string file = record_run();
  const auto records = records_of(file);
  const auto num_plans = std::ranges::count(records, size_t{0}, &Record::index);
  const auto num_masks = std::ranges::count(records, size_t{1}, &Record::index);
  EXPECT_GT(num_masks, 10);
  auto report = replay_on(file, machine());
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->num_steps, num_plans);
  EXPECT_EQ(report->num_iterations, std::ranges::count(records, size_t{2}, &Record::index));
  EXPECT_EQ(report->num_tokens, 12 * 20);
  EXPECT_EQ(report->num_different, 0);
}

TEST_F(RecordingTest, WhatIsWrittenIsReadBack) {
  const std::string file = record_run();
  const std::string copy = path("copy");
  const auto reader = RecordingReader::open(file);
  ASSERT_TRUE(reader);
  write_records(copy, (*reader)->header(), records_of(file));
  EXPECT_EQ(bytes_of(copy), bytes_of(file));
}

// What a proposer of the executor guessed is part of the plans that verify it: so the tokens come
// again with it and without.
TEST_F(RecordingTest, GuessesOfTheExecutorAreNotNeededAgain) {
  testing::FakeOptions guessing = machine();
  guessing.capacity.drafts.max_draft = 3;
  guessing.capacity.drafts.guesses = true;
  const std::string file = record_run_on(guessing, kPlenty, 12);
  int64_t num_guessed = 0;
  for (const Record& record : records_of(file)) {
    const auto* result = std::get_if<StepResult>(&record);
    if (result == nullptr) continue;
    for (const step::SeqResult& seq : result->seqs) num_guessed += std::ssize(seq.guess);
  }
  EXPECT_GT(num_guessed, 50);
  for (const auto& [guesses, from_rows] :
       {std::pair(true, false), std::pair(false, false), std::pair(true, true)}) {
    guessing.capacity.drafts.guesses = guesses;
    guessing.capacity.drafts.guesses_from_rows = from_rows;
    const auto report = replay_on(file, guessing);
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(report->num_tokens, 12 * 20);
    EXPECT_EQ(report->num_different, 0);
  }
  // Trees need who takes them, and the same proposer or none.
  fs::remove(file);  // the next has its name
  guessing.capacity.drafts.takes_trees = true;
  guessing.capacity.drafts.guess_tree = testing::random_tree(1, 3);
  const std::string trees = record_run_on(guessing, kPlenty, 12);
  guessing.capacity.drafts.guess_tree = {};
  EXPECT_EQ(replay_on(trees, guessing)->num_different, 0);
  guessing.capacity.drafts.takes_trees = false;
  EXPECT_EQ(replay_on(trees, guessing).error().where, "takes_trees");
}

TEST_F(RecordingTest, TapsAreReadBack) {
  auto program = std::make_shared<tap::Program>();
  program->ops.push_back({.point = {3, tap::Site::kMlpAct},
                          .op = {.kind = tap::OpKind::kSwap, .v1 = 16, .strength = -2.5f}});
  program->vectors = {1.0f, -2.0f};
  auto set = std::make_shared<tap::CaptureSet>();
  set->points.push_back({.point = {1, tap::Site::kFinalNorm}, .after = true});
  set->patterns.push_back({.layer = 1, .keys = 40, .heads = {0, 3}});
  StepPlan plan;
  plan.id = 7;
  plan.tap_edits = {{.tap_row = 2, .first_op = 4, .first_float = 32, .program = program},
                    {.tap_row = 3, .program = nullptr}};
  plan.capture_edits = {{.capture_set = 1, .set = set}};
  SeqWork& work = plan.seqs.emplace_back();
  work.tap_row = 2;
  work.tap_spans = {{.q_begin = 3, .tap_row = 0}};
  work.capture_set = 1;
  work.captures = {{.q_begin = 1, .q_len = 2}};
  write_records(path("taps"), {}, {plan});
  const auto records = records_of(path("taps"));
  ASSERT_EQ(records.size(), 1u);
  const auto& read = std::get<StepPlan>(records[0]);
  EXPECT_EQ(read.tap_edits[0].program->ops[0].op.strength, -2.5f);
  EXPECT_EQ(read.tap_edits[0].program->ops[0].op.kind, tap::OpKind::kSwap);
  EXPECT_EQ(read.tap_edits[0].program->vectors, program->vectors);
  EXPECT_EQ(read.tap_edits[1].program, nullptr);
  EXPECT_EQ(*read.capture_edits[0].set, *set);
  EXPECT_EQ(read.seqs[0].tap_spans[0].q_begin, 3);
  EXPECT_EQ(read.seqs[0].captures[0].q_len, 2);
}

TEST_F(RecordingTest, AChangedTokenIsReportedWithItsStepAndSequence) {
  const std::string file = record_run();
  const auto reader = RecordingReader::open(file);
  ASSERT_TRUE(reader);
  auto records = records_of(file);
  StepId step = 0;
  size_t seq = 0;
  for (size_t i = records.size() / 2; step == 0; ++i) {
    auto* result = std::get_if<StepResult>(&records[i]);
    if (result == nullptr || result->seqs.size() < 2 || result->seqs[1].tokens.empty()) continue;
    step = result->id;
    seq = 1;
    result->seqs[1].tokens[0] = (result->seqs[1].tokens[0] + 1) % 1000;
  }
  write_records(path("changed"), (*reader)->header(), records);
  auto report = replay_on(path("changed"), machine());
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_EQ(report->num_different, 1);
  ASSERT_TRUE(report->first);
  EXPECT_EQ(report->first->step, step);
  EXPECT_EQ(report->first->seq, static_cast<int32_t>(seq));
  EXPECT_NE(report->first->what.find("were recorded"), std::string::npos);
}

TEST_F(RecordingTest, AChangedPromptComesOutDifferently) {
  const std::string file = record_run();
  const auto reader = RecordingReader::open(file);
  ASSERT_TRUE(reader);
  auto records = records_of(file);
  auto& plan = std::get<StepPlan>(records.at(0));
  plan.tokens.at(0) += 1;
  write_records(path("changed"), (*reader)->header(), records);
  auto report = replay_on(path("changed"), machine());
  ASSERT_TRUE(report) << report.error().to_string();
  ASSERT_TRUE(report->first);
  EXPECT_EQ(report->first->seq, 0);
}

// Every length: up to the second record each byte, then at random.
TEST_F(RecordingTest, ATruncatedFileIsAnErrorUnlessItEndsBetweenRecords) {
  const std::string bytes = bytes_of(record_run());
  const std::string cut = path("cut");
  std::mt19937 random(5);
  int num_whole = 0;
  for (size_t length = 0; length < bytes.size(); length += length < 2000 ? 1 : 1 + random() % 500) {
    put_bytes(cut, bytes.substr(0, length));
    const Result<void> read = read_all(cut);
    num_whole += read ? 1 : 0;
    if (read) continue;
    ASSERT_EQ(read.error().code, ErrorCode::kCorruptFile) << length;
    ASSERT_EQ(read.error().where, cut);
    ASSERT_NE(read.error().message.find("at byte"), std::string::npos);
  }
  EXPECT_GT(num_whole, 1);
  EXPECT_LT(num_whole, 40);
}

TEST_F(RecordingTest, AChangedByteIsAnError) {
  const std::string bytes = bytes_of(record_run());
  const std::string changed = path("changed");
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    std::string other = bytes;
    // Half of them in the header and the first plan, where frames and lists are dense.
    const size_t at = random() % (i % 2 == 0 ? size_t{1500} : bytes.size());
    other[at] = static_cast<char>(other[at] ^ (1 << random() % 8));
    put_bytes(changed, other);
    const Result<void> read = read_all(changed);
    ASSERT_FALSE(read) << "byte " << at;
    ASSERT_EQ(read.error().code, ErrorCode::kCorruptFile) << "byte " << at;
  }
}

// With checksums made to fit: what the archive itself must find.
TEST_F(RecordingTest, APayloadThatIsNoPlanIsAnError) {
  StepPlan plan;
  plan.tokens = {1, 2, 3};
  plan.seqs.emplace_back().logits = LogitsWanted::kLast;
  ArchiveWriter writer;
  writer(plan);
  const std::vector<std::byte> good(writer.bytes().begin(), writer.bytes().end());
  const auto parses = [](std::span<const std::byte> bytes) {
    ArchiveReader reader(bytes);
    StepPlan read;
    reader(read);
    return reader.complete();
  };
  EXPECT_TRUE(parses(good));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(parses(std::span(good).first(length))) << length;
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parses(longer));
  std::mt19937 random(9);
  int num_refused = 0;
  for (int i = 0; i < 20'000; ++i) {  // a list of any length allocates no more than there is
    std::vector<std::byte> other = good;
    for (int k = 0; k < 3; ++k) {
      other[random() % other.size()] = static_cast<std::byte>(random() % 256);
    }
    num_refused += parses(other) ? 0 : 1;
  }
  EXPECT_GT(num_refused, 1000);
}

// The last files are there, no more bytes than asked for, and each gives its tokens again alone.
TEST_F(RecordingTest, TheEndOfALongRunIsKept) {
  constexpr int64_t kMaxBytes = 1'300'000;
  const std::string last = record_run(kMaxBytes, 800);
  ASSERT_EQ(std::ssize(paths_), FlightRecorder::kMaxFiles);
  const auto files = fs::directory_iterator(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), FlightRecorder::kMaxFiles);
  uintmax_t num_bytes = 0;
  StepId next = 0;
  for (const std::string& file : paths_) {
    num_bytes += fs::file_size(file);
    const auto records = records_of(file);
    const auto& first = std::get<StepPlan>(records.at(0));
    EXPECT_EQ(first.slots.size(), first.seqs.size())
        << "it begins with sequences of the file before";
    if (next != 0) {
      EXPECT_EQ(first.id, next) << "steps are missing between two files";
    }
    next = std::get<StepResult>(records.back()).id + 1;
    const auto report = replay_on(file, machine());
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(report->num_different, 0) << report->first->what;
    if (file != last) {
      EXPECT_GE(report->num_steps, FlightRecorder::kLeastSteps);
    }
  }
  EXPECT_LE(num_bytes, static_cast<uintmax_t>(kMaxBytes));
  EXPECT_EQ(next, num_steps_ + 1);
}

// What the tables of the executor hold outlives a fresh start.
TEST_F(RecordingTest, AFileBeginsWithTheTables) {
  testing::FakeOptions options = machine();
  options.capacity.geometry = {
      .num_layers = 1, .hidden = 16, .mlp_width = {32}, .heads = {{2, 8}}, .sites = {0xffff}};
  options.capacity.taps = {.num_rows = 8, .num_ops = 64, .num_floats = 1024, .num_capture_sets = 4};
  auto made = FlightRecorder::create(std::make_unique<testing::FakeExecutor>(options),
                                     folder_.string(), "fake", kPlenty);
  ASSERT_TRUE(made);
  FlightRecorder& executor = **made;
  const auto program = std::make_shared<const tap::Program>();
  const auto set = std::make_shared<const tap::CaptureSet>();
  const auto launch = [&](StepId id, std::vector<step::TapEdit> taps,
                          std::vector<step::CaptureEdit> captures) {
    auto plan = std::make_shared<StepPlan>();
    plan->id = id;
    plan->tap_edits = std::move(taps);
    plan->capture_edits = std::move(captures);
    ASSERT_TRUE(executor.launch(plan));
    ASSERT_TRUE(executor.collect({id}));
  };
  launch(1, {{1, 0, 0, program}, {2, 4, 16, program}}, {{1, set}});
  launch(2, {{1, 8, 0, program}, {2}, {3, 12, 32, program}}, {{1}, {2, set}});
  executor.start_afresh();
  EXPECT_EQ(executor.paths().size(), 2u);
  const auto records = records_of(executor.paths().back());
  ASSERT_EQ(records.size(), 2u);
  const auto& plan = std::get<StepPlan>(records[0]);
  ASSERT_EQ(plan.tap_edits.size(), 2u);
  EXPECT_EQ(plan.tap_edits[0].tap_row, 1);
  EXPECT_EQ(plan.tap_edits[0].first_op, 8);
  EXPECT_EQ(plan.tap_edits[1].tap_row, 3);
  ASSERT_EQ(plan.capture_edits.size(), 1u);
  EXPECT_EQ(plan.capture_edits[0].capture_set, 2);
  EXPECT_EQ(std::get<StepResult>(records[1]).id, plan.id);
}

// A file that has no room for the steps that it must have at least.
TEST_F(RecordingTest, AFileThatIsTooShortIsCutAndTheExecutorGoesOn) {
  const std::string file = record_run(80'000);
  EXPECT_LE(fs::file_size(file), 20'000u);
  EXPECT_GT(fs::file_size(file), 15'000u);
  auto report = replay_on(file, machine());
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_GT(report->num_tokens, 10);
  EXPECT_EQ(report->num_different, 0);
}

TEST_F(RecordingTest, AnExecutorOfLessRoomIsRefusedByName) {
  const std::string file = record_run();
  testing::FakeOptions less = machine();
  less.capacity.num_blocks -= 1;
  auto report = replay_on(file, less);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(report.error().where, "num_blocks");
  testing::FakeOptions more = machine();
  more.capacity.num_slots += 1;
  EXPECT_TRUE(replay_on(file, more));
}

// Records in an order that no engine makes are refused before they reach the executor.
TEST_F(RecordingTest, CallsOutOfOrderAreAnError) {
  const std::string file = record_run();
  const auto reader = RecordingReader::open(file);
  ASSERT_TRUE(reader);
  const auto records = records_of(file);
  for (size_t i = 0; i + 1 < 30; ++i) {
    auto without = records;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    const bool is_plan = std::holds_alternative<StepPlan>(records[i]);
    const bool is_masks = std::holds_alternative<SuppliedMasks>(records[i]);
    if (!is_plan && !is_masks) continue;
    fs::remove(path("without"));
    write_records(path("without"), (*reader)->header(), without);
    const auto report = replay_on(path("without"), machine());
    ASSERT_FALSE(report) << "record " << i;
  }
}

TEST_F(RecordingTest, AFolderThatCannotBeMadeIsAnError) {
  put_bytes(path("file"), "x");
  const auto made = FlightRecorder::create(std::make_unique<testing::FakeExecutor>(machine()),
                                           path("file/below"), "fake", kPlenty);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace rudder::testing
