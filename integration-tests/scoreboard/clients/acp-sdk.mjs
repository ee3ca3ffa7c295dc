// A client of @agentclientprotocol/sdk for: rescind check --client --dialect acp -- node acp-sdk.mjs
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const { RESCIND_SCENARIO: scenario, RESCIND_WAIT_MS } = process.env;
const wait = Number(RESCIND_WAIT_MS);
const [command, ...args] = JSON.parse(process.env.RESCIND_COMMAND);
const child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const after = (ms) => { const abort = new AbortController(); setTimeout(() => abort.abort(), ms); return abort.signal; };

if (scenario === "timeout") process.exit(77); // The library has no time limits.
const connection = acp.client({ name: "acp-sdk" })
  .onNotification("session/update", () => {})
  .onRequest("fs/read_text_file", ({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))))
  .connect(acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout)));
const ask = (method, params, cancellationSignal) => connection.agent.request(method, params, { cancellationSignal });
const open = ask("initialize", { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: { fs: { readTextFile: true } } }, scenario === "initialize" ? after(wait) : undefined);
if (scenario === "initialize") {
  await Promise.race([open.catch(() => {}), new Promise((done) => setTimeout(done, 2 * wait))]);
} else {
  await open;
  const session = async () => (await ask("session/new", { cwd: process.cwd(), mcpServers: [] })).sessionId;
  const [one, other] = [await session(), await session()];
  const prompt = (text, sessionId, signal) => ask("session/prompt", { sessionId, prompt: [{ type: "text", text }] }, signal);
  if (scenario === "cancel") await prompt("slow", one, after(wait)).catch(() => {});
  if (scenario === "pair") await Promise.all([prompt("slow", one, after(wait)).catch(() => {}), prompt("slow", other)]);
  if (scenario === "serve") await prompt("slow", one);
  if (scenario === "close") { prompt("slow", one).catch(() => {}); await new Promise((done) => setTimeout(done, wait)); }
  if (scenario !== "close" && (await prompt("quick", one)).stopReason !== "end_turn") process.exit(1);
}
connection.close();
child.stdin.end();
process.exit(0);
