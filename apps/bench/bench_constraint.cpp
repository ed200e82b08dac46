// rudder bench constraint: what forms of outputs cost: the compile, and for each token the mask and
// the step over it, on one thread and without any model.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bench/bench_commands.h"
#include "bench/constraint_cases.h"
#include "bench/sample_vocabulary.h"
#include "bench/schema_folder.h"
#include "command_line.h"
#include "report/report.h"
#include "report/statistics.h"
#include "report_error.h"
#include "rudder/base/cpu_time.h"
#include "rudder/base/json.h"
#include "rudder/base/progress.h"
#include "rudder/base/settings.h"
#include "rudder/base/token_mask.h"
#include "rudder/constraint/form_engine.h"
#include "rudder/constraint/grammar_compiler.h"

namespace rudder::apps {
namespace {

struct FormFlags {
  int32_t vocab_size = 128'000;
  int32_t repeats = 3;
  std::string only;
  std::string schemas;
  std::string output;

  void declare(SettingsTable& table) {
    table.section("bench constraint");
    table.add("vocab-size", &vocab_size, 2000, 1 << 20, "Tokens of the vocabulary, made by rule.");
    table.add("repeats", &repeats, 1, 1000, "Of each output, after one that is not counted.");
    table.add("only", &only, "Measure forms whose name has this in it.");
    table.add("schemas", &schemas,
              "Compile the JSON schemas of this folder instead: how many are taken, why others are "
              "not, and what it costs.");
    table.add("output", &output, "Write the figures to this file, as JSON.");
  }
};

// Of this thread's own time, so that what else the machine does is not in the figures.
double thread_micros() {
  return thread_cpu_seconds() * 1e6;
}

// The tokens of a vocabulary by what they spell.
class Speller {
 public:
  explicit Speller(const constraint::Vocabulary& vocabulary) : size_(vocabulary.size) {
    for (size_t id = 0; id < vocabulary.token_bytes.size(); ++id) {
      const std::string_view bytes = vocabulary.token_bytes[id];
      if (bytes.empty()) continue;
      ids_.emplace(bytes, static_cast<int32_t>(id));
      longest_ = std::max(longest_, bytes.size());
    }
  }

  // The longest token that the mask has and `text` begins with; -1: there is none.
  int32_t next(std::string_view text, const std::vector<uint32_t>& mask, size_t* length) const {
    for (*length = std::min(longest_, text.size()); *length > 0; --*length) {
      const auto found = ids_.find(text.substr(0, *length));
      if (found == ids_.end()) continue;
      if (is_in_mask(mask, found->second)) return found->second;
    }
    return -1;
  }
  size_t words() const { return mask_words(size_); }

