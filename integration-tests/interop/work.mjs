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
