// The methods of the programs (the MCP servers offer them as tools, `wait` for `test/wait`, with `panic` and `stats`):
//
//   test/echo {value}              answers {value}
//   test/sleep {ms, value}         answers {value} after `ms`; cancelled: -32800
//   test/wait                      never answers; cancelled: -32800
//   test/partial                   never answers; cancelled: {"partial":true}
//   test/ignore {ms}               answers {"ignored":true} after `ms`, also when cancelled
//   test/fail_on_cancel            never answers; cancelled: an error of its own
//   test/nested {depth, width}     answers {"answers":[..]}; calls itself on its peer `width` times with `depth - 1`, at depth 1
//                                  `test/wait`; cancelled: cancels its calls, waits for their answers, then -32800
//   test/progress {count, every_ms}  notifies `test/tick {n}` from 1, then {"ticks":count}; cancelled: -32800, then no tick
//   test/stats                     answers {started, finished, cancelled, running} without itself
//
// All programs answer `initialize` first and end with 0 at the end of input, once no work is left. The language server also
// takes `initialized`, `shutdown` and `exit`. An MCP server does not answer a cancelled request; `progress` notifies if the
// request has a token; only the 2025 server has `nested`.
//
// The work our test methods do, and the count of it that `test/stats` answers.
// Nothing here knows a protocol: each program lends it its library's own way of telling a handler to stop.

/** Counts handlers: `started` is always `finished + cancelled + running`. */
export class Work {
  started = 0;
  finished = 0;
  cancelled = 0;

  /**
   * Runs one handler and counts it. The handler says `entry.stopped()` when it ends because it was told to;
   * one that ends for any other reason, late or deaf ones included, counts as finished.
   */
  async run(handler) {
    this.started += 1;
    let stopped = false;
    try {
      return await handler({ stopped: () => (stopped = true) });
    } finally {
      if (stopped) this.cancelled += 1;
      else this.finished += 1;
    }
  }

  stats() {
    const { started, finished, cancelled } = this;
    return { started, finished, cancelled, running: started - finished - cancelled };
  }
}

/** Resolves after `ms`, whatever happens: what a handler that never looks at its cancel waits for. */
export const elapse = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The error of its own that `test/fail_on_cancel` fails with. */
export class WorkFailed extends Error {
  constructor() {
    super("the work failed while it was being stopped");
  }
}
