// Seeded bugs: each names one fault that the simulator has to find. In every normal build
// RUDDER_MUTANT(kX) is false at compile time. In the build of the mutation test (RUDDER_MUTANTS=1)
// it is true when kX is the mutant that the process was started with. A mutant is one condition in
// the code that it breaks.
#pragma once

#include <cstdint>

// Those of kv and sched, then those of engine, then those of executors (a group of ranks,
// FakeExecutor).
#define RUDDER_MUTANT_LIST(X)                                                                     \
  X(kFreeInFlight, "a cancel frees blocks that a step in flight still names")                     \
  X(kDoubleFree, "a block is released twice when its sequence retires")                           \
  X(kMissedDecrefOnPreempt, "preemption forgets one block")                                       \
  X(kHashWithoutSalt, "tenants share prefix blocks")                                              \
  X(kHashWithoutParent, "equal tokens after different prefixes share a block")                    \
  X(kHashWithoutContent, "steered and unsteered tokens share a block")                            \
  X(kHashWithoutCompare, "a key collision is taken for a hit")                                    \
  X(kBlockEdgeOffByOne, "no block is added for the first token past a full block")                \
  X(kPublishBeforeCompute, "a block is shared while the step that writes it is in flight")        \
  X(kPublishPartialBlock, "a block is shared before its last token is written")                   \
  X(kPublishNumerical, "blocks of a row that ended in NaN stay shared")                           \
  X(kEvictInUse, "a prefix hit leaves its blocks on the eviction list")                           \
  X(kWindowFreedEarly, "blocks go when the window passes them in what is planned, not computed")  \
  X(kWindowOffByOne, "a block goes while the last token of its window still sees it")             \
  X(kHitWithHole, "a prefix is a hit though a block of its last window is gone")                  \
  X(kHitWithoutCheckpoint, "a prefix is a hit though there is no checkpoint behind it")           \
  X(kRestoredTooFar, "a sequence goes on one block behind the checkpoint that it is given")       \
  X(kCheckpointBeforeCommit, "a checkpoint is shared while the step that writes it is in flight") \
  X(kCheckpointUnheld, "a checkpoint is given away while the copy that reads it is in flight")    \
  X(kStepsWhileCopying, "a sequence runs while what it goes on from is still copied")             \
  X(kFreedWhileCopying, "a sequence that ends gives back a state that is still copied to")        \
  X(kRecordUnwritten, "a record is found before its bytes are there")                             \
  X(kFreedWhileLoading, "a sequence that ends gives back blocks that records are copied to")      \
  X(kRecordWithHole, "a prefix is a hit in another tier though a block of its window is gone")    \
  X(kSlotReuseWithoutGeneration, "a slot is reopened under the generation it had")                \
  X(kPreemptDropsToken, "a resumed sequence forgets the last token it handed out")                \
  X(kLateTokenKept, "a token in flight at finish() is handed out")                                \
  X(kPlanPastMaxLen, "a sequence that must end in flight is planned again")                       \
  X(kStarvation, "admission takes the newest first")                                              \
  X(kCohortsOverlap, "a sequence of a step just in front is decoded again beside other cohorts")  \
  X(kCohortOfAll, "a step decodes every sequence though several are to be in flight")             \
  X(kRepeatWithoutBlocks, "a repeated step gets blocks for its first iteration alone")            \
  X(kRepeatFreesInFlight, "a sequence that ends within a repeated step is released before it")    \
  X(kDraftsWithoutBlocks, "a sequence with drafts gets blocks for its first token alone")         \
  X(kGuessPastHole, "the executor's proposer guesses behind tokens that it has not run")          \
  X(kGuessUnfollowed, "the executor's proposer guesses where it lacks tokens that were sampled")  \
  X(kGuessWithoutBlocks, "a sequence that is guessed for gets no blocks behind its tokens")       \
  X(kProposedLenKept, "a preempted sequence counts as run by the executor's proposer")            \
  X(kTokensForRows, "a proposer that reads rows alone is given tokens to run")                    \
  X(kNothingToLookUp, "a slot is opened without the tokens that guesses are looked up in")        \
  X(kUnsureDraftsChange, "drafts behind drafts run the programs of where they may not be")        \
  X(kRejectedKvCounted, "a sequence goes on behind drafts that were rejected")                    \
  X(kPublishRejected, "a block is shared that holds a rejected draft")                            \
  X(kCounterUnderflow, "the gauge of waiting tokens is decremented twice")                        \
  X(kOneRowForAChunk, "all tokens of a chunk run the program of its first")                       \
  X(kThoughtsUnsteered, "generated thoughts run the programs of other generated tokens")          \
  X(kThoughtsGuessed, "a token runs before it is known whether it is a thought")                  \
  X(kThoughtsUnkeyed, "keys of blocks do not cover what thoughts ran")                            \
  X(kLatchAfterPrefix, "a prefix is reused though a latch needs its tokens")                      \
  X(kStepPassesPrompt, "generated tokens run in the step that fills their latches")               \
  X(kReadingAfterPrefix, "a prefix is reused though its last token leaves a reading")             \
  X(kControlledChunk, "a step runs several generated tokens that read each other's readings")     \
  X(kControlledDrafts, "a draft runs on the reading of one that may be wrong")                    \
  X(kCaptureAfterPrefix, "a prefix is reused though its tokens are to be captured")               \
  X(kCapturedTwice, "a resumed sequence captures again what it has captured")                     \
  X(kCaptureOverflow, "a step captures more than its buffer takes")                               \
  X(kShortPromptsWait, "a short prompt waits for a long one of its tenant that came before")      \
  X(kFirstLeftOut, "short prompts leave nothing to the one that came first")                      \
  X(kNothingLeftToSmall, "large prompts take the blocks that are kept for small ones")            \
  X(kOvertakenForEver, "small prompts go past a large one in whatever blocks come free")          \
  X(kTableEditsLost, "edits of the tables do not reach the executor")                             \
  X(kRecordUnsalted, "keys of records do not cover salt and adapter")                             \
  X(kTenantsUnshared, "prompts of the first tenant leave nothing to the others")                  \
  X(kStopStringRace, "tokens behind a stop string are handed out")                                \
  X(kStopWhenLate, "the token behind the one that ends a choice by its row is handed out")        \
  X(kHeldTextDropped, "text held back for a stop string is lost at the end")                      \
  X(kStopBeforeMinTokens, "a stop string counts before min_tokens")                               \
  X(kOneSeedForAllChoices, "the choices of a request draw the same numbers")                      \
  X(kPartialCancel, "a cancel ends the first choice alone")                                       \
  X(kCancelKeepsSequence, "a cancelled choice goes on in the scheduler")                          \
  X(kDoubleFinish, "a choice gets two last events")                                               \
  X(kNumericalHidden, "a NaN ends a choice as if it were complete")                               \
  X(kPlaceNotReleased, "a request that ends waiting keeps its place in the bounded queue")        \
  X(kPlaceReleasedTwice, "a place in the bounded queue is given back twice")                      \
  X(kPlaceTakenOnReject, "a refused request leaves a trace in the bounded queue")                 \
  X(kDrainAdmits, "a request is accepted while draining")                                         \
  X(kDisplacedKept, "a request that has lost its place in the queue goes on waiting")             \
  X(kRestKeepsPrefixes, "an engine at rest keeps what it has computed")                           \
  X(kDeadlineMissed, "a request waits past its deadline")                                         \
  X(kSleepsWithWork, "the loop goes idle while a step is in flight")                              \
  X(kRepeatStranded, "of a repeated step the first iteration alone is collected")                 \
  X(kRunsUnsteered, "a request that finds no row of the tap table runs without")                  \
  X(kRowReleasedEarly, "rows are given on when the first choice of a request ends")               \
  X(kLeaseLeaked, "a request that ends keeps its rows")                                           \
  X(kCaptureToNeighbour, "captured rows go to the sequence of the row before")                    \
  X(kLastEventUnheld, "a choice ends before the results of its captures are there")               \
  X(kConstrainedRepeated, "a step with constrained sequences is repeated")                        \
  X(kScoresFromCache, "a prompt whose tokens are to be scored reuses a prefix")                   \
  X(kScoredTwice, "a resumed sequence scores again what it has scored")                           \
  X(kMasksForgotten, "a step that waits for masks gets none")                                     \
  X(kMaskOfNeighbour, "a constrained sequence gets the mask of another")                          \
  X(kMasksBeforeTokens, "masks are written before the tokens of the step before are known")       \
  X(kConstraintNotAdvanced, "a constraint is not told of the tokens that were sampled")           \
  X(kMinTokensOverConstraints, "min_tokens bans the only tokens that a constraint allows")        \
  X(kFailedConstraintGoesOn, "a choice goes on without the constraint that failed")               \
  X(kDraftMasksOfFirst, "the masks behind drafts are that of the first position")                 \
  X(kMasksOfRowBefore, "the masks behind the drafts of a tree are those of a chain")              \
  X(kMasksOfLastGuess, "the masks behind drafts that are not known are those of older ones")      \
  X(kMasksToOneRank, "the masks of a step reach the first rank alone")                            \
  X(kRanksUncompared, "ranks that sample other tokens than the first go on")                      \
  X(kChecksumUnread, "the executor takes a record for good without a look at its checksum")       \
  X(kAcceptsOneTooMany, "the executor accepts one draft that it did not sample")                  \
  X(kShortGuessFilled, "the executor takes tokens for drafts that its guess has not")             \
  X(kRejectedPenaltyKept, "the executor counts a rejected draft in penalties")                    \
  X(kPathNotKept, "the executor leaves the KV of accepted drafts where their tree had it")        \
  X(kRowsNotKept, "the executor leaves rows for what guesses where a tree had their tokens")      \
  X(kSiblingSeen, "a draft of a tree sees the draft beside it")                                   \
  X(kStopInsideDraftsMissed, "the executor goes on behind a stop id among the accepted")

namespace rudder {

enum class Mutant : uint8_t {
  kNone,
#define RUDDER_MUTANT_ENUM(name, fault) name,
  RUDDER_MUTANT_LIST(RUDDER_MUTANT_ENUM)
#undef RUDDER_MUTANT_ENUM
};

struct NamedMutant {
  Mutant mutant;
  const char* name;
  const char* fault;
};

inline constexpr NamedMutant kAllMutants[] = {{Mutant::kNone, "kNone", "no fault"},
#define RUDDER_MUTANT_ROW(name, fault) {Mutant::name, #name, fault},
                                              RUDDER_MUTANT_LIST(RUDDER_MUTANT_ROW)
#undef RUDDER_MUTANT_ROW
};

}  // namespace rudder

#if defined(RUDDER_MUTANTS) && RUDDER_MUTANTS
namespace rudder {
inline Mutant active_mutant = Mutant::kNone;  // set before any thread is started
}
#define RUDDER_MUTANT(name) (::rudder::active_mutant == ::rudder::Mutant::name)
#else
#define RUDDER_MUTANT(name) false
#endif
