// Calls to the server that this page came from. The key lives in this module's memory and nowhere
// else. Addresses are relative, so that the page works below a proxy's prefix.

export class ApiError extends Error {
  constructor(message, {status = 0, param = "", retryAfter = 0} = {}) {
    super(message);
    Object.assign(this, {status, param, retryAfter});
  }
}

let key = "";
let asking = null;  // the answer to the one dialog that is open
let askForKey = async () => null;

export const hasKey = () => key !== "";

// `ask(refused)` gets a key from the user, or null; `refused`: the one we had was wrong.
export function onKeyNeeded(ask) {
  askForKey = ask;
}

async function errorOf(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // A proxy's page, or nothing: the status says it.
  }
  return new ApiError(told.message || `The server answered ${response.status}.`, {
    status: response.status,
    param: told.param ?? "",
    retryAfter: Number(response.headers.get("retry-after")) || 0,
  });
}

// The response, with a status of success; an ApiError otherwise. Asks for a key where one is needed,
// unless `quiet`.
export async function call(path, {body, signal, quiet = false} = {}) {
  for (;;) {
    const used = key;
    const headers = used ? {authorization: `Bearer ${used}`} : {};
    if (body) headers["content-type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method: body ? "POST" : "GET",
        body: body ? JSON.stringify(body) : undefined,
        headers, signal, cache: "no-store", credentials: "omit",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server cannot be reached.");
    }
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401 || quiet) throw error;
    if (key !== used) continue;  // another call has brought one meanwhile
    asking ??= askForKey(used !== "").finally(() => { asking = null; });
    const given = await asking;
    if (given === null) throw error;
    key = given;
  }
}

// The events of a stream, parsed, until [DONE]. A stream that ends before it has broken off.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The connection broke off.");
    }
    if (part.done) throw new ApiError("The answer broke off.");
    const lines = (unread + part.value).split("\n");
    unread = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;  // an empty line, or a ping
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, event.error);
      yield event;
    }
  }
}
