// The scenarios of the MCP clients. A cancelled request gets no answer, its work stops, and nothing else comes for it:
// MCP's cancellation page, and what it leaves open as this repository's design decides it.

import { idKey, must, within } from "./harness.mjs";
import { list, running } from "./scenarios.mjs";

const show = (value) => JSON.stringify(value);

/** Waits until no work is left: our fixture tells apart what runs and what was told to stop and has not yet. */
const idle = (peer) => peer.statsUntil("no work is left", (stats) => stats.running === 0 && !stats.draining && !stats.queued);

function mustHold(answer, expected, what = "the request") {
  const value = answer.result?.structuredContent;
  const held = value && Object.entries(expected).every(([key, wanted]) => value[key] === wanted);
  must(held, `${what} ended with ${show(answer)}, not with ${show(expected)}`);
}

/** The library gives a cancelled call up at once, with an error of its own. */
const mustBeGivenUp = async (call) => {
  const ended = await within("the call's end", call.answer);
  must(ended.error, `the cancelled call ended with ${show(ended)}`);
};

const cancelsFor = (peer, direction, id) =>
  peer.wire.select(direction, (frame) => frame.method === peer.cancelMethod && idKey(peer.cancelledId(frame)) === idKey(id));

/** One cancel where cancels are messages, and none where closing the stream is the cancel. */
function mustTellOnce(peer, id) {
  const told = cancelsFor(peer, "sent", id).length;
  must(told === (peer.byMessage ? 1 : 0), `${told} cancels were sent for request ${idKey(id)}`);
}

function mustBeSilent(peer, id) {
  const answers = peer.wire.answers(id);
  must(answers.length === 0, `the cancelled request ${idKey(id)} was answered: ${show(answers[0])}`);
}

const ticksOf = (peer) => peer.wire.select("received", (frame) => frame.method === "notifications/progress");
const asksOf = (peer) => peer.wire.select("received", (frame) => "method" in frame && "id" in frame);
const cancelRaw = (peer, id) => peer.send(peer.cancelFrame(id));
const wait = (peer, id) => peer.start(id, "tools/call", { name: "wait", arguments: {} });
const echo = (peer, id, value) => peer.ask(id, "tools/call", { name: "echo", arguments: { value } });

async function cancelled(peer, name, args, stopped) {
  const call = await peer.tool(name, args);
  await peer.statsUntil("the tool runs", running(1));
  call.cancel();
  await mustBeGivenUp(call);
  mustTellOnce(peer, call.id);
  const stats = await idle(peer);
  must(stats.cancelled === stopped, `the server counts ${show(stats)}, not ${stopped} cancelled`);
  await peer.barrier();
  mustBeSilent(peer, call.id);
}

