// Plays the same things through each bridge, with the same server behind it, and prints tables with tabs between the cells.
//   node compare.mjs RESCIND PYTHON [NAME]
// README.md says what each row means.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { cpus, loadavg, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { HttpClient, StdioClient, WsClient } from "./clients.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const [rescind, python, only] = process.argv.slice(2);
if (!python) {
  console.error("usage: node compare.mjs RESCIND PYTHON [NAME]");
  process.exit(2);
}
const CANCELS = 20;
const ECHOES = 300;
const SESSIONS = 50;
const WAIT_MS = 5000;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const now = () => performance.timeOrigin + performance.now();
const median = (all) => all.toSorted((a, b) => a - b)[Math.floor(all.length / 2)];
const bin = (name, file) => [process.execPath, join(here, "node_modules", name, file)];
const text = (words) => words.map((word) => `'${word}'`).join(" ");

/** The bridges. `start(port, child)` is the command, `url(port)` where its clients connect. `child` is the command of the server. */
const BRIDGES = {
  http: {
    "rescind bridge": { start: (port, child) => [rescind, "bridge", "--dialect", "mcp", "--listen", `http://127.0.0.1:${port}/mcp`, "--", ...child] },
    supergateway: {
      start: (port, child) => [...bin("supergateway", "dist/index.js"), "--stdio", text(child), "--outputTransport", "streamableHttp", "--stateful", "--port", port, "--logLevel", "none"],
    },
    "mcp-proxy": { start: (port, child) => [join(dirname(python), "mcp-proxy"), "--port", port, "--host", "127.0.0.1", "--log-level", "ERROR", "--", ...child] },
    "fastmcp's proxy": { start: (port, child) => [python, join(here, "fastmcp_proxy.py"), port, ...child] },
  },
  ws: {
    "rescind bridge": { start: (port, child) => [rescind, "bridge", "--dialect", "mcp", "--listen", `ws://127.0.0.1:${port}/mcp`, "--", ...child] },
    "stdio-to-ws": { start: (port, child) => [...bin("stdio-to-ws", "dist/main.js"), "--quiet", "--port", port, text(child)] },
  },
  stdio: {
    "rescind bridge": { start: (url) => [rescind, "bridge", "--dialect", "mcp", "--listen", "stdio", url] },
    "mcp-remote": { start: (url) => [...bin("mcp-remote", "dist/proxy.js"), url, "--allow-http", "--transport", "http-only"] },
  },
};

const started = new Set();
process.on("exit", () => started.forEach((child) => child.kill("SIGKILL")));

function run(command, options = {}) {
  const child = spawn(command[0], command.slice(1), { stdio: ["ignore", "ignore", "pipe"], ...options });
  started.add(child);
  child.said = "";
  child.stderr.on("data", (data) => (child.said = (child.said + data).slice(-4000)));
  child.ended = new Promise((resolve) => child.on("exit", resolve)).then(() => started.delete(child));
  return child;
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(String(port)));
    });
  });
}

async function until(find, ms = WAIT_MS) {
  for (const end = Date.now() + ms; ; await pause(5)) {
    const found = find();
    if (found || Date.now() > end) return found;
  }
}

function isAlive(pid) {
  try {
    // A process that has ended and was not waited for counts as ended.
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return false;
  }
}

/** A bridge that runs, and what its servers noted. */
class Running {
  static async start(kind, bridge, flags = []) {
    const self = new Running();
    self.kind = kind;
    self.folder = mkdtempSync(join(tmpdir(), "side-by-side-"));
    self.log = join(self.folder, "log");
    writeFileSync(self.log, "");
    const child = [process.execPath, join(here, "child.mjs"), self.log, ...flags];
    if (kind === "stdio") {
      self.server = run([...child, "--http"]);
      const url = await until(() => /listening on (\S+)/.exec(self.server.said)?.[1]);
      self.command = bridge.start(url);
      return self;
    }
    self.port = await freePort();
    self.bridge = run(bridge.start(self.port, child));
    for (const end = Date.now() + 20_000; ; await pause(50)) {
      try {
        self.first = await self.client();
        return self;
      } catch (error) {
        if (Date.now() > end) throw new Error(`the bridge cannot be used: ${error.message}: ${self.bridge.said}`);
      }
    }
  }

  client() {
    if (this.kind === "stdio") return new StdioClient(this.command).open();
    const path = this.port && `127.0.0.1:${this.port}/mcp`;
    return (this.kind === "ws" ? new WsClient(`ws://${path}`) : new HttpClient(`http://${path}`)).open();
  }

