// The scenarios both clients run. What they expect is the fixture agent's contract: for ACP the protocol's cancellation
// page and request-cancellation RFD, for LSP the specification's $/cancelRequest, and what both leave open as this
// repository's design decides it.

import { idKey, must, within } from "./harness.mjs";

export const CANCELLED = -32800;

const show = (answer) => JSON.stringify(answer);

function mustBeCancelled(answer, what = "the cancelled request") {
  must(answer.error?.code === CANCELLED, `${what} was answered with ${show(answer)}, not with error ${CANCELLED}`);
}

function mustHoldResult(answer, expected, what = "the request") {
  const held = answer.result && Object.entries(expected).every(([key, value]) => answer.result[key] === value);
  must(held, `${what} was answered with ${show(answer)}, not with ${JSON.stringify(expected)}`);
}

function mustAnswerOnce(peer, id) {
  const answers = peer.wire.answers(id);
  must(answers.length === 1, `${answers.length} answers came under id ${idKey(id)}: ${show(answers)}`);
}

const running = (count) => (stats) => stats.running === count;
const idle = (peer) => peer.statsUntil("no work is left", running(0));
const asksOf = (peer) => peer.wire.select("received", (frame) => "method" in frame && "id" in frame);
const cancelsFor = (peer, direction, id) =>
  peer.wire.select(direction, (frame) => frame.method === peer.cancelMethod && idKey(peer.cancelledId(frame)) === idKey(id));

/** Cancels a parent whose agent asked us something, and holds every hop to account. */
export async function cancelFamily(peer, parent, { asks, cancelParent, cancelledAnswer = mustBeCancelled }) {
  await peer.wire.until(`${asks} requests from the agent`, () => asksOf(peer).length >= asks);
  const before = peer.wire.frames.length;
  await cancelParent();
  cancelledAnswer(await within("the parent's answer", parent.answer), "the parent");

  for (const ask of asksOf(peer)) {
    const what = `${ask.method} ${idKey(ask.id)}, asked by the agent`;
    const ours = await peer.wire.until(`our answer to ${what}`, () => peer.wire.select("sent", (frame) => !("method" in frame) && idKey(frame.id) === idKey(ask.id))[0]);
    mustBeCancelled(ours, what);
    const cancels = cancelsFor(peer, "received", ask.id).length;
    must(cancels === 1, `${what}, was cancelled ${cancels} times by the agent`);
  }
  // What we asked the agent while serving it, and cancelled in turn.
  const children = peer.wire.select("sent", (frame) => frame.method === "test/wait" && "id" in frame);
  for (const child of children) {
    const answer = await peer.wire.until(`the answer to our ${child.method} ${idKey(child.id)}`, () => peer.wire.answers(child.id)[0]);
    mustBeCancelled(answer, `our ${child.method} ${idKey(child.id)}`);
    must(cancelsFor(peer, "sent", child.id).length === 1, `this client did not send one cancel for ${idKey(child.id)}`);
  }
  must(peer.wire.frames.length > before, "nothing was exchanged");
  await idle(peer);
}

