// The MCP server behind every bridge, on stdin and stdout, or with `--http` over streamable HTTP. It uses no library. It appends a line of
// JSON to LOG for each thing that reaches it.
//   node child.mjs LOG [--deaf] [--http]
// Tools: `echo` answers its arguments, `wait` answers nothing until it is cancelled, `crash` ends the process.

import { appendFileSync } from "node:fs";
import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";

const [log, ...flags] = process.argv.slice(2);
const deaf = flags.includes("--deaf");
const now = () => performance.timeOrigin + performance.now();
const note = (what) => appendFileSync(log, `${JSON.stringify({ ...what, at: now(), pid: process.pid })}\n`);
const TOOLS = ["echo", "wait", "crash"].map((name) => ({ name, description: name, inputSchema: { type: "object" } }));

note({ event: "start" });
process.on("SIGTERM", () => {
  if (!deaf) process.exit(0);
});
process.on("exit", () => note({ event: "exit" }));

/** Answers a message of one connection by `answer`, now or never. `waiting` are its requests that wait, by id. */
function receive(message, waiting, answer) {
  const { id, method, params } = message;
  if (method === "notifications/cancelled") {
    const found = waiting.get(JSON.stringify(params?.requestId));
    note({ event: "cancel", tag: found?.tag });
    waiting.delete(JSON.stringify(params?.requestId));
    found?.ended();
  } else if (id === undefined) {
    return;
  } else if (method === "initialize") {
    answer({ result: { protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "child", version: "1" } } });
  } else if (method === "tools/list") {
    answer({ result: { tools: TOOLS } });
  } else if (method === "tools/call" && params?.name === "wait") {
    note({ event: "wait", tag: params.arguments?.tag });
    waiting.set(JSON.stringify(id), { tag: params.arguments?.tag, ended: () => answer(undefined) });
  } else if (method === "tools/call" && params?.name === "crash") {
    process.exit(3);
  } else if (method === "tools/call") {
    answer({ result: { content: [{ type: "text", text: JSON.stringify(params?.arguments ?? {}) }] } });
  } else if (method === "ping") {
    answer({ result: {} });
  } else {
    answer({ error: { code: -32601, message: "Method not found" } });
  }
}

function overStdio() {
  const waiting = new Map();
  createInterface({ input: process.stdin }).on("line", (line) => {
    const message = JSON.parse(line);
    receive(message, waiting, (body) => body && process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", id: message.id, ...body })}\n`));
  });
  if (deaf) setInterval(() => {}, 1000);
  else process.stdin.on("end", () => process.exit(0));
}

/** A session for each `initialize`. A request is answered as JSON. */
function overHttp() {
  const sessions = new Map();
  const server = createServer((request, response) => {
    if (request.method === "DELETE") {
      const waiting = sessions.get(request.headers["mcp-session-id"]);
      for (const { tag } of waiting?.values() ?? []) note({ event: "ended", tag });
      return response.writeHead(200).end();
    }
    if (request.method !== "POST") return response.writeHead(405).end();
    let body = "";
    request.on("data", (data) => (body += data));
    request.on("end", () => {
      const message = JSON.parse(body);
      const session = message.method === "initialize" ? randomUUID() : request.headers["mcp-session-id"];
      if (!sessions.has(session)) sessions.set(session, new Map());
      if (message.id === undefined) response.writeHead(202).end();
      receive(message, sessions.get(session), (found) => {
        if (!found) return response.writeHead(202).end();
        response.writeHead(200, { "content-type": "application/json", "mcp-session-id": session });
        response.end(JSON.stringify({ jsonrpc: "2.0", id: message.id, ...found }));
      });
      // The client that asked has gone.
      response.on("close", () => response.writableFinished || note({ event: "gone" }));
    });
  });
  server.listen(0, "127.0.0.1", () => console.error(`listening on http://127.0.0.1:${server.address().port}/mcp`));
}

if (flags.includes("--http")) overHttp();
else overStdio();
