// What both clients share: the child process, the record of every frame, deadlines, and how scenarios are run and told.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";

/** How long one step of a scenario may take. */
export const STEP_MS = 10_000;
const RECORDED_FRAMES = 60;
const RECORDED_TEXT = 400;
const AT_ONCE = 4;

/** A peer that did something other than the contract says. */
export class Deviation extends Error {}

/** Fails the scenario with `text` unless `held`. */
export function must(held, text) {
  if (!held) throw new Deviation(text);
}

/** The key of an id: 1 and "1" differ. */
export const idKey = (id) => JSON.stringify(id ?? null);

const isAnswer = (frame) => frame !== null && typeof frame === "object" && !("method" in frame);

/** Waits for `promise`, at most `ms`. */
export async function within(what, promise, ms = STEP_MS) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Deviation(`${what}: nothing came within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Every frame in both directions, in the order this side saw them, and those who wait for one. */
export class Wire {
  frames = [];
  #watchers = new Set();
  #rawIds = new Set();

  sent(frame) {
    this.#record("sent", frame);
  }

  /** Records a frame that came in; false when it answers a raw request, which the library must not see. */
  received(frame) {
    this.#record("received", frame);
    return !(isAnswer(frame) && this.#rawIds.has(idKey(frame.id)));
  }

  ownId(id) {
    this.#rawIds.add(idKey(id));
  }

  select(direction, accept = () => true) {
    return this.frames.filter((entry) => entry.direction === direction && accept(entry.frame)).map((entry) => entry.frame);
  }

  /** The answers that came in under `id`. */
  answers(id) {
    return this.select("received", (frame) => isAnswer(frame) && idKey(frame.id) === idKey(id));
  }

  /** Waits until `find()` gives something after some frame, and gives that. */
  until(what, find, ms = STEP_MS) {
    const now = find();
    if (now) return Promise.resolve(now);
    let watcher;
    const seen = new Promise((resolve) => {
      watcher = () => {
        const found = find();
        if (found) resolve(found);
      };
      this.#watchers.add(watcher);
    });
    return within(what, seen, ms).finally(() => this.#watchers.delete(watcher));
  }

  /** The frames of one direction as text, cut to a length a report can bear. */
  told(direction) {
    const all = this.select(direction).map((frame) => {
      const text = JSON.stringify(frame);
      return text.length > RECORDED_TEXT ? `${text.slice(0, RECORDED_TEXT)}...` : text;
    });
    const left = all.length - RECORDED_FRAMES;
    return left > 0 ? [...all.slice(0, RECORDED_FRAMES), `... and ${left} more`] : all;
  }

  #record(direction, frame) {
    this.frames.push({ direction, frame });
    for (const watcher of [...this.#watchers]) watcher();
  }
}

// Whatever ends this program ends the agents it started, each by its own process.
const started = new Set();
process.on("exit", () => started.forEach((child) => child.kill("SIGKILL")));
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(1));

/**
 * One conversation with a freshly started agent. A kit's subclass connects its library to `child` and `wire` and adds
 * `call(method, params, {cancelled})`, `notify(method, params)`, `write(frame)` and `handshake()`.
 */
export class Peer {
  wire = new Wire();
  #rawCount = 0;
  #stderr = "";

  /** `over` is the wire: `stdio`, or the name of one whose endpoint the agent writes to its stderr. */
  constructor(command, over = "stdio") {
    this.over = over;
    this.child = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "pipe"] });
    started.add(this.child);
    this.child.on("exit", () => started.delete(this.child));
    this.listening = new Promise((resolve) => {
      let text = "";
      this.child.stderr.on("data", (data) => {
        this.#stderr = (this.#stderr + data).slice(-4000);
        const [, endpoint] = /^listening on (\S+)\r?\n/m.exec((text += data)) ?? [];
        if (endpoint) resolve(endpoint);
        text = text.slice(-4000);
      });
    });
    // An agent that ended early is told by its exit, not by a broken pipe.
    this.child.stdin.on("error", () => {});
    this.exited = new Promise((resolve, reject) => {
      this.child.on("error", (error) => reject(new Error(`cannot start "${command.join(" ")}": ${error.message}`)));
      this.child.on("exit", (code, signal) => resolve({ code, signal }));
    });
    this.exited.catch(() => {});
  }

  /** Where the agent listens; for wires that have an address. */
  endpoint() {
    const ended = this.exited.then(({ code, signal }) => {
      throw new Deviation(`the agent ended with ${signal ?? code} before it said where it listens: ${this.#stderr}`);
    });
    return within("the line that says where the agent listens", Promise.race([this.listening, ended]));
  }

  get stderr() {
    return this.#stderr;
  }

  /** Sends a frame the library knows nothing of. */
  send(frame) {
    return this.write({ jsonrpc: "2.0", ...frame });
  }

  /** Sends several frames without waiting in between. */
  sendAll(...frames) {
    return Promise.all(frames.map((frame) => this.send(frame)));
  }

  /** Sends a request under an id of our choice and gives the frame that answers it. */
  async ask(id, method, params) {
    this.wire.ownId(id);
    const before = this.wire.answers(id).length;
    await this.send({ id, method, params });
    return this.wire.until(`the answer to ${method} with id ${idKey(id)}`, () => this.wire.answers(id)[before]);
  }

  /** The same, for an answer that is awaited later or never. */
  start(id, method, params) {
    const answer = this.ask(id, method, params);
    answer.catch(() => {});
    return answer;
  }

  /**
   * Starts a request with the library's own call and finds the id it chose. One at a time: the next request of that
   * method on the wire is taken for it.
   */
  async started(method, asked) {
    const requests = () => this.wire.select("sent", (frame) => frame.method === method && "id" in frame);
    const before = requests().length;
    const answer = asked().then(
      (result) => ({ result }),
      (error) => ({ error: { code: error?.code, message: error?.message } }),
    );
    const frame = await this.wire.until(`${method} on the wire`, () => requests()[before]);
    return { id: frame.id, answer };
  }

  /** The agent's own count of its work. */
  async stats() {
    const answer = await this.ask(`stats-${(this.#rawCount += 1)}`, "test/stats", {});
    must(answer.result, `test/stats was answered with ${JSON.stringify(answer)}`);
    return answer.result;
  }

  /** Asks for the count until `accept` likes it. */
  async statsUntil(what, accept) {
    const deadline = Date.now() + STEP_MS;
    for (;;) {
      const stats = await this.stats();
      if (accept(stats)) return stats;
      must(Date.now() < deadline, `${what}: test/stats still says ${JSON.stringify(stats)} after ${STEP_MS} ms`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }

  /** Proves that everything sent before was handled: a request whose answer comes back after it. */
  async barrier() {
    const id = `barrier-${(this.#rawCount += 1)}`;
    const answer = await this.ask(id, "test/echo", { value: id });
    must(answer.result?.value === id, `test/echo was answered with ${JSON.stringify(answer)}`);
  }

  endInput() {
    this.child.stdin.end();
  }

  /** Ends the agent: the end of its input first, then signals, to this one process only. */
  async close(patience) {
    const gone = (ms) => within("the agent's end", this.exited, ms).then(() => true, () => this.child.exitCode !== null);
    this.endInput();
    if (this.over === "stdio" && (await gone(patience))) return;
    this.child.kill("SIGTERM");
    if (await gone(2000)) return;
    this.child.kill("SIGKILL");
    await gone(2000);
  }
}

const KNOWN = new URL("known-deviations.json", import.meta.url);

function usage(program) {
  console.error(`usage: node ${program} [--over WIRE] [--behind bridge] [--revision R] [--known NAME] [--only SCENARIO] -- COMMAND ARG...`);
  process.exit(2);
}

function parse(program, words) {
  const split = words.indexOf("--");
  if (split < 0 || split === words.length - 1) usage(program);
  const options = { command: words.slice(split + 1), known: {}, only: undefined, over: "stdio" };
  const flags = words.slice(0, split);
  while (flags.length > 0) {
    const [flag, value] = flags.splice(0, 2);
    if (value === undefined) usage(program);
    if (flag === "--only") options.only = value;
    else if (flag === "--over") options.over = value;
    else if (flag === "--behind" && value === "bridge") options.bridged = true;
    else if (flag === "--revision") options.revision = value;
    else if (flag === "--known") {
      options.known = JSON.parse(readFileSync(KNOWN, "utf8"))[value];
      if (!options.known) usage(program);
    } else usage(program);
  }
  return options;
}

async function runOne(connect, options, { name, play }) {
  const { command, known } = options;
  const peer = connect(command, options);
  peer.bridged = options.bridged === true;
  let deviation;
  try {
    // A command that cannot be started has no scenarios: that rejects `exited`.
    const startFailed = peer.exited.then(() => new Promise(() => {}));
    await Promise.race([peer.handshake().then(() => play(peer)), startFailed]);
  } catch (error) {
    if (!(error instanceof Deviation) && peer.child.pid === undefined) throw error;
    deviation = error instanceof Deviation ? error.message : `${error.stack ?? error}`;
  }
  await peer.close(deviation ? 100 : 2000);

  let ok = deviation === undefined;
  const expected = known[name];
  if (expected && deviation === undefined) {
    ok = false;
    deviation = `known-deviations.json says "${expected.saw}" is seen here, and it was not`;
  } else if (expected && deviation.includes(expected.saw)) {
    ok = true;
    deviation = `known: ${expected.why} (${deviation})`;
  }
  if (!ok && peer.stderr) console.error(`${name}: the agent wrote to stderr:\n${peer.stderr}`);
  return { scenario: name, ok, ...(deviation && { deviation }), sent: peer.wire.told("sent"), received: peer.wire.told("received") };
}

/**
 * Runs every scenario against an agent of its own, prints a line for each and a summary, and ends the process.
 * `scenarios` are a list for stdio, or give one for the options (undefined: that is not spoken).
 */
export async function main(program, connect, scenarios) {
  const options = parse(program, process.argv.slice(2));
  const { only } = options;
  const all = typeof scenarios === "function" ? scenarios(options) : options.over === "stdio" ? scenarios : undefined;
  if (!all) usage(program);
  const chosen = all.filter(({ name }) => only === undefined || name === only);
  if (chosen.length === 0) usage(program);
  const total = { scenarios: chosen.length, ok: 0, known: 0, failed: 0 };
  const queue = [...chosen];
  const worker = async () => {
    for (let next = queue.shift(); next; next = queue.shift()) {
      const line = await runOne(connect, options, next);
      total[line.ok ? (line.deviation ? "known" : "ok") : "failed"] += 1;
      console.log(JSON.stringify(line));
    }
  };
  try {
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
  } catch (error) {
    console.error(error.message);
    process.exit(2);
  }
  console.log(JSON.stringify({ summary: total }));
  process.exit(total.failed === 0 ? 0 : 1);
}
