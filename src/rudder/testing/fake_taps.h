// FakeTaps: the tap table and the capture buffer of FakeExecutor. A program changes the fake
// model's hash of every token that runs it. So all later tokens change when a token runs a wrong or
// overwritten program, or when a block is shared between tokens of different programs. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rudder/step/executor.h"
#include "rudder/step/plan.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/program.h"

namespace rudder::testing {

// The effect of a program on the fake model.
struct FakeProgram {
  FakeProgram() = default;
  explicit FakeProgram(const tap::Program* program);

  uint64_t content = 0;  // 0: no program
  bool scheduled = false;
  bool reads_latch = false;
  bool writes_latch = false;
  bool is_controlled = false;  // by what the token before left; it leaves the next one's

  // On a token `since_prompt` positions behind the prompt's end (negative within the prompt), after
  // its own sample went into the slot's latch. `reading`: what the token before left. 0: none.
  uint64_t effect(int32_t since_prompt, uint64_t latch, uint64_t reading) const;
};

enum class FakeProgramKind : uint8_t { kPlain, kScheduled, kWritesLatch, kUsesLatch, kControls };
// Programs of different numbers differ. One that uses a latch writes it too.
std::shared_ptr<const tap::Program> fake_program(uint64_t number, FakeProgramKind kind);

// What a token of the prompt, after a prefix of this hash (fake_model.h), adds to a latch.
uint64_t latch_sample(uint64_t prefix_hash, int32_t token);

// What a token, after a prefix of this hash, leaves for the next.
uint64_t reading_of(uint64_t prefix_hash, int32_t token);

// The first eight bytes of the captured row of `captured`, at a token with this hash. The rest of
// the row is zero.
uint64_t captured_word(uint64_t token_hash, const tap::CapturePoint& captured);

// Of part `i` of a record of `set`: a row of a point, or behind these a layer's patterns.
uint64_t captured_word(uint64_t token_hash, const tap::CaptureSet& set, size_t i);

// Those words of a captured token's record, part by part.
std::vector<uint64_t> captured_words(const tap::CapturedRows& rows, const tap::CapturedToken& token,
                                     const tap::CaptureSet& set, const tap::Geometry& geometry);

class FakeTaps {
 public:
  explicit FakeTaps(const step::Capacity& capacity);

  // At launch: what breaks the contract, in words.
  void check(const step::StepPlan& plan, std::vector<std::string>* wrong);

  // When the step runs.
  void apply(const step::StepPlan& plan);
  const FakeProgram& program(int32_t tap_row) const;
  // Token `q` of sequence `seq`; a masked one captures garbage.
  void capture(const step::StepPlan& plan, int32_t seq, int32_t q, uint64_t token_hash);
  std::shared_ptr<const tap::CapturedRows> take_captured();

  // Of the token that is `q` of the sequence.
  static int32_t tap_row(const step::SeqWork& work, int32_t q);
  static bool is_captured(const step::SeqWork& work, int32_t q);

 private:
  struct Extent {  // of a row's program in the table
    int64_t first_op = 0;
    int64_t end_op = 0;
    int64_t first_float = 0;
    int64_t end_float = 0;
  };

  static Extent extent_of(const step::TapEdit& edit);
  void check_edit(const step::TapEdit& edit, std::vector<std::string>* wrong);
  void check_work(const step::SeqWork& work, std::vector<std::string>* wrong) const;

  const step::Capacity capacity_;
  std::vector<std::shared_ptr<const tap::CaptureSet>> launched_sets_;
  // As of the last step that ran.
  std::vector<FakeProgram> programs_;  // by row
  std::vector<Extent> extents_;        // by row
  std::vector<std::shared_ptr<const tap::CaptureSet>> sets_;
  std::shared_ptr<std::vector<uint8_t>> buffer_;
  std::shared_ptr<tap::CapturedRows> captured_;
};

}  // namespace rudder::testing
