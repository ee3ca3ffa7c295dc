// A language server made with the public API of vscode-jsonrpc. It has the methods of work.mjs.
//   node lsp-server.mjs                  over its own stdin and stdout
//   node lsp-server.mjs --pipe PATH      connects to the pipe its client listens on, as editors start their servers
//   node lsp-server.mjs --listen PATH    listens on a pipe, for any number of clients, each with a count of its own work

import { createServer } from "node:net";
import {
  ResponseError,
  SocketMessageReader,
  SocketMessageWriter,
  StreamMessageReader,
  StreamMessageWriter,
  createMessageConnection,
  createServerPipeTransport,
} from "vscode-jsonrpc/node";
import { Work, WorkFailed, elapse } from "./work.mjs";

// vscode-jsonrpc has no name for LSP's code and never sends it by itself: a handler answers it, as here.
const requestCancelled = () => new ResponseError(-32800, "Request cancelled");

const logger = { error: (text) => console.error(text), warn: (text) => console.error(text), info: () => {}, log: () => {} };

/** Resolves when the library's token is cancelled. */
function cancelled(token) {
  if (token.isCancellationRequested) return Promise.resolve();
  return new Promise((resolve) => token.onCancellationRequested(resolve));
}

/** Sleeps, and throws LSP's cancelled answer when the token is cancelled first. */
async function cancellableSleep(ms, token, entry) {
  let timer;
  const slept = new Promise((resolve) => (timer = setTimeout(resolve, ms)));
  await Promise.race([slept, cancelled(token)]);
  clearTimeout(timer);
  if (!token.isCancellationRequested) return;
  entry.stopped();
  throw requestCancelled();
}

/** Asks the client `width` things at once; the library cancels them when the parent's token is cancelled. */
async function askClient(connection, token, entry, width, method, params) {
  const asked = Array.from({ length: width }, () => connection.sendRequest(method, params, token));
  const answers = await Promise.allSettled(asked);
  if (token.isCancellationRequested) {
    entry.stopped();
    throw requestCancelled();
  }
  const failed = answers.find((answer) => answer.status === "rejected");
  if (failed) throw failed.reason;
  return { answers: answers.map((answer) => answer.value) };
}

const methodsOf = (connection) => ({
  "test/echo": (params) => ({ value: params.value }),
  "test/sleep": async (params, token, entry) => {
    await cancellableSleep(params.ms, token, entry);
    return { value: params.value };
  },
  "test/wait": async (_params, token, entry) => {
    await cancelled(token);
    entry.stopped();
    throw requestCancelled();
  },
  "test/partial": async (_params, token, entry) => {
    await cancelled(token);
    entry.stopped();
    return { partial: true };
  },
  "test/ignore": async (params) => {
    await elapse(params.ms);
    return { ignored: true };
  },
  "test/fail_on_cancel": async (_params, token, entry) => {
    await cancelled(token);
    entry.stopped();
    throw new WorkFailed();
  },
  "test/nested": ({ depth = 1, width = 1 }, token, entry) =>
    depth > 1
      ? askClient(connection, token, entry, width, "test/nested", { depth: depth - 1, width })
      : askClient(connection, token, entry, width, "test/wait", {}),
  "test/progress": async (params, token, entry) => {
    for (let n = 1; n <= params.count; n += 1) {
      await cancellableSleep(params.every_ms, token, entry);
      await connection.sendNotification("test/tick", { n });
    }
    return { ticks: params.count };
  },
});

/** Counts by itself: at the end of a connection the library lets its handlers run on. */
function serve(reader, writer) {
  const work = new Work();
  const connection = createMessageConnection(reader, writer, logger);
  for (const [method, handler] of Object.entries(methodsOf(connection))) {
    // A request without params comes as (token), one with params as (params, token).
    connection.onRequest(method, (...given) => {
      const token = given.pop();
      return work.run((entry) => handler(given[0] ?? {}, token, entry));
    });
  }
  connection.onRequest("test/stats", () => work.stats());
  connection.onRequest("initialize", () => ({ capabilities: {}, serverInfo: { name: "vscode-jsonrpc-server" } }));
  connection.onRequest("shutdown", () => null);
  connection.onNotification("initialized", () => {});
  // The library reports what it could not read or write and stays up; so do we.
  connection.onError(([error]) => console.error(`vscode-jsonrpc: ${error.message}`));
  return connection;
}

const [flag, pipe] = process.argv.slice(2);
if (flag === "--listen") {
  // With Node's defaults, as the library's own pipes have them: a socket whose peer ends its half is ended.
  const server = createServer((socket) => {
    socket.on("error", (error) => console.error(`the pipe: ${error.message}`));
    const connection = serve(new SocketMessageReader(socket), new SocketMessageWriter(socket));
    connection.onNotification("exit", () => socket.end());
    connection.listen();
  });
  server.listen(pipe, () => console.error(`listening on pipe:${pipe}`));
  for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(0));
} else {
  const ends = flag === "--pipe" ? createServerPipeTransport(pipe) : [new StreamMessageReader(process.stdin), new StreamMessageWriter(process.stdout)];
  const connection = serve(...ends);
  connection.onNotification("exit", () => process.exit(0));
  // At the end of the input it closes the connection and cancels nothing; the process ends when nothing is left to do.
  connection.listen();
}
