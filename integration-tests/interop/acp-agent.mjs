// An ACP agent made with the public API of @agentclientprotocol/sdk, over its own stdin and stdout, or with `--http` or
// `--ws` over HTTP/1.1 and WebSocket on one free port, or with `--http2` over HTTP/2. It has the methods of work.mjs, refuses
// requests before `initialize` with -32600, and also has `session/new`, `session/cancel` and `session/prompt`, whose text selects
// a method: `echo x`, `sleep 200`, `wait`, `partial`, `ignore 300`, `nested 1 2`; `nested` alone calls `terminal/create` and
// `session/request_permission`. A prompt ends with `end_turn`, or `cancelled` after `session/cancel` (for all prompts of a
// session) or `$/cancel_request`.

import { createServer } from "node:http";
import { createServer as createHttp2Server } from "node:http2";
import { Readable, Writable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import * as acp from "@agentclientprotocol/sdk";
import { createNodeHttpHandler, createNodeWebSocketUpgradeHandler } from "@agentclientprotocol/sdk/experimental/node";
import { AcpServer } from "@agentclientprotocol/sdk/experimental/server";
import { WebSocketServer } from "ws";
import { listen } from "./listen.mjs";
import { Work, WorkFailed, elapse } from "./work.mjs";

const work = new Work();
const sessions = new Map(); // session id -> the AbortControllers of its running prompts
const anyParams = (params) => params ?? {};

/** Resolves when the SDK's signal aborts: on `$/cancel_request`, and when the connection closes. */
function aborted(signal) {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
}

/** Waits until it is told to stop, then throws what the SDK aborted with: its own -32800 after a cancel. */
async function waitForAbort(signal, entry) {
  await aborted(signal);
  entry.stopped();
  throw signal.reason;
}

/** Sleeps as the SDK's documentation shows: node's AbortError, which the SDK turns into -32800. */
async function abortableSleep(ms, signal, entry) {
  try {
    await sleep(ms, undefined, { signal });
  } catch (error) {
    entry.stopped();
    throw error;
  }
}

/** Asks the client `width` things at once; they are cancelled with the request they belong to. */
async function askClient({ client, signal }, entry, width, method, params) {
  const asked = Array.from({ length: width }, () => client.request(method, params, { cancellationSignal: signal }));
  const answers = await Promise.allSettled(asked);
  if (signal.aborted) {
    entry.stopped();
    throw signal.reason;
  }
  const failed = answers.find((answer) => answer.status === "rejected");
  if (failed) throw failed.reason;
  return { answers: answers.map((answer) => answer.value) };
}

function nested(context, entry) {
  const { depth = 1, width = 1 } = context.params;
  return depth > 1
    ? askClient(context, entry, width, "test/nested", { depth: depth - 1, width })
    : askClient(context, entry, width, "test/wait", {});
}

const extensionMethods = {
  "test/echo": ({ params }) => ({ value: params.value }),
  "test/sleep": async ({ params, signal }, entry) => {
    await abortableSleep(params.ms, signal, entry);
    return { value: params.value };
  },
  "test/wait": ({ signal }, entry) => waitForAbort(signal, entry),
  "test/partial": async ({ signal }, entry) => {
    await aborted(signal);
    entry.stopped();
    return { partial: true };
  },
  "test/ignore": async ({ params }) => {
    await elapse(params.ms);
    return { ignored: true };
  },
  "test/fail_on_cancel": async ({ signal }, entry) => {
    await aborted(signal);
    entry.stopped();
    throw new WorkFailed();
  },
  "test/nested": nested,
  "test/progress": async ({ params, signal, client }, entry) => {
    for (let n = 1; n <= params.count; n += 1) {
      await abortableSleep(params.every_ms, signal, entry);
      await client.notify("test/tick", { n });
    }
    return { ticks: params.count };
  },
};

/** What a prompt does, by the first word of its text. Each ends by itself or when `signal` aborts. */
const prompts = {
  echo: async ({ params, client }, _signal, _entry, [text = ""]) => {
    await say(client, params.sessionId, text);
  },
  sleep: (_context, signal, entry, [ms = "0"]) => abortableSleep(Number(ms), signal, entry),
  wait: (_context, signal, entry) => waitForAbort(signal, entry),
  partial: async ({ params, client }, signal, entry) => {
    await say(client, params.sessionId, "part of the answer");
    await waitForAbort(signal, entry);
  },
  ignore: (_context, _signal, _entry, [ms = "0"]) => elapse(Number(ms)),
  nested: async ({ params: { sessionId }, client }, signal, entry, [depth, width]) => {
    await say(client, sessionId, "started");
    if (depth) return nested({ params: { depth: Number(depth), width: Number(width) }, client, signal }, entry);
    // Without numbers: the flow drawn in ACP's cancellation page.
    await Promise.allSettled([
      client.request("terminal/create", { sessionId, command: "grep", args: ["pattern", "file.txt"] }, { cancellationSignal: signal }),
      client.request(
        "session/request_permission",
        {
          sessionId,
          toolCall: { toolCallId: "read", title: "read sensitive file" },
          options: [{ optionId: "once", name: "Allow once", kind: "allow_once" }],
        },
        { cancellationSignal: signal },
      ),
    ]);
    if (signal.aborted) {
      entry.stopped();
      throw signal.reason;
    }
  },
};

const say = (client, sessionId, text) =>
  client.notify("session/update", { sessionId, update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text } } });

