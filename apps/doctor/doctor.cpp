// rudder doctor: what would make a start fail on this machine, with these flags.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "command_line.h"
#include "commands.h"
#include "doctor/findings.h"
#include "report_error.h"
#include "rudder/base/log.h"
#include "rudder/base/thread_pool.h"
#include "version.h"

namespace rudder::apps {
namespace {

std::string_view verdict_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFine:
      return "ok";
    case Verdict::kNote:
      return "note";
    case Verdict::kFails:
      return "FAILS";
  }
  return "";
}

}  // namespace

int run_doctor(int argc, char** argv) {
  SessionSettings session;
  server::ServerSettings server;
  std::string model;
  SettingsTable table;
  table.section("doctor");
  table.add("model", &model, "The model's folder or name; the same as MODEL.");
  server.declare(table);
  session.declare(table);
  const Result<ParsedArguments> arguments = parse_arguments(
      {"rudder doctor",
       "What would make a start fail here, with these flags of rudder serve: driver, "
       "GPU, memory, ports, limits, cache, model. Nothing is changed, fetched or "
       "loaded; the exit status is 1 where a start would fail.",
       "[MODEL]", 1},
      argc, argv, table);
  if (!arguments) return report_bad_arguments(arguments.error());
  if (arguments->help_shown) return 0;
  if (!arguments->positionals.empty()) model = arguments->positionals[0];
  set_log_level(LogLevel::kError);
  Findings findings = {{Verdict::kFine, "rudder", kVersion}};
  check_machine(findings);
  constexpr int64_t kOthers = 3;  // the log's, the engine's, the device's
  const int64_t computing = session.exec.threads > 0 ? session.exec.threads : usable_cores();
  check_room(computing + server.http_threads + server.tokenize_threads + kOthers, findings);
  check_gpus(session.exec.device, findings);
  check_listening(server, findings);
  check_hub(findings);
  check_model(model, session, findings);
  int num_failing = 0;
  for (const Finding& finding : findings) {
    fmt::print("{:<6} {:<12} {}\n", verdict_text(finding.verdict), finding.subject, finding.text);
    if (finding.verdict == Verdict::kFails) ++num_failing;
  }
  if (num_failing == 0) {
    fmt::print("\nA start with these flags would work.\n");
  } else {
    fmt::print("\nA start with these flags would fail: see what stands behind FAILS.\n");
  }
  return num_failing == 0 ? 0 : 1;
}

}  // namespace rudder::apps
