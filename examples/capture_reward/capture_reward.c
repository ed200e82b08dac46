/* An example of a capture plugin: a reward from activations. The reward of an answer is the mean
 * cosine between a probe vector and the captured rows; it comes back in the response:
 *
 *   rudder serve --capture-plugin reward:file=capture_reward.so,probe=probe.f32
 *   "capture": {"reward": {"sites": {"resid_post": [10]}, "positions": "all_generated"}}
 *   -> "capture_results": {"reward": {"status": "ok", "payload": {"reward": 0.31, "rows": 57}}}
 *
 * `probe` is a file of little-endian float32 numbers, as many as a row has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rudder_capture_plugin.h"

typedef struct Plugin {
  float* probe;
  int32_t width;
  double norm;
  int32_t dtype;
} Plugin;

typedef struct Session {
  const Plugin* plugin;
  int32_t num_points;
  double cosine_sum;
  long num_rows;
} Session;

static int fail(rudder_capture_out* out, const char* text) {
  out->set(out, text, strlen(text));
  return 1;
}

/* The value of "key" in an object of strings. Paths with quotes or backslashes are not for it. */
static int read_option(const char* json, const char* key, char* value, size_t size) {
  char pattern[64];
  snprintf(pattern, sizeof pattern, "\"%s\":\"", key);
  const char* begin = strstr(json, pattern);
  if (begin == NULL) return 0;
  begin += strlen(pattern);
  const char* end = strchr(begin, '"');
  if (end == NULL || (size_t)(end - begin) >= size) return 0;
  memcpy(value, begin, (size_t)(end - begin));
  value[end - begin] = '\0';
  return 1;
}

static void destroy(void* plugin) {
  Plugin* self = plugin;
  free(self->probe);
  free(self);
}

static int create(const rudder_capture_model* model, const char* options_json, void** plugin,
                  rudder_capture_out* out) {
  char path[4096];
  if (!read_option(options_json, "probe", path, sizeof path)) {
    return fail(out, "needs the option probe=FILE");
  }
  Plugin* self = calloc(1, sizeof *self);
  if (self == NULL) return fail(out, "out of memory");
  self->width = model->hidden;
  self->dtype = model->dtype;
  self->probe = calloc((size_t)self->width, sizeof(float));
  FILE* file = fopen(path, "rb");
  size_t num_read = 0;
  if (file != NULL && self->probe != NULL) {
    num_read = fread(self->probe, sizeof(float), (size_t)self->width, file);
  }
  if (file != NULL) fclose(file);
  for (size_t i = 0; i < num_read; ++i) self->norm += (double)self->probe[i] * self->probe[i];
  self->norm = sqrt(self->norm);
  if (num_read != (size_t)self->width || !(self->norm > 0)) {
    destroy(self);
    return fail(out, "the probe file has too few numbers, or only zeros");
  }
  *plugin = self;
  return 0;
}

static int validate(void* plugin, const rudder_capture_request* request, rudder_capture_out* out) {
  const Plugin* self = plugin;
  for (int32_t i = 0; i < request->num_points; ++i) {
    if (request->points[i].width != self->width) {
      return fail(out, "the probe is for rows of the residual's width");
    }
  }
  if (strcmp(request->options_json, "{}") != 0) return fail(out, "takes no options");
  return 0;
}

static int open_session(void* plugin, const rudder_capture_request* request, void** session,
                        rudder_capture_out* out) {
  Session* self = calloc(1, sizeof *self);
  if (self == NULL) return fail(out, "out of memory");
  self->plugin = plugin;
  self->num_points = request->num_points;
  *session = self;
  return 0;
}

/* IEEE half to float: subnormals, infinities and NaN too. */
static float from_half(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return (float)(fraction == 0 ? sign * INFINITY : NAN);
  if (exponent == 0) return (float)(sign * ldexp(fraction, -24));
  return (float)(sign * ldexp(1024 + fraction, exponent - 25));
}

static float element(const void* row, int32_t i, int32_t dtype) {
  if (dtype == RUDDER_CAPTURE_F32) {
    float value;
    memcpy(&value, (const char*)row + (size_t)i * sizeof value, sizeof value);
    return value;
  }
  uint16_t bits;
  memcpy(&bits, (const char*)row + (size_t)i * sizeof bits, sizeof bits);
  if (dtype == RUDDER_CAPTURE_F16) return from_half(bits);
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

static int on_rows(void* session, const rudder_capture_rows* rows, rudder_capture_out* out) {
  Session* self = session;
  const Plugin* plugin = self->plugin;
  (void)out;
  for (int32_t k = 0; k < rows->num_tokens * self->num_points; ++k) {
    double dot = 0;
    double squares = 0;
    for (int32_t i = 0; i < plugin->width; ++i) {
      const double value = element(rows->rows[k], i, plugin->dtype);
      dot += value * plugin->probe[i];
      squares += value * value;
    }
    if (squares > 0) self->cosine_sum += dot / (sqrt(squares) * plugin->norm);
    ++self->num_rows;
  }
  return 0;
}

static int finalize(void* session, int cancelled, rudder_capture_out* out) {
  Session* self = session;
  if (!cancelled) {
    char text[128];
    const double reward = self->num_rows > 0 ? self->cosine_sum / (double)self->num_rows : 0;
    const int size = snprintf(text, sizeof text, "{\"reward\":%.9g,\"rows\":%ld}", reward,
                              self->num_rows);
    out->set(out, text, (size_t)size);
  }
  free(self);
  return 0;
}

static const rudder_capture_plugin kPlugin = {
    .abi = RUDDER_CAPTURE_ABI,
    .struct_bytes = sizeof(rudder_capture_plugin),
    .create = create,
    .validate = validate,
    .open = open_session,
    .on_rows = on_rows,
    .finalize = finalize,
    .destroy = destroy,
};

const rudder_capture_plugin* rudder_capture_plugin_entry(uint32_t host_abi);
const rudder_capture_plugin* rudder_capture_plugin_entry(uint32_t host_abi) {
  return host_abi == RUDDER_CAPTURE_ABI ? &kPlugin : NULL;
}