 private:
  const int32_t size_;
  size_t longest_ = 0;
  std::unordered_map<std::string_view, int32_t> ids_;
};

// Adds the microseconds of each token to `micros`.
Result<void> follow(const constraint::Constraint& form, std::string_view output,
                    const Speller& speller, std::vector<double>* micros) {
  const auto matcher = form.start();
  std::vector<uint32_t> mask(speller.words());
  while (!output.empty()) {
    std::fill(mask.begin(), mask.end(), ~uint32_t{0});
    double start = thread_micros();
    RUDDER_TRY_VOID(matcher->restrict(mask));
    double spent = thread_micros() - start;
    size_t length = 0;
    const int32_t token = speller.next(output, mask, &length);
    if (token < 0) {
      return fail(ErrorCode::kInternal,
                  fmt::format("the form does not go on with '{}'", output.substr(0, 40)));
    }
    start = thread_micros();
    RUDDER_TRY_VOID(matcher->advance(token));
    spent += thread_micros() - start;
    micros->push_back(spent);
    output.remove_prefix(length);
  }
  return {};
}

struct Row {
  std::string name;
  double compile_ms = 0;
  size_t tokens = 0;
  double first_mean = 0;  // microseconds, of the uncounted round
  double first_max = 0;
  double mean = 0;
  std::vector<double> percentiles;  // kPercents
};

const std::vector<double> kPercents = {50, 90, 99, 100};

Result<Row> measure_case(const ConstraintCase& one, const constraint::FormEngine& engine,
                         const Speller& speller, int32_t repeats) {
  Row row;
  row.name = one.name;
  const double start = thread_micros();
  RUDDER_TRY(const constraint::CompiledConstraint compiled, engine.compile(one.spec));
  row.compile_ms = (thread_micros() - start) / 1000;
  std::vector<double> micros;
  for (const std::string& output : one.outputs) {
    RUDDER_TRY_VOID(follow(*compiled.constraint, output, speller, &micros));
  }
  const Summary first = summarize(std::move(micros), {100});
  row.first_mean = first.mean;
  row.first_max = first.percentiles[0];
  micros.clear();
  for (int32_t i = 0; i < repeats; ++i) {
    for (const std::string& output : one.outputs) {
      RUDDER_TRY_VOID(follow(*compiled.constraint, output, speller, &micros));
    }
  }
  row.tokens = micros.size();
  Summary summary = summarize(std::move(micros), kPercents);
  row.mean = summary.mean;
  row.percentiles = std::move(summary.percentiles);
  return row;
}

Result<void> run(const FormFlags& flags) {
  const constraint::Vocabulary vocabulary = sample_vocabulary(flags.vocab_size);
  const Speller speller(vocabulary);
  const constraint::GrammarSettings caches;  // as a server has them
  const constraint::FormEngine engine(vocabulary, caches.memo_bytes());
  if (!flags.schemas.empty()) return compile_schema_folder(flags.schemas, engine);
  fmt::print("{} tokens; microseconds a token: its mask and the step over it\n\n{:<44}{:>11}{:>8}",
             vocabulary.size, "form", "compile ms", "tokens");
  for (const char* column : {"mean", "p50", "p90", "p99", "max", "1st mean", "1st max"}) {
    fmt::print("{:>9}", column);
  }
  fmt::print("\n");
  std::vector<ConstraintCase> cases = constraint_cases();
  std::erase_if(cases, [&](const ConstraintCase& one) {
    return one.name.find(flags.only) == std::string::npos;
  });
  boost::json::array rows;
  Progress progress("bench constraint", false);
  for (const ConstraintCase& one : cases) {
    Result<Row> row = measure_case(one, engine, speller, flags.repeats);
    if (!row) {
      row.error().message = fmt::format("{}: {}", one.name, row.error().message);
      return tl::unexpected(row.error());
    }
    fmt::print("{:<44}{:>11.1f}{:>8}{:>9.1f}", row->name, row->compile_ms, row->tokens, row->mean);
    for (const double value : row->percentiles) fmt::print("{:>9.1f}", value);
    fmt::print("{:>9.1f}{:>9.1f}\n", row->first_mean, row->first_max);
    rows.push_back({{"form", row->name},
                    {"compile_ms", row->compile_ms},
                    {"tokens", row->tokens},
                    {"mean_us", row->mean},
                    {"p50_us", row->percentiles[0]},
                    {"p90_us", row->percentiles[1]},
                    {"p99_us", row->percentiles[2]},
                    {"max_us", row->percentiles[3]},
                    {"first_mean_us", row->first_mean},
                    {"first_max_us", row->first_max}});
    progress.update(std::ssize(rows), std::ssize(cases));
  }
  return flags.output.empty() ? Result<void>() : write_file(flags.output, to_json_text(rows));
}

}  // namespace

int bench_constraint(int argc, char** argv) {
  FormFlags flags;
  SettingsTable table;
  flags.declare(table);
  const Result<ParsedArguments> arguments =
      parse_arguments({"rudder bench constraint",
                       "Time the compiling of output forms and their token masks.", "", 0},
                      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  const Result<void> done = run(flags);
  return done ? 0 : report_failure(done.error());
}

}  // namespace rudder::apps