const everywhere = {
  async "echo"(peer) {
    mustHold(await within("the answer", (await peer.tool("echo", { value: 7 })).answer), { value: 7 });
  },

  async "tools-list"(peer) {
    const { tools } = await within("the answer", peer.library.listTools());
    must(["echo", "wait", "progress", "stats"].every((name) => tools.some((tool) => tool.name === name)), `the tools are ${show(tools)}`);
  },

  "cancel-running": (peer) => cancelled(peer, "wait", {}, 1),
  "fails-after-cancel": (peer) => cancelled(peer, "fail_on_cancel", {}, 1),
  "partial-result": (peer) => cancelled(peer, "partial", {}, 1),
  // Its late result is withheld.
  "deaf-handler": (peer) => cancelled(peer, "ignore", { ms: 300 }, 0),

  async "cancel-before-start"(peer) {
    const before = peer.wire.select("sent").length;
    const aborted = AbortSignal.abort("stopped before it began");
    const ended = await within("the call's end", peer.callTool("wait", {}, { signal: aborted }).then((result) => ({ result }), (error) => ({ error })));
    must(ended.error, `the call ended with ${show(ended)}`);
    must(peer.wire.select("sent").length === before, "a call that was cancelled before it began was sent");
    const stats = await peer.stats();
    must(stats.started === 0, `the server counts ${show(stats)}`);
  },

  async "cancel-at-once"(peer) {
    for (let n = 0; n < 20; n += 1) {
      const abort = new AbortController();
      const asked = peer.callTool("wait", {}, { signal: abort.signal });
      abort.abort();
      const ended = await within("the call's end", asked.then((result) => ({ result }), (error) => ({ error })));
      must(ended.error, `the call ended with ${show(ended)}`);
    }
    const stats = await idle(peer);
    must(stats.started === stats.cancelled, `the server counts ${show(stats)}`);
    await peer.barrier();
    peer.wire.select("sent", (frame) => frame.method === "tools/call" && frame.params.name === "wait").forEach(({ id }) => mustBeSilent(peer, id));
  },

  async "cancel-after-answer"(peer) {
    const call = await peer.tool("echo", { value: 1 });
    mustHold(await within("the answer", call.answer), { value: 1 });
    const before = peer.wire.select("received").length;
    call.cancel();
    await peer.barrier();
    must(peer.wire.select("received").length === before + 1, "a cancel of a finished request was answered with something");
    const told = cancelsFor(peer, "sent", call.id).length;
    must(told === 0, `the library sent ${told} cancels for a request that was answered`);
  },

  async "timeout"(peer) {
    const call = await peer.tool("wait", {}, { timeout: 200 });
    await mustBeGivenUp(call);
    mustTellOnce(peer, call.id);
    const stats = await idle(peer);
    must(stats.cancelled === 1, `the server counts ${show(stats)}: the work was not stopped by the time limit`);
    await peer.barrier();
    mustBeSilent(peer, call.id);
  },

  async "timeout-put-off-by-progress"(peer) {
    const options = { timeout: 1000, resetTimeoutOnProgress: true, onprogress: () => {} };
    const call = await peer.tool("progress", { count: 15, every_ms: 100 }, options);
    mustHold(await within("the answer", call.answer), { ticks: 15 });
  },

  async "total-timeout"(peer) {
    const options = { timeout: 1000, maxTotalTimeout: 300, resetTimeoutOnProgress: true, onprogress: () => {} };
    const call = await peer.tool("progress", { count: 100_000, every_ms: 20 }, options);
    await mustBeGivenUp(call);
    mustTellOnce(peer, call.id);
    await idle(peer);
  },

  async "progress"(peer) {
    const seen = [];
    const call = await peer.tool("progress", { count: 5, every_ms: 2 }, { onprogress: ({ progress }) => seen.push(progress) });
    mustHold(await within("the answer", call.answer), { ticks: 5 });
    await peer.barrier();
    const came = ticksOf(peer).map((frame) => frame.params.progress);
    must(show(came) === show([1, 2, 3, 4, 5]), `the progress was ${show(came)}`);
    // Both libraries lose what they read together with the answer.
    must(show(seen) === show(came.slice(0, seen.length)), `the library told ${show(seen)}`);
    const { frames } = peer.wire;
    const last = frames.findLastIndex(({ frame }) => frame.method === "notifications/progress");
    const answered = frames.findIndex(({ direction, frame }) => direction === "received" && !("method" in frame) && idKey(frame.id) === idKey(call.id));
    must(last < answered, "progress came after the answer");
  },

  async "progress-without-a-token"(peer) {
    const call = await peer.tool("progress", { count: 3, every_ms: 2 });
    mustHold(await within("the answer", call.answer), { ticks: 3 });
    await peer.barrier();
    must(ticksOf(peer).length === 0, "progress came that nobody had asked for");
  },

  async "progress-cancelled"(peer) {
    const call = await peer.tool("progress", { count: 100_000, every_ms: 2 }, { onprogress: () => {} });
    await peer.wire.until("two ticks", () => ticksOf(peer).length >= 2);
    call.cancel();
    await mustBeGivenUp(call);
    await idle(peer);
    await peer.barrier();
    const before = ticksOf(peer).length;
    await peer.barrier();
    must(ticksOf(peer).length === before, "progress came after the work had stopped");
    mustBeSilent(peer, call.id);
  },

  async "unknown-tool"(peer) {
    const ended = await within("the answer", (await peer.tool("no_such_tool")).answer);
    must(ended.error || ended.result?.isError, `a tool that is not there gave ${show(ended)}`);
    await peer.barrier();
  },

  async "many-at-once"(peer) {
    const calls = [];
    for (let n = 0; n < 40; n += 1) calls.push(await peer.tool("sleep", { ms: 4000, value: n }));
    await peer.statsUntil("all run", running(40));
    calls.forEach((call, n) => n % 2 === 1 && call.cancel());
    const answers = await within("40 ends", Promise.all(calls.map((call) => call.answer)), 20_000);
    answers.forEach((answer, n) => (n % 2 === 1 ? must(answer.error, `request ${n} ended with ${show(answer)}`) : mustHold(answer, { value: n }, `request ${n}`)));
    const stats = await idle(peer);
    must(stats.cancelled === 20, `the server counts ${show(stats)}: not 20 cancelled`);
    await peer.barrier();
    calls.forEach((call, n) => n % 2 === 1 && mustBeSilent(peer, call.id));
  },
};