  notes(event, tag) {
    const all = readFileSync(this.log, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
    return all.filter((note) => note.event === event && (tag === undefined || note.tag === tag));
  }

  /** A request that waits at the server. */
  async waiting(client, tag, id) {
    const ended = client.call("wait", { tag }, id).then((frame) => frame, (error) => ({ lost: error.message }));
    if (!(await until(() => this.notes("wait", tag).length > 0))) throw new Error("the request did not reach the server");
    return { ended };
  }

  /** The process whose memory counts. */
  pid(client) {
    return this.kind === "stdio" ? client.child.pid : this.bridge.pid;
  }

  async stop() {
    this.bridge?.kill("SIGKILL");
    this.server?.kill("SIGKILL");
    await Promise.all([this.bridge?.ended, this.server?.ended]);
    for (const { pid } of this.notes("start")) if (isAlive(pid)) process.kill(pid, "SIGKILL");
    rmSync(this.folder, { recursive: true, force: true });
  }
}

const memory = (pid) => Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]);
const brief = (value) => JSON.stringify(value).replaceAll("|", "/").slice(0, 90);

/** The rows of the table. Each gets a bridge that nobody has used, and gives the text of its cell. */
const ROWS = {
  async "a cancel reaches the server"(running) {
    const client = running.first ?? (await running.client());
    const took = [];
    for (let n = 0; n < CANCELS; n += 1) {
      const id = 100 + n;
      await running.waiting(client, `c${n}`, id);
      const sent = now();
      await client.cancel(id);
      const [seen] = (await until(() => running.notes("cancel", `c${n}`).length > 0 && running.notes("cancel", `c${n}`), 2000)) || [];
      if (seen) took.push(seen.at - sent);
    }
    if (took.length === 0) return "no";
    const all = took.length === CANCELS ? "yes" : `${took.length} of ${CANCELS}`;
    return `${all}, ${median(took).toFixed(1)} ms`;
  },

  async "of two clients with equal ids the right one is cancelled"(running) {
    const [one, two] = [running.first ?? (await running.client()), await running.client()];
    await running.waiting(one, "one", 7);
    await running.waiting(two, "two", 7);
    await one.cancel(7);
    await until(() => running.notes("cancel").length > 0, 2000);
    const tags = running.notes("cancel").map(({ tag }) => tag);
    if (tags.length === 0) return "no cancel arrives";
    return tags.every((tag) => tag === "one") ? "yes" : `no: cancelled ${tags.map((tag) => tag ?? "nothing").join(", ")}`;
  },

  async "the end of a session ends its work"(running) {
    const client = running.first ?? (await running.client());
    await running.waiting(client, "left", 7);
    const begun = now();
    await client.leave();
    const ended = () => ["cancel", "exit", "gone", "ended"].flatMap((event) => running.notes(event)).find(({ at }) => at >= begun);
    const found = await until(ended);
    return found ? `yes, ${(found.at - begun).toFixed(0)} ms` : `not in ${WAIT_MS / 1000} s`;
  },

  async "the server crashes: the open request"(running) {
    if (running.kind === "stdio") return "-";
    const client = running.first;
    const { ended } = await running.waiting(client, "crash", 7);
    client.call("crash").catch(() => {});
    const answer = await Promise.race([ended, pause(WAIT_MS).then(() => undefined)]);
    return answer ? `\`${brief(answer.error ?? answer.lost ?? answer)}\`` : `hangs (${WAIT_MS / 1000} s)`;
  },

  async "after the crash a new session works"(running) {
    if (running.kind === "stdio") return "-";
    running.first.call("crash").catch(() => {});
    await until(() => running.notes("exit").length > 0);
    await pause(200);
    const answer = async () => (await (await running.client()).call("echo", { a: 1 })).result !== undefined;
    return Promise.race([answer().then((works) => (works ? "yes" : "no"), (error) => `no: ${brief(error.message)}`), pause(WAIT_MS).then(() => "hangs")]);
  },

  async "servers left after SIGTERM of the bridge"(running) {
    if (running.kind === "stdio") return "-";
    await Promise.all([running.client(), running.client()]);
    running.bridge.kill("SIGTERM");
    await until(() => running.notes("start").every(({ pid }) => !isAlive(pid)), 10_000);
    return `${running.notes("start").filter(({ pid }) => isAlive(pid)).length}`;
  },

  async "the same, servers deaf to SIGTERM and end of input"(running) {
    return ROWS["servers left after SIGTERM of the bridge"](running);
  },

  async "servers left after SIGKILL of the bridge"(running) {
    if (running.kind === "stdio") return "-";
    await Promise.all([running.client(), running.client()]);
    running.bridge.kill("SIGKILL");
    await until(() => running.notes("start").every(({ pid }) => !isAlive(pid)), 3000);
    return `${running.notes("start").filter(({ pid }) => isAlive(pid)).length}`;
  },

  async [`${SESSIONS} clients at once`](running) {
    if (running.kind === "stdio") return "-";
    const begun = now();
    const one = async (n) => (await (await running.client()).call("echo", { n })).result !== undefined;
    const all = await Promise.all(Array.from({ length: SESSIONS }, (_, n) => Promise.race([one(n).catch(() => false), pause(60_000)])));
    const took = ((now() - begun) / 1000).toFixed(1);
    return `${all.filter(Boolean).length} answered in ${took} s, servers: ${running.notes("start").length}`;
  },

  async "memory of the bridge for a session"(running) {
    if (running.kind === "stdio") return "-";
    await running.first.call("echo", {});
    const before = memory(running.pid(running.first));
    const clients = [];
    for (let n = 0; n < SESSIONS; n += 1) clients.push(await running.client());
    await Promise.all(clients.map((client) => client.call("echo", {})));
    return `${Math.round((memory(running.pid(running.first)) - before) / SESSIONS)} KiB`;
  },

  async "an echo, and what the bridge adds"(running) {
    const client = running.first ?? (await running.client());
    return echoes(client);
  },
};

