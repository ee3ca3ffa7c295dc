// A language client made with vscode-jsonrpc that drives the language server of docs/language-server.md, which is given after `--`.
// It prints a line for what held, and ends with 1 at the first that did not.

import { spawn } from "node:child_process";
import { CancellationTokenSource, StreamMessageReader, StreamMessageWriter, createMessageConnection } from "vscode-jsonrpc/node";
import { must, within } from "./harness.mjs";

const command = process.argv.slice(process.argv.indexOf("--") + 1);

function start() {
  const child = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve(code ?? signal)));
  const connection = createMessageConnection(new StreamMessageReader(child.stdout), new StreamMessageWriter(child.stdin));
  connection.onError(() => {});
  connection.listen();
  return { child, ended, connection };
}

const at = (line) => ({ textDocument: { uri: "file:///a" }, position: { line, character: 0 } });
const initialize = { processId: null, rootUri: null, capabilities: {} };
const codeOf = (asked) => asked.then(() => undefined, (error) => error.code);

// Before the handshake, and an end without shutdown.
const early = start();
must((await within("an answer before initialize", codeOf(early.connection.sendRequest("textDocument/hover", at(0))))) === -32002, "it serves before initialize");
await early.connection.sendNotification("exit");
must((await within("its end without shutdown", early.ended)) === 1, "it did not end with 1");

const { ended, connection } = start();
const { capabilities } = await within("the answer to initialize", connection.sendRequest("initialize", initialize));
must(capabilities.hoverProvider === true, "it offers no hover");
await connection.sendNotification("initialized", {});
const { contents } = await within("a hover", connection.sendRequest("textDocument/hover", at(0)));
must(contents === "This is line 0.", `it says ${contents}`);
const source = new CancellationTokenSource();
const slow = codeOf(connection.sendRequest("textDocument/hover", at(3600), source.token));
source.cancel();
must((await within("the answer to a cancelled hover", slow)) === -32800, "a cancelled hover is not answered with -32800");
must((await within("the answer to shutdown", connection.sendRequest("shutdown"))) === null, "shutdown is not answered with null");
must((await within("an answer after shutdown", codeOf(connection.sendRequest("textDocument/hover", at(0))))) === -32600, "it serves after shutdown");
await connection.sendNotification("exit");
must((await within("its end", ended)) === 0, "it did not end with 0");
console.log("initialize, hover, a cancelled hover, shutdown and exit held, and what comes before and after them");