/** Where a cancel is a message, which can be sent by hand. */
const byMessage = {
  async "cancel-twice"(peer) {
    const answer = wait(peer, 70);
    await peer.statsUntil("the request runs", running(1));
    await cancelRaw(peer, 70);
    await cancelRaw(peer, 70);
    const stats = await idle(peer);
    must(stats.cancelled === 1, `the server counts ${show(stats)}`);
    await peer.barrier();
    mustBeSilent(peer, 70);
    answer.catch(() => {});
  },

  async "cancel-unknown"(peer) {
    const call = await peer.tool("wait");
    await peer.statsUntil("the request runs", running(1));
    const before = peer.wire.select("received").length;
    for (const id of [4242, "4242", -1]) await cancelRaw(peer, id);
    await peer.barrier();
    must(peer.wire.select("received").length === before + 1, "a cancel of an unknown request was answered with something");
    must((await peer.stats()).running === 1, "a cancel of an unknown request stopped another one");
    call.cancel();
    await mustBeGivenUp(call);
    await idle(peer);
  },

  // Our decision: it waits for its request, since clients of MCP are known to turn the two round.
  async "cancel-before-its-request"(peer) {
    await cancelRaw(peer, 500);
    await peer.barrier();
    wait(peer, 500);
    await peer.barrier();
    const stats = await peer.stats();
    must(stats.running === 0, `the request whose cancel had come first runs: ${show(stats)}`);
    mustBeSilent(peer, 500);
  },

  async "cancel-malformed"(peer) {
    wait(peer, 77);
    await peer.statsUntil("the request runs", running(1));
    const method = peer.cancelMethod;
    const before = peer.wire.select("received").length;
    for (const params of [{}, { requestId: 77.5 }, { requestId: true }, { requestId: [77] }, { requestId: { id: 77 } }]) {
      await peer.send({ method, params }).catch(() => {});
    }
    await peer.barrier();
    must((await peer.stats()).running === 1, "a malformed cancel stopped a request");
    must(peer.wire.select("received").length === before + 2, "a malformed cancel was answered with something");
    await cancelRaw(peer, 77);
    await idle(peer);
    mustBeSilent(peer, 77);
  },

  async "id-zero"(peer) {
    // It may have been the handshake's.
    const before = peer.wire.answers(0).length;
    wait(peer, 0);
    await peer.statsUntil("the request runs", running(1));
    await cancelRaw(peer, 0);
    await peer.barrier();
    const stats = await peer.stats();
    must(stats.running === 0, `the request 0 goes on after its cancel: ${show(stats)}`);
    must(peer.wire.answers(0).length === before, "the cancelled request 0 was answered");
  },

  async "number-and-string-ids"(peer) {
    wait(peer, 71);
    wait(peer, "71");
    await peer.statsUntil("both requests run", running(2));
    await cancelRaw(peer, "71");
    await peer.statsUntil("one request was stopped", running(1));
    await peer.barrier();
    mustBeSilent(peer, 71);
    mustBeSilent(peer, "71");
    await cancelRaw(peer, 71);
    const stats = await idle(peer);
    must(stats.cancelled === 2, `the server counts ${show(stats)}`);
  },

  async "duplicate-id"(peer) {
    const first = peer.start(72, "tools/call", { name: "sleep", arguments: { ms: 800, value: "first" } });
    await peer.statsUntil("the first request runs", running(1));
    await echo(peer, 72, "second").catch(() => {});
    must(peer.wire.answers(72).every((answer) => answer.result?.structuredContent?.value === "first"), `a second request with an occupied id was answered as if it were the first: ${show(peer.wire.answers(72)[0])}`);
    mustHold(await first, { value: "first" });
    must(peer.wire.answers(72).length === 1, `${peer.wire.answers(72).length} answers came under one id`);
  },

  async "id-used-again"(peer) {
    wait(peer, 73);
    await peer.statsUntil("the request runs", running(1));
    await cancelRaw(peer, 73);
    await idle(peer);
    const answer = await echo(peer, 73, "new");
    mustHold(answer, { value: "new" });
    await peer.barrier();
    must(peer.wire.answers(73).length === 1, `${peer.wire.answers(73).length} answers came under the id`);
  },
};

