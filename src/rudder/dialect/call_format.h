// Makes the structural tag (JSON) that constrains a model's calls to the marks and form of its
// dialect; the constraint room compiles it. When a tool must be called, the answer consists of
// calls; when one may be called, of text or calls. Pure functions; any thread.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/dialect/dialect.h"

namespace rudder::dialect {

struct CallableTool {
  std::string name;
  const boost::json::value* parameters = nullptr;  // a JSON Schema, an object; null: it takes none
  bool is_strict = false;  // its arguments satisfy the schema also where it need not be called
};

// The schema of a tool's arguments: `parameters`, which may leave out that they are an object.
// Where they say nothing of its fields, it has none.
boost::json::object arguments_schema(const CallableTool& tool);

// The id of a mark that is a special token: a grammar names it by id, since it spells no text.
using FindSpecial = std::function<std::optional<int32_t>(std::string_view mark)>;

// `content` (a format of a structural tag) as the answer, behind thoughts where the setup has them
// and what models put between the two.
boost::json::object format_after_thoughts(const ParserSetup& setup, boost::json::object content,
                                          const FindSpecial& find_special);

// One call, or with `parallel` one or more, each of one of `tools`; before them thoughts, where the
// setup has them. A form that is no JSON is written as JSON between its marks: its parser reads
// that too.
boost::json::object call_format(const ParserSetup& setup, const std::vector<CallableTool>& tools,
                                bool parallel, const FindSpecial& find_special);

// Any text, and wherever a mark begins a call, a call of one of `tools`; the first one ends the
// answer unless `parallel`. Arguments of strict tools satisfy their schemas, others' are objects.
boost::json::object text_or_calls_format(const ParserSetup& setup,
                                         const std::vector<CallableTool>& tools, bool parallel,
                                         const FindSpecial& find_special);

// `content`, or calls as above.
boost::json::object content_or_calls_format(const ParserSetup& setup, boost::json::object content,
                                            const std::vector<CallableTool>& tools, bool parallel,
                                            const FindSpecial& find_special);

}  // namespace rudder::dialect