async function prompt(context) {
  const { params, signal } = context;
  const turns = sessions.get(params.sessionId);
  if (!turns) throw acp.RequestError.sessionNotFound(params.sessionId);
  const [name, ...words] = (params.prompt.find((block) => block.type === "text")?.text ?? "").split(" ");
  const play = prompts[name];
  if (!play) throw acp.RequestError.invalidParams({ prompt: name }, `no prompt is called "${name}"`);

  // A prompt stops for `$/cancel_request` (the SDK's signal) and for `session/cancel` (ours).
  const turn = new AbortController();
  turns.add(turn);
  const either = AbortSignal.any([signal, turn.signal]);
  return work.run(async (entry) => {
    try {
      await play(context, either, entry, words);
      return { stopReason: "end_turn" };
    } catch (error) {
      if (either.aborted) return { stopReason: "cancelled" };
      throw error;
    } finally {
      turns.delete(turn);
    }
  });
}

const app = acp
  .agent({ name: "acp-sdk-agent" })
  .onRequest("initialize", () => ({ protocolVersion: acp.PROTOCOL_VERSION, agentCapabilities: {} }))
  .onRequest("session/new", () => {
    const sessionId = `session-${sessions.size + 1}`;
    sessions.set(sessionId, new Set());
    return { sessionId };
  })
  .onRequest("session/prompt", prompt)
  .onNotification("session/cancel", ({ params }) => {
    for (const turn of sessions.get(params.sessionId) ?? []) turn.abort(new Error("session/cancel"));
  })
  .onRequest("test/stats", anyParams, () => work.stats());
for (const [method, handler] of Object.entries(extensionMethods)) {
  app.onRequest(method, anyParams, (context) => work.run((entry) => handler(context, entry)));
}

const server = new AcpServer({ agent: app });

/** HTTP/1.1, and the WebSocket upgrade on the same path. `scheme` is how the line that says where names it. */
function serveHttp(scheme) {
  const http = createServer(createNodeHttpHandler(server));
  http.on("upgrade", createNodeWebSocketUpgradeHandler(server, new WebSocketServer({ noServer: true })));
  listen(http, "/acp", scheme);
}

/** HTTP/2, which the draft requires. The SDK's adapter takes node's `:method` and such for headers and answers 500. */
function serveHttp2() {
  const handle = createNodeHttpHandler(server);
  const http = createHttp2Server((request, response) => {
    const { method, url, authority } = request;
    const headers = Object.fromEntries(Object.entries(request.headers).filter(([name]) => !name.startsWith(":")));
    const plain = { method, url, headers: { host: authority, ...headers } };
    handle(Object.defineProperties(request, Object.fromEntries(Object.entries(plain).map(([name, value]) => [name, { value }]))), response);
  });
  listen(http, "/acp");
}

if (process.argv[2] === "--http2") serveHttp2();
else if (process.argv[2]) serveHttp(process.argv[2].slice("--".length));
// At the end of its input the SDK aborts every handler and the connection; the process ends when nothing is left to do.
else app.connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