/** Where the server may ask the client. */
const withAsks = {
  async "nested-cancelled-by-parent"(peer) {
    const parent = await peer.tool("nested", { depth: 1, width: 3 });
    await peer.wire.until("3 requests from the server", () => asksOf(peer).length >= 3);
    parent.cancel();
    await mustBeGivenUp(parent);
    const stats = await idle(peer);
    must(stats.cancelled === 1, `the server counts ${show(stats)}`);
    for (const ask of asksOf(peer)) {
      await peer.wire.until(`the cancel of ${idKey(ask.id)}`, () => cancelsFor(peer, "received", ask.id)[0]);
    }
    await peer.barrier();
    for (const ask of asksOf(peer)) {
      const cancels = cancelsFor(peer, "received", ask.id).length;
      must(cancels === 1, `${ask.method} ${idKey(ask.id)} was cancelled ${cancels} times`);
      const answers = peer.wire.select("sent", (frame) => !("method" in frame) && idKey(frame.id) === idKey(ask.id));
      must(answers.length === 0, `this client answered ${idKey(ask.id)}, which was cancelled, with ${show(answers[0])}`);
    }
    mustBeSilent(peer, parent.id);
  },
};

/** Where the end of the input is the end of the connection. */
const onStreams = {
  async "eof-while-waiting"(peer) {
    wait(peer, 74);
    await peer.statsUntil("the request runs", running(1));
    peer.endInput();
    const { code, signal } = await within("the server's end", peer.exited, 45_000);
    must(code === 0, `the server ended with ${signal ?? code}, not with 0`);
  },

  async "eof-while-sleeping"(peer) {
    peer.start(75, "tools/call", { name: "sleep", arguments: { ms: 100, value: "slept" } });
    // The end follows the request at once: a slow machine could answer before an end that waits for a look at the counts.
    peer.endInput();
    const { code, signal } = await within("the server's end", peer.exited);
    must(code === 0, `the server ended with ${signal ?? code}, not with 0`);
    const answer = await peer.wire.until("the answer", () => peer.wire.answers(75)[0], 2000).catch(() => undefined);
    must(answer, "the request that was running at the end of the input was never answered");
    mustHold(answer, { value: "slept" });
  },
};

/** Where a server has several clients at once. */
const withSeveral = {
  // Both libraries number their requests from the same small number on.
  async "equal-ids-of-two-clients"(peer) {
    const other = await peer.another();
    const [mine, theirs] = [await peer.tool("wait"), await other.tool("wait")];
    must(idKey(mine.id) === idKey(theirs.id), `the ids are ${idKey(mine.id)} and ${idKey(theirs.id)}: this shows nothing`);
    await peer.statsUntil("both run", running(2));
    mine.cancel();
    await mustBeGivenUp(mine);
    await peer.statsUntil("one was stopped", running(1));
    await other.barrier();
    mustBeSilent(other, theirs.id);
    must((await peer.stats()).running === 1, "the cancel of one client stopped the other's request");
    theirs.cancel();
    await mustBeGivenUp(theirs);
    await idle(peer);
    await other.library.close();
  },
};

/** Where each of several clients has a server of its own, behind a bridge. */
const withServerEach = {
  async "equal-ids-of-two-clients-with-a-server-each"(peer) {
    const other = await peer.another();
    const [mine, theirs] = [await peer.tool("wait"), await other.tool("wait")];
    must(idKey(mine.id) === idKey(theirs.id), `the ids are ${idKey(mine.id)} and ${idKey(theirs.id)}: this shows nothing`);
    await peer.statsUntil("the first runs", running(1));
    mine.cancel();
    await mustBeGivenUp(mine);
    await idle(peer);
    await other.barrier();
    mustBeSilent(other, theirs.id);
    must((await other.stats()).running === 1, "the cancel of one client stopped the other's request");
    theirs.cancel();
    await mustBeGivenUp(theirs);
    await idle(other);
    await other.library.close();
  },
};