async function echoes(client) {
  const took = [];
  for (let n = -30; n < ECHOES; n += 1) {
    const begun = now();
    await client.call("echo", { text: "x".repeat(64) });
    if (n >= 0) took.push(now() - begun);
  }
  return median(took);
}

async function direct() {
  const folder = mkdtempSync(join(tmpdir(), "side-by-side-"));
  const log = join(folder, "log");
  writeFileSync(log, "");
  const stdio = await new StdioClient([process.execPath, join(here, "child.mjs"), log]).open();
  const found = { child: await echoes(stdio) };
  await stdio.leave();
  const server = run([process.execPath, join(here, "child.mjs"), log, "--http"]);
  const http = await new HttpClient(await until(() => /listening on (\S+)/.exec(server.said)?.[1])).open();
  found.server = await echoes(http);
  await http.leave();
  server.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
  return found;
}

/** An echo of `rescind fixture` over one transport, over stdio, and over the bridge that joins the two. */
async function hop(scheme, Client) {
  const fixture = (listen) => [rescind, "fixture", "--dialect", "mcp", "--listen", listen];
  const served = async (command) => {
    const server = run(command);
    const client = await new Client(await until(() => /listening on (\S+)/.exec(server.said)?.[1])).open();
    const took = await echoes(client);
    await client.leave();
    server.kill("SIGKILL");
    return took;
  };
  const listen = `${scheme}://127.0.0.1:0/mcp`;
  const own = await served(fixture(listen));
  const stdio = await new StdioClient(fixture("stdio")).open();
  const behind = await echoes(stdio);
  await stdio.leave();
  const through = await served([rescind, "bridge", "--dialect", "mcp", "--listen", listen, "--", ...fixture("stdio")]);
  const us = (time) => `${(time * 1000).toFixed(0)} us`;
  return [scheme, us(own), us(behind), us(through), us(through - own - behind)].join("\t");
}

const base = await direct();
console.log(`# ${cpus().length} processors; load ${loadavg()[0].toFixed(1)} at the beginning. An echo of the server alone: ${(base.child * 1000).toFixed(0)} us on stdio, ${(base.server * 1000).toFixed(0)} us over HTTP.`);
const TITLES = { http: "clients over HTTP, server on stdio", ws: "clients over WebSocket, server on stdio", stdio: "client on stdio, server over HTTP" };
for (const [kind, bridges] of Object.entries(BRIDGES)) {
  const names = Object.keys(bridges).filter((name) => !only || name === only);
  if (names.length === 0) continue;
  console.log(`\n${[TITLES[kind], ...names].join("\t")}`);
  for (const [row, play] of Object.entries(ROWS)) {
    const cells = [];
    for (const name of names) {
      let running;
      let cell;
      try {
        running = await Running.start(kind, bridges[name], row.includes("deaf") ? ["--deaf"] : []);
        cell = await Promise.race([play(running), pause(90_000).then(() => "no answer in 90 s")]);
        if (typeof cell === "number") {
          const added = cell - (kind === "stdio" ? base.server : base.child);
          cell = `${(cell * 1000).toFixed(0)} us, ${added < 0 ? "" : "+"}${(added * 1000).toFixed(0)} us`;
        }
      } catch (error) {
        cell = `failed: ${brief(error.message)}`;
      }
      await running?.stop();
      cells.push(cell);
    }
    if (cells.some((cell) => cell !== "-")) console.log([row, ...cells].join("\t"));
  }
}
if (!only || only === "rescind bridge") {
  console.log(`\n${["transport of the clients", "its own echo", "an echo over stdio", "over the bridge of both", "more than both"].join("\t")}`);
  console.log(await hop("http", HttpClient));
  console.log(await hop("ws", WsClient));
}
process.exit(0);
