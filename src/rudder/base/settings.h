// The settings table: each room declares its settings (name, type, default, doc) beside the struct
// that holds them; flags, environment names, --help, docs and /server_info all come from the table.
// Filled once at start by apps/, on one thread. Nothing else in Rudder reads the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder {

struct Setting {
  std::string name;  // "max-num-seqs": the flag is --max-num-seqs
  std::string
      type;  // shown in help: "bool", "int", "float", "float or auto", "text", "bytes", "a|b|c"
  std::string default_value;  // as text
  std::string doc;            // one sentence
  std::string room;           // the section in --help and docs
  bool is_switch = false;     // bool: --name and --no-name, no value needed
  bool is_list = false;       // may be given several times
  bool is_set = false;        // by flag, file or environment, not only by default
  std::function<Result<void>(std::string_view)> set;
  std::function<std::string()> get;
};

class SettingsTable {
 public:
  // Settings added from here on belong to this room's section.
  void section(std::string room);

  // Each binds one field; its present value is the default. The field must outlive the table.
  void add(std::string name, bool* field, std::string doc);
  void add(std::string name, int32_t* field, int64_t min, int64_t max, std::string doc);
  void add(std::string name, int64_t* field, int64_t min, int64_t max, std::string doc);
  void add(std::string name, double* field, double min, double max, std::string doc);
  // "auto" is nullopt.
  void add(std::string name, std::optional<double>* field, double min, double max, std::string doc);
  void add(std::string name, std::string* field, std::string doc);
  void add(std::string name, std::vector<std::string>* field, std::string doc);  // repeatable
  void add_bytes(std::string name, int64_t* field, std::string doc);             // "4GiB", "512M"
  // `gone`: words that were choices, and of each the sentence that refuses it.
  void add_choice(std::string name, std::string* field, std::vector<std::string> choices,
                  std::string doc, std::map<std::string, std::string, std::less<>> gone = {});

  // Sets one by name; an unknown name is an Error with the nearest known one.
  Result<void> set(std::string_view name, std::string_view value);
  bool is_set(std::string_view name) const;
  // Reads RUDDER_MAX_NUM_SEQS for max-num-seqs, for every setting that is not set: call it last.
  Result<void> read_environment();

  const Setting* find(std::string_view name) const;
  const std::vector<Setting>& all() const { return settings_; }
  std::string help_text() const;
  std::string nearest(std::string_view name) const;  // empty when nothing is near

 private:
  Setting& push(std::string name, std::string type, std::string doc);

  std::string room_;
  std::vector<Setting> settings_;
};

// "32K" = 32,768; K, M, G, T with optional "i" and "B" are powers of 1,024. Refuses signs, NaN and
// overflow. Used for counts and for bytes.
Result<int64_t> parse_human_integer(std::string_view text);

// The environment, for the few names that are not settings (HOME). The only getenv in Rudder.
std::string environment_value(const char* name);

}  // namespace rudder