/** The error code with which a promise of the library fails. */
const refusal = (promise) => promise.then((value) => must(false, `it ended with ${show(value)}`), (error) => error.code);

/** Calls a tool as a task by the library's own helper, and gives its id and the messages that follow. */
async function taskOf(peer, name, args) {
  const messages = peer.callToolAsTask(name, args);
  const { value } = await within("the task's handle", messages.next());
  must(value?.type === "taskCreated", `the first message is ${show(value)}`);
  return { id: value.task.taskId, messages };
}

async function mustBeStopped(peer, id) {
  const cancelled = await within("the answer", peer.tasks.cancelTask(id));
  must(cancelled.status === "cancelled", `tasks/cancel was answered with ${show(cancelled)}`);
  const stats = await idle(peer);
  must(stats.cancelled === 1, `the server counts ${show(stats)}`);
}

/** Where tools run as tasks. */
const withTasks = {
  async "task-completes"(peer) {
    const { messages } = await taskOf(peer, "sleep", { ms: 100, value: 7 });
    for (;;) {
      const { value, done } = await within("the end of the task", messages.next());
      must(!done && value.type !== "error", `the task ended with ${show(value)}`);
      if (value.type === "result") return mustHold({ result: value.result }, { value: 7 }, "the task");
    }
  },

  async "task-cancelled"(peer) {
    const { id } = await taskOf(peer, "wait", {});
    await peer.statsUntil("the task runs", running(1));
    await mustBeStopped(peer, id);
    must((await peer.tasks.getTask(id)).status === "cancelled", "the task did not stay cancelled");
    const code = await within("the answer", refusal(peer.tasks.cancelTask(id)));
    must(code === -32602, `a second tasks/cancel was refused with ${code}`);
  },

  async "task-outlives-its-request"(peer) {
    const answer = await peer.ask(80, "tools/call", { name: "wait", arguments: {}, task: {} });
    const id = answer.result?.task?.taskId;
    must(id, `the request was answered with ${show(answer)}`);
    await cancelRaw(peer, 80);
    await peer.barrier();
    must((await peer.stats()).running === 1, "the cancel of the answered request stopped the task");
    must((await peer.tasks.getTask(id)).status === "working", "the task does not work any more");
    await mustBeStopped(peer, id);
  },

  async "task-unknown"(peer) {
    const code = await within("the answer", refusal(peer.tasks.getTask("no-such-task")));
    must(code === -32602, `tasks/get was refused with ${code}`);
  },
};

/** Where a session can be ended by the client. */
const withSessions = {
  async "session-ended-while-waiting"(peer) {
    const other = await peer.another();
    const call = await other.tool("wait");
    await peer.statsUntil("the request runs", running(1));
    await within("the end of the session", other.link.terminateSession());
    await idle(peer);
    mustBeSilent(other, call.id);
    await other.library.close();
    await within("the call's end", call.answer);
  },
};

/** Over the transport of 2024-11-05, where a session is its stream. */
const withStreamsAsSessions = {
  async "stream-ended-while-waiting"(peer) {
    const other = await peer.another();
    const call = await other.tool("wait");
    await peer.statsUntil("the request runs", running(1));
    await within("the end of the stream", other.library.close());
    await idle(peer);
    await within("the call's end", call.answer);
  },
};

/** What a wire has, out of what the clients can play. */
export function scenariosOver(over, { asks = false, stateless = false, bridged = false, tasks = false } = {}) {
  const sse = over === "sse";
  const http = over === "http" || sse;
  return list({
    ...(http ? {} : onStreams),
    ...everywhere,
    ...(stateless && http ? {} : byMessage),
    ...(asks ? withAsks : {}),
    ...(tasks ? withTasks : {}),
    ...(http && !bridged ? withSeveral : {}),
    ...(http && bridged ? withServerEach : {}),
    ...(http && !sse && !stateless && !bridged ? withSessions : {}),
    ...(sse && !bridged ? withStreamsAsSessions : {}),
  });
}
