// Starts a server that prints "listening on URL", then a command with stdin and stdout of this program, in which `{url}` is
// replaced by that URL. It ends with the command.
//   node over-sse.mjs SERVER ARG... -- COMMAND ARG...

import { spawn } from "node:child_process";

const words = process.argv.slice(2);
// The server may have one of its own.
const split = words.lastIndexOf("--");
if (split < 1 || split === words.length - 1) {
  console.error("usage: node over-sse.mjs SERVER ARG... -- COMMAND ARG...");
  process.exit(2);
}
const [program, ...args] = words.slice(0, split);
// Its stdin ends with this process, even if that is killed.
const env = { ...process.env, ENDS_WITH_STDIN: "1" };
const server = spawn(program, args, { env, stdio: ["pipe", "ignore", "pipe"] });
let command;
process.on("exit", () => [server, command].forEach((child) => child?.kill("SIGKILL")));
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => (command ? command.kill(signal) : process.exit(1)));
let text = "";
server.stderr.on("data", (data) => {
  process.stderr.write(data);
  text += data;
  const [, url] = /^listening on (\S+)\n/m.exec(text) ?? [];
  if (!url || command) return;
  const [name, ...rest] = words.slice(split + 1).map((word) => word.replaceAll("{url}", url));
  command = spawn(name, rest, { stdio: "inherit" });
  command.on("exit", (code) => process.exit(code ?? 1));
});
server.on("exit", (code) => process.exit(code || 1));
