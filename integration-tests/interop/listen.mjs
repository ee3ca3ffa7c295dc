// How a program of ours that serves HTTP says where, and how it ends.

/** Listens on a free port of this machine only, says so on stderr, and ends on a signal, or with its stdin if ENDS_WITH_STDIN is set. */
export function listen(http, path, scheme = "http") {
  http.listen(0, "127.0.0.1", () => console.error(`listening on ${scheme}://127.0.0.1:${http.address().port}${path}`));
  const end = () => process.exit(0);
  process.on("SIGTERM", end);
  process.on("SIGINT", end);
  if (process.env.ENDS_WITH_STDIN) process.stdin.on("end", end).resume();
}
