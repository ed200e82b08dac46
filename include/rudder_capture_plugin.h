/* A consumer of captured activations as a shared object: the C ABI between the server and a plugin.
 *
 * The operator names the file: rudder serve --capture-plugin NAME:file=PATH[,key=value...]. Requests
 * then capture to it by that name:
 *   "capture": {"NAME": {"sites": {"resid_post": [10]}, "positions": "all_generated"}}
 *
 * The object exports one function, rudder_capture_plugin_entry, which returns a table of functions.
 * Threads: `validate` is called on any thread, several at a time; `create` and `destroy` once; all
 * else on one thread that is the plugin's own, one call at a time. A call may take its time: only
 * rows and results of this plugin wait for it.
 *
 * Strings are UTF-8 and end with a NUL; what the server passes is valid during the call only.
 * Functions return 0, or anything else for an error, whose text they give to `out`. An error ends
 * that request's capture to this plugin and nothing else. No exception may leave a function: one
 * that does is caught and taken as an error where plugin and server were built by the same compiler,
 * and may end the process elsewhere. */
#ifndef RUDDER_CAPTURE_PLUGIN_H
#define RUDDER_CAPTURE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a struct changes in a way that its struct_bytes cannot tell. */
#define RUDDER_CAPTURE_ABI 1

enum rudder_capture_dtype {
  RUDDER_CAPTURE_F32 = 0,
  RUDDER_CAPTURE_F16 = 1,
  RUDDER_CAPTURE_BF16 = 2
};

/* Takes a copy of a text: an error, or the payload of finalize. The last call counts. */
typedef struct rudder_capture_out rudder_capture_out;
struct rudder_capture_out {
  void (*set)(rudder_capture_out* out, const char* text, size_t size);
};

typedef struct rudder_capture_model {
  uint32_t struct_bytes;
  int32_t num_layers;
  int32_t hidden;
  int32_t dtype; /* of rows: enum rudder_capture_dtype */
} rudder_capture_model;

typedef struct rudder_capture_point {
  const char* site; /* "resid_post" */
  int32_t layer;
  int32_t after; /* 1: the row after the site's own steering, 0: before */
  int32_t width; /* elements of a row */
} rudder_capture_point;

typedef struct rudder_capture_request {
  uint32_t struct_bytes;
  const char* request_id; /* "" in validate */
  int32_t choice;
  int32_t prompt_len;       /* 0 in validate */
  const char* options_json; /* the request's fields for this plugin but sites, positions, point */
  const rudder_capture_point* points;
  int32_t num_points;
} rudder_capture_request;

/* Tokens in the order of their positions. The row of token t at point p is rows[t * num_points + p]:
 * width elements, aligned to 2 bytes at least. */
typedef struct rudder_capture_rows {
  uint32_t struct_bytes;
  int32_t num_tokens;
  const int32_t* positions;
  const void* const* rows;
} rudder_capture_rows;

typedef struct rudder_capture_plugin {
  uint32_t abi;          /* RUDDER_CAPTURE_ABI */
  uint32_t struct_bytes; /* sizeof(rudder_capture_plugin) */

  /* options_json: the operator's key=value pairs, an object of strings. *plugin is handed to the
   * functions below. */
  int (*create)(const rudder_capture_model* model, const char* options_json, void** plugin,
                rudder_capture_out* out);
  /* Refuses a request before it runs: its error is the client's HTTP 400. May be NULL: a request may
   * then have no options. */
  int (*validate)(void* plugin, const rudder_capture_request* request, rudder_capture_out* out);
  /* A request begins; *session is handed to the two below. */
  int (*open)(void* plugin, const rudder_capture_request* request, void** session,
              rudder_capture_out* out);
  int (*on_rows)(void* session, const rudder_capture_rows* rows, rudder_capture_out* out);
  /* The request has ended, or on_rows failed or threw: frees the session. Unless `cancelled`, what is given
   * to `out` is the payload of the result, as JSON text; none is null. */
  int (*finalize)(void* session, int cancelled, rudder_capture_out* out);
  void (*destroy)(void* plugin);
} rudder_capture_plugin;

/* `host_abi` is the server's RUDDER_CAPTURE_ABI. NULL: the plugin cannot work with it. */
#define RUDDER_CAPTURE_PLUGIN_ENTRY "rudder_capture_plugin_entry"
typedef const rudder_capture_plugin* (*rudder_capture_plugin_entry_fn)(uint32_t host_abi);

#ifdef __cplusplus
}
#endif

#endif /* RUDDER_CAPTURE_PLUGIN_H */
