// What the MCP servers offer, whichever library they are made with: the fixture's abilities as tools.

import { setTimeout as sleep } from "node:timers/promises";
import { Work, WorkFailed, elapse } from "./work.mjs";

/** Resolves when the library's signal aborts. */
function aborted(signal) {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
}

async function abortableSleep(ms, signal, entry) {
  try {
    await sleep(ms, undefined, { signal });
  } catch (error) {
    entry.stopped();
    throw error;
  }
}

/** Each takes its arguments, what the library lends it (`signal`, `progress`, `ask`) and the entry of the count. */
const abilities = {
  echo: ({ value }) => ({ value }),
  sleep: async ({ ms, value }, { signal }, entry) => {
    await abortableSleep(ms, signal, entry);
    return { value };
  },
  wait: async (_params, { signal }, entry) => {
    await aborted(signal);
    entry.stopped();
    throw new Error("stopped");
  },
  partial: async (_params, { signal }, entry) => {
    await aborted(signal);
    entry.stopped();
    return { partial: true };
  },
  ignore: async ({ ms }) => {
    await elapse(ms);
    return { ignored: true };
  },
  fail_on_cancel: async (_params, { signal }, entry) => {
    await aborted(signal);
    entry.stopped();
    throw new WorkFailed();
  },
  panic: async () => {
    throw new Error("the work failed on purpose");
  },
  progress: async ({ count, every_ms }, { signal, progress }, entry) => {
    for (let n = 1; n <= count; n += 1) {
      await abortableSleep(every_ms, signal, entry);
      await progress(n, count);
    }
    return { ticks: count };
  },
  nested: async ({ depth = 1, width = 1 }, { signal, ask }, entry) => {
    const [method, inner] = depth > 1 ? ["test/nested", { depth: depth - 1, width }] : ["test/wait", {}];
    const answers = await Promise.allSettled(Array.from({ length: width }, () => ask(method, inner)));
    if (signal.aborted) {
      entry.stopped();
      throw new Error("stopped");
    }
    const failed = answers.find((answer) => answer.status === "rejected");
    if (failed) throw failed.reason;
    return { answers: answers.map((answer) => answer.value) };
  },
};

const work = new Work();

export const tools = [...Object.keys(abilities), "stats"].map((name) => ({
  name,
  description: `The ability "${name}".`,
  inputSchema: { type: "object" },
}));

/** Does what a tool or a `test/*` method is for; undefined when there is none of that name. */
export function perform(name, params, lent) {
  if (name === "stats") return work.stats();
  const ability = Object.hasOwn(abilities, name) ? abilities[name] : undefined;
  return ability && work.run((entry) => ability(params ?? {}, lent, entry));
}

/** A tool's result, structured and as text. */
export const toolResult = (value) => ({
  content: [{ type: "text", text: JSON.stringify(value) }],
  structuredContent: value,
});
