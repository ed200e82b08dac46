// What rudder doctor looks at: each check says in a line what it found and, where a start would
// fail or be slow for it, what to do. Nothing is changed and nothing loaded. Main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_session.h"
#include "rudder/hub/hub_settings.h"
#include "rudder/server/settings.h"

namespace rudder::apps {

enum class Verdict : uint8_t {
  kFine,
  kNote,   // works, and could work better
  kFails,  // a start fails for it
};

struct Finding {
  Verdict verdict = Verdict::kFine;
  std::string subject;  // "gpu"
  std::string text;
};

using Findings = std::vector<Finding>;

// Instruction set, memory and its bounds, descriptors, threads, address space.
void check_machine(Findings& findings);
// Whether so many threads begin, and some descriptors open.
void check_room(int64_t threads, Findings& findings);
// Whether there are addresses for so many bytes.
void check_addresses(int64_t bytes, Findings& findings);
// Driver and GPUs, and whether this binary can use them. `device` is the flag's value.
void check_gpus(const std::string& device, Findings& findings);
// Address, port, certificate.
void check_listening(const server::ServerSettings& settings, Findings& findings);
// The cache, what it holds, free space; libcurl; token and endpoint, which are not asked.
void check_hub(Findings& findings);
// Why a start could not fetch a model; empty: nothing here stands against it.
std::string why_not_fetched(const hub::HubSettings& settings);
// The model: whether it is there and whole, and whether it fits the device with these settings. A
// name of the hub is looked up in the cache alone.
void check_model(const std::string& model, const SessionSettings& settings, Findings& findings);

}  // namespace rudder::apps
