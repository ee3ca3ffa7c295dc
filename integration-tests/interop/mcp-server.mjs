// An MCP server of the 2025 revisions, made with the public API of @modelcontextprotocol/sdk, over its own stdin and
// stdout, or on a free port: with `--http` over streamable HTTP, with `--sse` over the transport of 2024-11-05. With
// `--revision R` it speaks only that revision, as a server of its time does. With `--tasks` its tools run as tasks, in the SDK's
// store, if the client asks for one. It has the methods of work.mjs.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { SSEServerTransport } from "@modelcontextprotocol/sdk/server/sse.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { CallToolRequestSchema, ErrorCode, InitializeRequestSchema, ListToolsRequestSchema, McpError, ResultSchema } from "@modelcontextprotocol/sdk/types.js";
import { listen } from "./listen.mjs";
import { perform, toolResult, tools } from "./mcp-tools.mjs";

/** What the SDK lends a handler. */
function lent({ signal, _meta, sendNotification, sendRequest }) {
  const progressToken = _meta?.progressToken;
  return {
    signal,
    progress: async (progress, total) => {
      if (progressToken === undefined) return;
      await sendNotification({ method: "notifications/progress", params: { progressToken, progress, total } });
    },
    ask: (method, params) => sendRequest({ method, params }, ResultSchema, { signal }),
  };
}

const words = process.argv.slice(2);
const revision = words[0] === "--revision" ? words.splice(0, 2)[1] : undefined;
const withTasks = words[0] === "--tasks" && words.splice(0, 1).length > 0;
const taskCapabilities = { tasks: { cancel: {}, requests: { tools: { call: {} } } } };
// One store for all sessions of the process.
const taskOptions = withTasks ? { taskStore: new InMemoryTaskStore(), taskMessageQueue: new InMemoryTaskMessageQueue() } : {};

function server() {
  const serverInfo = { name: "mcp-sdk-server", version: "0.0.0" };
  const capabilities = { tools: {}, ...(withTasks ? taskCapabilities : {}) };
  const served = new Server(serverInfo, { capabilities, ...taskOptions });
  if (revision) {
    served.setRequestHandler(InitializeRequestSchema, () => ({ protocolVersion: revision, capabilities, serverInfo }));
  }
  served.setRequestHandler(ListToolsRequestSchema, () => ({ tools }));
  served.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
    const done = perform(params.name, params.arguments, lent(extra));
    if (done === undefined) throw new McpError(ErrorCode.InvalidParams, `no tool is called "${params.name}"`);
    if (withTasks && params.task) return taskOf(done, extra);
    return toolResult(await done);
  });
  // The same abilities as methods of their own, which is how they are asked without a tool's wrapping.
  served.fallbackRequestHandler = async ({ method, params }, extra) => {
    const done = method.startsWith("test/") ? perform(method.slice("test/".length), params, lent(extra)) : undefined;
    if (done === undefined) throw new McpError(ErrorCode.MethodNotFound, "Method not found");
    return done;
  };
  return served;
}

/** The handle of a task whose work is `done`, as the SDK's documentation shows: the store is told how it ends. */
async function taskOf(done, { taskStore, taskRequestedTtl }) {
  const task = await taskStore.createTask({ ttl: taskRequestedTtl, pollInterval: 50 });
  Promise.resolve(done)
    .then((value) => taskStore.storeTaskResult(task.taskId, "completed", toolResult(value)))
    .catch((error) => taskStore.storeTaskResult(task.taskId, "failed", { content: [{ type: "text", text: String(error) }], isError: true }))
    // A store takes no result of a task that was cancelled.
    .catch(() => {});
  return { task };
}

/** A transport and a server of its own for each session, as the SDK's documentation shows. */
function serveHttp() {
  const sessions = new Map();
  const http = createServer(async (request, response) => {
    const known = sessions.get(request.headers["mcp-session-id"]);
    if (known) return known.handleRequest(request, response);
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => sessions.set(id, transport),
    });
    transport.onclose = () => sessions.delete(transport.sessionId);
    await server().connect(transport);
    // Whatever is not an `initialize` the transport refuses by itself.
    await transport.handleRequest(request, response);
  });
  listen(http, "/mcp");
}

/** The same over the transport of 2024-11-05: a stream and its POSTs. */
function serveSse() {
  const sessions = new Map();
  const http = createServer(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url, "http://localhost");
    if (request.method === "GET" && pathname === "/sse") {
      const transport = new SSEServerTransport("/messages", response);
      sessions.set(transport.sessionId, transport);
      transport.onclose = () => sessions.delete(transport.sessionId);
      return server().connect(transport);
    }
    const known = request.method === "POST" && pathname === "/messages" && sessions.get(searchParams.get("sessionId"));
    if (known) return known.handlePostMessage(request, response);
    response.writeHead(404).end("Not found");
  });
  listen(http, "/sse");
}

if (words[0] === "--http") serveHttp();
else if (words[0] === "--sse") serveSse();
else await server().connect(new StdioServerTransport());
