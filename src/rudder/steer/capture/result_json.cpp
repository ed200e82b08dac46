#include "rudder/steer/capture/result_json.h"

#include <fmt/format.h>

#include <iterator>
#include <span>

#include "rudder/base/json.h"
#include "rudder/steer/capture/base64.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/row_numbers.h"

namespace rudder::steer::capture {
namespace {

// How many numbers a point has: one, or a list of one a token.
enum class Form : uint8_t { kOneToken, kTokens };

// "resid_post":{"dtype":…,"shape":[num_rows,width],"layer_indices":[…],"residual"?:…,"data":…}
void append_rows(std::string& out, const std::vector<ResultRows>& packs) {
  out += '{';
  for (const ResultRows& rows : packs) {
    if (&rows != &packs.front()) out += ',';
    fmt::format_to(std::back_inserter(out),
                   R"("{}":{{"dtype":"{}","shape":[{},{}],"layer_indices":[{}],{}{}"data":")",
                   rows.key, dtype_spelling(rows.dtype), rows.layers.size(), rows.width,
                   fmt::join(rows.layers, ","), rows.residual, rows.residual.empty() ? "" : ",");
    append_base64(out, rows.data);
    out += "\"}";
  }
  out += '}';
}

void append_points(std::string& out, const std::vector<PointNumbers>& points, Form form) {
  out += '{';
  for (const PointNumbers& numbers : points) {
    if (&numbers != &points.front()) out += ',';
    fmt::format_to(std::back_inserter(out), R"("{}":)", numbers.point);
    if (form == Form::kTokens) out += '[';
    for (size_t i = 0; i < numbers.values.size(); ++i) {
      if (i > 0) out += ',';
      append_number(out, numbers.values[i]);
    }
    if (form == Form::kTokens) out += ']';
  }
  out += '}';
}

// "resid_post.5":{"token_ids":[…],"logprobs":[…],"stream"?:…}, lists of lists where there are
// several tokens.
void append_lens(std::string& out, const std::vector<LensReading>& lens, Form form) {
  const auto append_all = [&](const LensReading& reading, auto&& append_one) {
    if (form == Form::kTokens) out += '[';
    for (const std::vector<tap::LensToken>& tokens : reading.tokens) {
      if (&tokens != &reading.tokens.front()) out += ',';
      out += '[';
      for (const tap::LensToken& token : tokens) {
        if (token.token < 0) break;
        if (&token != &tokens.front()) out += ',';
        append_one(token);
      }
      out += ']';
    }
    if (form == Form::kTokens) out += ']';
  };
  out += '{';
  for (const LensReading& reading : lens) {
    if (&reading != &lens.front()) out += ',';
    fmt::format_to(std::back_inserter(out), R"("resid_post.{}":{{"token_ids":)", reading.layer);
    append_all(reading, [&](const tap::LensToken& token) {
      fmt::format_to(std::back_inserter(out), "{}", token.token);
    });
    out += R"(,"logprobs":)";
    append_all(reading, [&](const tap::LensToken& token) { append_number(out, token.logprob); });
    if (!reading.stream.empty()) {
      fmt::format_to(std::back_inserter(out), R"(,"stream":{})", reading.stream);
    }
    out += '}';
  }
  out += '}';
}

// "5":{"heads":[…],"dtype":…,"keys":[…],"data":…}, keys as one number where there is one token.
void append_patterns(std::string& out, const std::vector<PatternReading>& patterns, Form form) {
  out += '{';
  for (const PatternReading& reading : patterns) {
    if (&reading != &patterns.front()) out += ',';
    const bool is_list = form == Form::kTokens;
    fmt::format_to(std::back_inserter(out),
                   R"("{}":{{"heads":[{}],"dtype":"{}","keys":{}{}{},"data":")", reading.layer,
                   fmt::join(reading.heads, ","), dtype_spelling(reading.dtype), is_list ? "[" : "",
                   fmt::join(reading.keys, ","), is_list ? "]" : "");
    append_base64(out, reading.data);
    out += "\"}";
  }
  out += '}';
}

// {"name":…,"layer":5,"features":[…],"values":[…]}, lists of lists where there are several tokens.
void append_features(std::string& out, const FeatureReading& reading, Form form) {
  const auto append_all = [&](auto&& append_one) {
    if (form == Form::kTokens) out += '[';
    for (const std::vector<features::FeatureValue>& values : reading.tokens) {
      if (&values != &reading.tokens.front()) out += ',';
      out += '[';
      for (const features::FeatureValue& value : values) {
        if (&value != &values.front()) out += ',';
        append_one(value);
      }
      out += ']';
    }
    if (form == Form::kTokens) out += ']';
  };
  out += R"({"name":)";
  append_json_string(out, reading.dictionary);
  fmt::format_to(std::back_inserter(out), R"(,"layer":{},"features":)", reading.layer);
  append_all([&](const features::FeatureValue& value) {
    fmt::format_to(std::back_inserter(out), "{}", value.feature);
  });
  out += R"(,"values":)";
  append_all([&](const features::FeatureValue& value) { append_number(out, value.value); });
  out += '}';
}

// Members of an object that has one already.
void append_parts(std::string& out, const CapturedValues& values, Form form) {
  if (!values.rows.empty()) {
    out += R"(,"rows":)";
    append_rows(out, values.rows);
  }
  if (!values.norms.empty()) {
    out += R"(,"norms":)";
    append_points(out, values.norms, form);
  }
  if (!values.probes.empty()) {
    out += R"(,"probes":{)";
    for (const ProbeNumbers& numbers : values.probes) {
      if (&numbers != &values.probes.front()) out += ',';
      append_json_string(out, numbers.probe);
      out += ':';
      append_points(out, numbers.points, form);
    }
    out += '}';
  }
  if (!values.lens.empty()) {
    out += R"(,"lens":)";
    append_lens(out, values.lens, form);
  }
  if (values.features) {
    out += R"(,"dictionary":)";
    append_features(out, *values.features, form);
  }
  if (!values.patterns.empty()) {
    out += R"(,"patterns":)";
    append_patterns(out, values.patterns, form);
  }
  if (!values.means.empty()) {
    out += R"(,"means":)";
    append_rows(out, values.means);
  }
}

void append_values(std::string& out, const CapturedValues& values) {
  if (values.num_events) {
    fmt::format_to(std::back_inserter(out), R"({{"events":{})", *values.num_events);
  } else {
    fmt::format_to(std::back_inserter(out), R"({{"positions":[{}])",
                   fmt::join(values.positions, ","));
  }
  append_parts(out, values, Form::kTokens);
  out += '}';
}

void append_payload(std::string& out, const ConsumerResult& result) {
  if (result.values) {
    append_values(out, *result.values);
  } else {
    out += result.payload.empty() ? "null" : result.payload;
  }
}

}  // namespace

std::string results_json(const CaptureResults& results) {
  std::string out = "{";
  for (const ConsumerResult& result : results) {
    if (out.size() > 1) out += ',';
    append_json_string(out, result.consumer);
    out += ":{\"status\":\"";
    out += status_name(result.status);
    out += "\",\"error\":";
    if (result.error.empty()) {
      out += "null";
    } else {
      append_json_string(out, result.error);
    }
    out += ",\"payload\":";
    append_payload(out, result);
    out += '}';
  }
  out += '}';
  return out;
}

void append_event_values(std::string& out, const CaptureEvent& event) {
  fmt::format_to(std::back_inserter(out), R"({{"position":{})", event.position);
  append_parts(out, event.values, Form::kOneToken);
  out += '}';
}

}  // namespace rudder::steer::capture
