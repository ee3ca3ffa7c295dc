#!/usr/bin/env python3
"""Runs `rescind check` over the programs of programs.toml and compares the facts with those in results/.

    board.py --rescind PROGRAM [--home FOLDER] [--write] [--jobs N] [NAME..]

The answers are compared (yes, no, unsure, not-asked), and the scenarios that broke; times and details are not. Every difference counts,
also one to or from `unsure`. Where one of the two answers is `unsure` or `not-asked`, the cause may be a busy machine: the program is then checked
once more when no other is being checked, and only what differs again counts. A change between yes and no counts at once.
`--write` writes results/ and the pages anew instead.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

import pages

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RESULTS = HERE / "results"
# The options that every program is checked with, and every client. The processor time of a program depends on what else the machine does, so it is
# no witness here.
CHECK = ["check", "--json", "--no-witness", "processor"]
CHECK_CLIENT = ["check", "--client", "--json"]
# The longest check of one program, in seconds.
LONGEST = 2400
# Frames kept for each fact, and characters of each.
FRAMES, CHARACTERS = 18, 300


class Unusable(Exception):
    """A program that could not be checked, with the reason."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def end(child):
    """Ends the process group of a child."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)
            return


class Board:
    def __init__(self, rescind, home, jobs):
        self.rescind, self.home, self.jobs = rescind, home, jobs

    def filled(self, words, port):
        values = {"HOME_OF_SCOREBOARD": self.home, "WORKSPACES": HERE / "workspaces", "PORT": port}
        return [re.sub(r"\$\{(\w+)\}", lambda name: str(values[name[1]]), word) for word in words]

    def check(self, row):
        began = time.monotonic()
        report = self.report(row)
        print(f"{row['name']}: checked in {time.monotonic() - began:.0f} s, {summary(report)}", flush=True)
        return self.result(row, report)

    def report(self, row):
        port = free_port()
        command = [self.rescind, *(CHECK_CLIENT if row["kind"] == "client" else CHECK), "--dialect", row["dialect"]]
        command += ["--step-timeout", str(row.get("step_timeout", 10_000))]
        if "profile" in row:
            command += ["--profile", str(HERE / row["profile"])]
        if "listen" in row:
            command += ["--listen", row["listen"]]
        with contextlib.ExitStack() as stack:
            if "start" in row:
                stack.enter_context(self.server(row, port))
                command.append(row["endpoint"].replace("${PORT}", str(port)))
            else:
                command += ["--", *self.filled(row["command"], port)]
            return self.run(command)

    @contextlib.contextmanager
    def server(self, row, port):
        """A server over HTTP, from when it listens."""
        env = os.environ | {name: value.replace("${PORT}", str(port)) for name, value in row.get("env", {}).items()}
        with tempfile.TemporaryDirectory() as folder, open(pathlib.Path(folder) / "log", "w+b") as log:
            child = subprocess.Popen(
                self.filled(row["start"], port), cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            try:
                until = time.monotonic() + 60
                while True:
                    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                        break
                    if child.poll() is not None or time.monotonic() > until:
                        log.seek(0)
                        raise Unusable(f"its server does not listen: {log.read().decode(errors='replace')[-300:]}")
                    time.sleep(0.1)
                yield
            finally:
                end(child)

    def run(self, command):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
            try:
                code = child.wait(LONGEST)
            except subprocess.TimeoutExpired:
                raise Unusable(f"its check did not end within {LONGEST} s") from None
            finally:
                end(child)
            out.seek(0)
            err.seek(0)
            if code not in (0, 1):
                raise Unusable(f"rescind ended with {code}: {err.read().decode(errors='replace').strip()[-600:]}")
            return json.load(out)

    def cleaned(self, text):
        """A text without paths of this machine."""
        text = re.sub(r"/(?:[^\s\"',:/]+/)*rescind-check-[0-9a-f]+", "/SCRATCH", text)
        text = re.sub(r"\b[Ll]ocalhost:\d+|127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
        for path, name in ((self.home, "HOME"), (ROOT, "ROOT"), (f"{pathlib.Path.home()}/", "/USER/"), (tempfile.gettempdir(), "/TMP")):
            text = text.replace(str(path), name)
        return text

    def frame(self, line):
        sign = {"sent": ">", "received": "<"}.get(line["direction"], line["direction"])
        text = self.cleaned(line["text"])
        return f"{sign} {text if len(text) <= CHARACTERS else text[:CHARACTERS] + f' .. ({len(text)} characters)'}"

    def frames(self, trace):
        """The last frames, from one that begins an exchange."""
        kept = [self.frame(line) for line in trace[-FRAMES:]]
        first = next((at for at, frame in enumerate(kept) if frame.startswith(">")), 0) if len(trace) > FRAMES else 0
        return kept[first:]

    def fact(self, fact):
        kept = {name: fact[name] for name in ("statement", "answer", "demand", "evidence", "source")}
        kept["detail"] = self.cleaned(fact["detail"])
        if times := fact.get("cancel_us"):
            kept |= {"cancels": len(times), "median_us": round(statistics.median(times)), "worst_us": max(times)}
        if fact["answer"] in ("no", "unsure"):
            kept["frames"] = self.frames(fact["trace"])
        return kept

    def result(self, row, report):
        broke = [
            {"scenario": cell["scenario"], "why": self.cleaned(cell["why"]), "frames": self.frames(cell["trace"])}
            for cell in report["cells"]
            if cell["outcome"] == "broke"
        ]
        return {
            "name": row["name"],
            "baseline_us": {one["kind"]: one["answered_us"] for one in report.get("baseline", [])},
            "facts": {fact["name"]: self.fact(fact) for fact in report["facts"]},
            "scenarios": {name: report["summary"][name] for name in ("held", "broke", "unsure", "not_asked")},
            "broke": broke,
        }

    def all(self, rows, done=lambda result: None):
        """The result of each program, or why it could not be checked. Each result is passed to `done` at once."""

        def one(row):
            try:
                result = self.check(row)
                done(result)
                return result
            except (Unusable, OSError, ValueError, KeyError) as error:
                print(f"{row['name']}: {error}", flush=True)
                return f"it could not be checked: {error}"

        # A program that computes while its slow request runs is checked beside programs that mostly wait, and beside no other.
        pool = concurrent.futures.ThreadPoolExecutor
        with pool(1) as busy, pool(max(1, self.jobs - 1)) as waiting:
            checks = {row["name"]: (busy if row.get("busy") else waiting).submit(one, row) for row in rows}
            return {name: check.result() for name, check in checks.items()}


def summary(report):
    counts = {}
    for fact in report["facts"]:
        counts[fact["answer"]] = counts.get(fact["answer"], 0) + 1
    return ", ".join(f"{count} {answer}" for answer, count in sorted(counts.items(), reverse=True))


def read_rows():
    table = tomllib.loads((HERE / "programs.toml").read_text())
    return table["program"] + table["client"]


def committed(name):
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def keep(result):
    (RESULTS / f"{result['name']}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def differences(name, before, now):
    """The differences of one program: whether each is certain, and its sentence."""
    if before is None:
        return [(True, f"{name}: there is no results/{name}.json; write it with --write")]
    if isinstance(now, str):
        return [(False, f"{name}: {now}")]
    found = []
    for fact in sorted(before["facts"].keys() | now["facts"].keys()):
        old, new = (of["facts"].get(fact, {"answer": "absent"}) for of in (before, now))
        if old["answer"] != new["answer"]:
            certain = {old["answer"], new["answer"]} == {"yes", "no"}
            why = " ".join(new.get("detail", "").split())
            found.append((certain, f"{name}: {fact} was {old['answer']} and is {new['answer']}{': ' if why else ''}{why}"))
    for scenario in sorted({one["scenario"] for one in before["broke"]} ^ {one["scenario"] for one in now["broke"]}):
        why = [one["why"] for one in now["broke"] if one["scenario"] == scenario]
        found.append((False, f"{name}: the scenario {scenario} broke: {why[0]}" if why else f"{name}: the scenario {scenario} broke, and does not now"))
    return found


def compare(board, rows, results):
    """The sentences of what changed."""
    sentences = []
    for row in rows:
        name = row["name"]
        found = differences(name, committed(name), results[name])
        if found and not any(certain for certain, _ in found):
            for _, sentence in found:
                print(f"{sentence}\n  it is checked again, alone", flush=True)
            found = differences(name, committed(name), board.all([row])[name])
        sentences += [sentence for _, sentence in found]
    return sentences


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rescind", required=True)
    parser.add_argument("--home", default=os.environ.get("SCOREBOARD_HOME", ROOT / "target" / "scoreboard"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args()
    rows = read_rows()
    by_name = {row["name"]: row for row in rows}
    if unknown := set(options.names) - by_name.keys():
        parser.error(f"programs.toml has no {', '.join(sorted(unknown))}")
    chosen = [by_name[name] for name in options.names] or rows
    board = Board(str(pathlib.Path(options.rescind).resolve()), pathlib.Path(options.home).resolve(), options.jobs)
    RESULTS.mkdir(exist_ok=True)
    results = board.all(chosen, keep if options.write else lambda result: None)
    if not options.write:
        changed = compare(board, chosen, results)
        for sentence in changed:
            print(f"changed: {sentence}", file=sys.stderr)
        stale = [] if options.names else pages.stale(rows, committed)
        for page in stale:
            print(f"changed: {page} does not show results/: run board.py --write, or pages.py", file=sys.stderr)
        return 1 if changed or stale else 0
    failed = [f"{name}: {result}" for name, result in results.items() if isinstance(result, str)]
    if all(committed(row["name"]) for row in rows):
        pages.write(rows, committed)
    else:
        failed.append("the pages were not written, as a program has no results")
    for sentence in failed:
        print(sentence, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
