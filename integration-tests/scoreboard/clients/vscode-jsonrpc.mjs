// A client of vscode-jsonrpc for: rescind check --client --dialect lsp -- node vscode-jsonrpc.mjs
import { spawn } from "node:child_process";
import { CancellationTokenSource, ResponseError, StreamMessageReader, StreamMessageWriter, createMessageConnection } from "vscode-jsonrpc/node";

const { RESCIND_SCENARIO: scenario, RESCIND_WAIT_MS } = process.env;
const wait = Number(RESCIND_WAIT_MS);
const [command, ...args] = JSON.parse(process.env.RESCIND_COMMAND);
const server = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const connection = createMessageConnection(new StreamMessageReader(server.stdout), new StreamMessageWriter(server.stdin));
const symbols = (query, ...token) => connection.sendRequest("workspace/symbol", { query }, ...token);
const after = (ms) => { const source = new CancellationTokenSource(); setTimeout(() => source.cancel(), ms); return source.token; };

// The library has no time limits, and does not know which request is the handshake.
if (["timeout", "initialize"].includes(scenario)) process.exit(77);
connection.onRequest("workspace/configuration", (_, token) => new Promise((_, reject) =>
  token.onCancellationRequested(() => reject(new ResponseError(-32800, "Request cancelled")))));
connection.listen();
await connection.sendRequest("initialize", { processId: null, rootUri: null, capabilities: {} });
await connection.sendNotification("initialized", {});
if (scenario === "cancel") await symbols("slow", after(wait)).catch(() => {});
if (scenario === "pair") await Promise.all([symbols("slow", after(wait)).catch(() => {}), symbols("slow")]);
if (scenario === "serve") await symbols("slow");
if (scenario === "close") { symbols("slow").catch(() => {}); await new Promise((done) => setTimeout(done, wait)); }
if (scenario !== "close" && (await symbols("quick"))[0].name !== "quick") process.exit(1);
connection.dispose();
server.stdin.end();
process.exit(0);