const scenarios = {
  // 45 s: an agent may grant what still runs at the end of its input 30 s before it cancels it.
  async "eof-while-waiting"(peer) {
    peer.start(1, "test/wait", {});
    await peer.statsUntil("the request runs", running(1));
    peer.endInput();
    const { code, signal } = await within("the agent's end", peer.exited, 45_000);
    must(code === 0, `the agent ended with ${signal ?? code}, not with 0`);
  },

  async "eof-while-sleeping"(peer) {
    const call = await peer.call("test/sleep", { ms: 1500, value: "slept" });
    await peer.statsUntil("the request runs", running(1));
    peer.endInput();
    const { code, signal } = await within("the agent's end", peer.exited);
    must(code === 0, `the agent ended with ${signal ?? code}, not with 0`);
    // What it wrote before it ended may still be on its way to us.
    const answered = peer.wire.until("the answer", () => peer.wire.answers(call.id)[0], 2000);
    const answer = await answered.catch(() => undefined);
    must(answer, "the request that was running at the end of the input was never answered");
    mustHoldResult(answer, { value: "slept" });
  },

  async "echo"(peer) {
    const call = await peer.call("test/echo", { value: 7 });
    mustHoldResult(await within("the answer", call.answer), { value: 7 });
  },

  async "cancel-running"(peer) {
    const call = await peer.call("test/wait", {});
    await peer.statsUntil("the request runs", running(1));
    call.cancel();
    mustBeCancelled(await within("the answer", call.answer));
    const stats = await idle(peer);
    must(stats.cancelled === 1, `test/stats says ${show(stats)}: the work was not stopped by the cancel`);
    mustAnswerOnce(peer, call.id);
  },

  async "cancel-at-once"(peer) {
    const call = await peer.call("test/wait", {});
    call.cancel();
    mustBeCancelled(await within("the answer", call.answer));
    await idle(peer);
    mustAnswerOnce(peer, call.id);
  },

  // Whether anything is sent at all is the library's choice; what is sent must be settled.
  async "cancel-before-start"(peer) {
    const call = await peer.call("test/wait", {}, { cancelled: true });
    mustBeCancelled(await within("the answer", call.answer));
    await idle(peer);
  },

  async "cancel-twice"(peer) {
    const call = await peer.call("test/wait", {});
    await peer.statsUntil("the request runs", running(1));
    call.cancel();
    await peer.send(peer.cancelFrame(call.id));
    mustBeCancelled(await within("the answer", call.answer));
    await peer.send(peer.cancelFrame(call.id));
    await peer.barrier();
    mustAnswerOnce(peer, call.id);
    const stats = await idle(peer);
    must(stats.cancelled === 1, `test/stats says ${show(stats)}: two cancels counted as two`);
  },

  async "cancel-finished"(peer) {
    const call = await peer.call("test/echo", { value: "done" });
    mustHoldResult(await within("the answer", call.answer), { value: "done" });
    const before = peer.wire.select("received").length;
    await peer.send(peer.cancelFrame(call.id));
    await peer.barrier();
    mustAnswerOnce(peer, call.id);
    must(peer.wire.select("received").length === before + 1, "the cancel of a finished request was answered with something");
    const stats = await peer.stats();
    must(stats.cancelled === 0, `test/stats says ${show(stats)}: a finished request was cancelled`);
  },

  async "cancel-unknown"(peer) {
    const call = await peer.call("test/wait", {});
    const before = peer.wire.select("received").length;
    await peer.sendAll(peer.cancelFrame(987654), peer.cancelFrame("no such request"), peer.cancelFrame(String(call.id)));
    await peer.barrier();
    must(peer.wire.select("received").length === before + 1, "the cancel of an unknown request was answered with something");
    must((await peer.stats()).running === 1, "the cancel of an unknown request stopped another one");
    call.cancel();
    mustBeCancelled(await within("the answer", call.answer));
  },

  // An unknown cancel leaves nothing behind: a later request under that id runs.
  async "cancel-unknown-then-use"(peer) {
    await peer.send(peer.cancelFrame(500));
    await peer.barrier();
    mustHoldResult(await peer.ask(500, "test/sleep", { ms: 20, value: "ran" }), { value: "ran" });
  },

  async "cancel-malformed"(peer) {
    const answer = peer.start(77, "test/wait", {});
    await peer.statsUntil("the request runs", running(1));
    const before = peer.wire.select("received").length;
    const method = peer.cancelMethod;
    const key = Object.keys(peer.cancelFrame(77).params)[0];
    await peer.sendAll({ method }, { method, params: {} }, ...[null, 77.5, true, [77], { id: 77 }].map((id) => ({ method, params: { [key]: id } })));
    await peer.barrier();
    must(peer.wire.select("received").length <= before + 2, "a malformed cancel was answered with something");
    must((await peer.stats()).running === 1, "a malformed cancel stopped a request");
    await peer.send(peer.cancelFrame(77));
    mustBeCancelled(await answer);
  },

  async "cancel-with-an-id"(peer) {
    const waiting = peer.start(1, "test/wait", {});
    await peer.statsUntil("the request runs", running(1));
    const answer = await peer.ask("cancel", peer.cancelMethod, peer.cancelFrame(1).params);
    must(answer.error?.code === -32601, `a cancel sent as a request was answered with ${show(answer)}, not with error -32601`);
    must((await peer.stats()).running === 1, "a cancel sent as a request cancelled something");
    await peer.send(peer.cancelFrame(1));
    mustBeCancelled(await waiting);
  },

  async "number-and-string-ids"(peer) {
    const number = peer.start(1, "test/wait", {});
    await peer.statsUntil("the first request runs", running(1));
    const string = peer.start("1", "test/wait", {});
    await peer.statsUntil("both requests run", running(2));
    await peer.send(peer.cancelFrame("1"));
    mustBeCancelled(await string);
    await peer.barrier();
    must(peer.wire.answers(1).length === 0, 'the cancel of "1" ended the request 1');
    await peer.send(peer.cancelFrame(1));
    mustBeCancelled(await number);
    mustAnswerOnce(peer, 1);
    mustAnswerOnce(peer, "1");
    await idle(peer);
  },

  async "number-and-string-ids-in-one-write"(peer) {
    peer.wire.ownId(1);
    peer.wire.ownId("1");
    await peer.sendAll({ id: 1, method: "test/echo", params: { value: "number" } }, { id: "1", method: "test/echo", params: { value: "string" } });
    await peer.wire.until('an answer under "1"', () => peer.wire.answers("1")[0]);
    await peer.barrier();
    must(peer.wire.answers(1).length === 1, 'the request 1 was never answered: only "1" was');
    mustHoldResult(peer.wire.answers(1)[0], { value: "number" });
    mustHoldResult(peer.wire.answers("1")[0], { value: "string" });
  },

  async "duplicate-id"(peer) {
    const first = peer.start(7, "test/sleep", { ms: 300, value: "first" });
    await peer.statsUntil("the first request runs", running(1));
    await peer.send({ id: 7, method: "test/echo", params: { value: "second" } });
    await peer.barrier();
    must(peer.wire.answers(7).length === 0, `a second request with an occupied id was answered as if it were the first: ${show(peer.wire.answers(7)[0])}`);
    const [refusal] = peer.wire.answers(null);
    must(refusal?.error?.code === -32600, `a second request with an occupied id was not refused with -32600 and id null but with ${show(refusal)}`);
    mustHoldResult(await first, { value: "first" });
    await peer.barrier();
    mustAnswerOnce(peer, 7);
  },

  async "id-used-again"(peer) {
    const waiting = peer.start(9, "test/wait", {});
    await peer.send(peer.cancelFrame(9));
    mustBeCancelled(await waiting);
    await idle(peer);
    mustHoldResult(await peer.ask(9, "test/echo", { value: "new" }), { value: "new" });
    await peer.barrier();
    must(peer.wire.answers(9).length === 2, `the id used twice was answered ${peer.wire.answers(9).length} times`);
  },

  async "partial-result"(peer) {
    const call = await peer.call("test/partial", {});
    await peer.statsUntil("the request runs", running(1));
    call.cancel();
    mustHoldResult(await within("the answer", call.answer), { partial: true });
    await idle(peer);
  },

  async "deaf-handler"(peer) {
    const call = await peer.call("test/ignore", { ms: 300 });
    await peer.statsUntil("the request runs", running(1));
    call.cancel();
    mustHoldResult(await within("the answer", call.answer), { ignored: true });
    const stats = await idle(peer);
    must(stats.cancelled === 0, `test/stats says ${show(stats)}: a deaf handler was counted as stopped`);
    mustAnswerOnce(peer, call.id);
  },

  async "fails-after-cancel"(peer) {
    const call = await peer.call("test/fail_on_cancel", {});
    await peer.statsUntil("the request runs", running(1));
    call.cancel();
    mustBeCancelled(await within("the answer", call.answer));
    await idle(peer);
  },

  async "progress"(peer) {
    const call = await peer.call("test/progress", { count: 5, every_ms: 2 });
    mustHoldResult(await within("the answer", call.answer), { ticks: 5 });
    await peer.barrier();
    const ticks = peer.wire.frames.findLastIndex(({ frame }) => frame.method === "test/tick");
    const answered = peer.wire.frames.findIndex(({ direction, frame }) => direction === "received" && !("method" in frame) && idKey(frame.id) === idKey(call.id));
    const count = peer.wire.select("received", (frame) => frame.method === "test/tick").length;
    must(count === 5, `${count} ticks came, not 5`);
    must(ticks < answered, "a tick came after the answer");
  },

  async "progress-cancelled"(peer) {
    const ticks = () => peer.wire.select("received", (frame) => frame.method === "test/tick").length;
    const call = await peer.call("test/progress", { count: 100_000, every_ms: 2 });
    await peer.wire.until("two ticks", () => ticks() >= 2);
    call.cancel();
    mustBeCancelled(await within("the answer", call.answer));
    const answered = ticks();
    await idle(peer);
    await peer.barrier();
    must(ticks() === answered, `${ticks() - answered} ticks came after the answer`);
  },

  async "nested-cancelled-by-parent"(peer) {
    const parent = await peer.call("test/nested", { depth: 1, width: 3 });
    await cancelFamily(peer, parent, { asks: 3, cancelParent: () => parent.cancel() });
  },

  async "nested-twice-cancelled-by-parent"(peer) {
    const parent = await peer.call("test/nested", { depth: 2, width: 2 });
    await cancelFamily(peer, parent, { asks: 2, cancelParent: () => parent.cancel() });
  },

  async "answer-nobody-waits-for"(peer) {
    await peer.sendAll({ id: 424242, result: {} }, { id: "nobody", error: { code: CANCELLED, message: "Request cancelled" } });
    await peer.barrier();
  },

  async "many-at-once"(peer) {
    const calls = [];
    // Over HTTP the cancels stand behind 200 requests, each a POST of its own.
    const ms = peer.over === "http" ? 8000 : 1500;
    for (let n = 0; n < 200; n += 1) calls.push(await peer.call("test/sleep", { ms, value: n }));
    calls.forEach((call, n) => n % 2 === 1 && call.cancel());
    const answers = await within("200 answers", Promise.all(calls.map((call) => call.answer)), 20_000);
    answers.forEach((answer, n) => (n % 2 === 1 ? mustBeCancelled(answer, `request ${n}`) : mustHoldResult(answer, { value: n }, `request ${n}`)));
    const stats = await idle(peer);
    if (peer.bridged) {
      // A bridge does not pass on a request that was cancelled before its program read that far.
      const seen = stats.cancelled <= 100 && stats.started === 100 + stats.cancelled && stats.finished === 100;
      must(seen, `test/stats says ${show(stats)}: not 100 finished and the others cancelled`);
    } else must(stats.cancelled === 100, `test/stats says ${show(stats)}: not 100 cancelled`);
    calls.forEach((call) => mustAnswerOnce(peer, call.id));
  },
};

/** A table of plays as a list of scenarios, in its order. */
export const list = (table) => Object.entries(table).map(([name, play]) => ({ name, play }));

export const common = list(scenarios);
export { idle, mustBeCancelled, mustHoldResult, running };
