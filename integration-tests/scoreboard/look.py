#!/usr/bin/env python3
"""Plays a program of programs.toml by its profile and prints what it does when it is cancelled, with its frames.

    look.py [--home FOLDER] NAME.. [--only PART,..] [--frames FOLDER] [--truth]

`--truth` writes what was printed into truth/NAME.md. It is how the truth in truth/ was read, and shares no code with Rescind, so that each can be checked by the other.
"""

import argparse
import collections
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
CANCEL = {"lsp": ("$/cancelRequest", "id"), "mcp": ("notifications/cancelled", "requestId"), "acp": ("$/cancel_request", "requestId")}
OPENING = {
    "lsp": [
        {"method": "initialize", "params": {"processId": None, "rootUri": None, "capabilities": {}}},
        {"notify": "initialized", "params": {}},
    ],
    "mcp": [
        {
            "method": "initialize",
            "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "look", "version": "0"}},
        },
        {"notify": "notifications/initialized"},
    ],
    "acp": [
        {"method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {}}},
        {"method": "session/new", "params": {"cwd": "/", "mcpServers": []}, "bind": {"session": "result.sessionId"}},
    ],
}


class Gone(Exception):
    """The program ended, or did not answer what it had to answer."""


def short(value, limit=300):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[:limit]}.. ({len(text)} characters)"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Stdio:
    """A child process: one JSON a line, or with headers for language servers."""

    def __init__(self, command, folder, env, stderr, headers, receive):
        self.headers, self.receive = headers, receive
        self.child = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
        threading.Thread(target=self.read, daemon=True).start()

    def send(self, frame):
        text = json.dumps(frame).encode()
        try:
            self.child.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text) if self.headers else text + b"\n")
            self.child.stdin.flush()
        except OSError as error:
            raise Gone(f"its input is closed: {error}") from None

    def read(self):
        out = self.child.stdout
        while line := out.readline():
            if self.headers:
                length = 0
                while line.strip():
                    name, _, value = line.partition(b":")
                    if name.strip().lower() == b"content-length":
                        length = int(value)
                    line = out.readline()
                line = out.read(length)
            try:
                frame = json.loads(line)
            except ValueError:
                if line.strip():
                    self.receive({"noise": line.decode(errors="replace").rstrip()})
                continue
            for one in frame if isinstance(frame, list) else [frame]:
                self.receive(one)
        self.receive({"closed": True})

    def close(self):
        stop(self.child)


class Http:
    """Streamable HTTP: a POST a message, each on a thread of its own."""

    def __init__(self, command, endpoint, folder, env, stderr, receive):
        port = free_port()
        self.endpoint, self.receive, self.session, self.version = endpoint.replace("${PORT}", str(port)), receive, None, None
        command = [word.replace("${PORT}", str(port)) for word in command]
        env = {name: value.replace("${PORT}", str(port)) for name, value in env.items()}
        self.child = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, start_new_session=True
        )
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise Gone("it never listened")

    def send(self, frame):
        if frame.get("method") == "initialize" or "id" not in frame:
            self.post(frame)
        else:
            threading.Thread(target=self.post, args=(frame,), daemon=True).start()

    def post(self, frame):
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self.session:
            headers["Mcp-Session-Id"] = self.session
        if self.version:
            headers["MCP-Protocol-Version"] = self.version
        request = urllib.request.Request(self.endpoint, json.dumps(frame).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                self.session = response.headers.get("Mcp-Session-Id") or self.session
                if "event-stream" in (response.headers.get("Content-Type") or ""):
                    for line in response:
                        if line.startswith(b"data:") and line[5:].strip():
                            self.take(json.loads(line[5:]))
                    self.receive({"stream-ended-of": frame.get("id")})
                elif body := response.read():
                    self.take(json.loads(body))
        except urllib.error.HTTPError as error:
            self.receive({"http-status": error.code, "of": frame.get("id", frame.get("method")), "body": error.read().decode()[:300]})
        except (OSError, ValueError) as error:
            self.receive({"http-failed": str(error), "of": frame.get("id", frame.get("method"))})

    def take(self, frame):
        self.version = self.version or frame.get("result", {}).get("protocolVersion")
        self.receive(frame)

    def close(self):
        stop(self.child)


def stop(child):
    """Ends the process group that we started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            continue
    child.wait(5)


class Session:
    def __init__(self, row, home, log=None):
        self.row, self.kind, self.home = row, row["kind"], str(home)
        profile = HERE / row["profile"]
        self.profile = tomllib.loads(profile.read_text())
        self.beside = profile.parent
        self.began, self.log = time.monotonic(), open(log, "w") if log else None
        self.frames, self.inbox, self.next_id, self.bound = [], queue.Queue(), 0, {}
        settings = self.profile.get("session", {})
        self.temporary = pathlib.Path(tempfile.mkdtemp(prefix="look-"))
        self.scratch = self.temporary / "scratch"
        if folder := settings.get("scratch"):
            shutil.copytree(self.beside / folder, self.scratch, symlinks=True)
        else:
            self.scratch.mkdir()
        self.replies = {name: None if value == "null" else value for name, value in settings.get("replies", {}).items()}
        env = os.environ | {name: self.fill(value) for name, value in (row.get("env", {}) | settings.get("env", {})).items()}
        self.stderr = open(self.temporary / "stderr", "w+b")
        command = [self.fill(word) for word in row.get("start") or row["command"]]
        if "endpoint" in row:
            self.link = Http(command, row["endpoint"], self.scratch, env, self.stderr, self.receive)
        else:
            headers = self.profile.get("framing", "headers" if self.kind == "lsp" else "lines") == "headers"
            self.link = Stdio(command, self.scratch, env, self.stderr, headers, self.receive)
        self.play(self.profile.get("handshake", {}).get("steps") or OPENING[self.kind])
        self.play(settings.get("setup", []))
        self.ready = time.monotonic() - self.began

    def fill(self, value):
        """Puts in what a profile names: files, their URIs, the scratch folder and bound values."""
        if isinstance(value, dict):
            if value.keys() == {"file"}:
                return self.path(value["file"]).read_text()
            if value.keys() == {"file-uri"}:
                return self.path(value["file-uri"]).as_uri()
            return {name: self.fill(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.fill(inner) for inner in value]
        if isinstance(value, str):
            for name, bound in ({"scratch": str(self.scratch), "HOME_OF_SCOREBOARD": self.home, "WORKSPACES": str(HERE / "workspaces")} | self.bound).items():
                if value == "${%s}" % name:
                    return bound
                value = value.replace("${%s}" % name, str(bound))
        return value

    def path(self, name):
        return (self.scratch if self.profile.get("session", {}).get("scratch") else self.beside) / name if name != "." else self.scratch

    def note(self, way, frame):
        at = time.monotonic()
        self.frames.append((at, way, frame))
        if self.log:
            self.log.write(f"{at - self.began:9.3f} {way} {short(frame, 1500)}\n") if not self.log.closed else None
            self.log.closed or self.log.flush()

    def receive(self, frame):
        self.note("<", frame)
        if "method" in frame and "id" in frame:
            known = frame["method"] in self.replies
            answer = {"result": self.replies[frame["method"]]} if known else {"error": {"code": -32601, "message": "method not found"}}
            self.send({"jsonrpc": "2.0", "id": frame["id"]} | answer)
        self.inbox.put(frame)

    def send(self, frame):
        self.note(">", frame)
        self.link.send(frame)

    def play(self, steps):
        for step in steps:
            if "wait" in step:
                self.until(lambda frame, name=step["wait"]: frame.get("method") == name, step.get("within_ms", 20000) / 1000, step["wait"])
            elif "notify" in step:
                self.notify(step["notify"], self.fill(step.get("params", {})))
            else:
                answer = self.call(step["method"], self.fill(step.get("params", {})), 60)
                if "error" in answer:
                    raise Gone(f"{step['method']} was answered {short(answer)}")
                for name, path in step.get("bind", {}).items():
                    value = answer
                    for part in path.split("."):
                        value = value[part]
                    self.bound[name] = value

    def notify(self, method, params=None):
        self.send({"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params}))

    def request(self, method, params=None, id=None):
        self.next_id += 1
        id = self.next_id if id is None else id
        self.send({"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params}))
        return id

    def until(self, matches, seconds, what):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                frame = self.inbox.get(timeout=left)
            except queue.Empty:
                break
            if matches(frame):
                return frame
            if "closed" in frame:
                raise Gone(f"it closed while {what} was awaited")
        raise TimeoutError(what)

    def answer(self, id, seconds):
        """The answer to a request, or None for silence."""
        end = time.monotonic() + seconds
        while True:
            for _at, way, frame in self.frames:
                if way == "<" and "method" not in frame and "id" in frame and frame["id"] == id and type(frame["id"]) is type(id):
                    return frame
            if any("closed" in frame for _, _, frame in self.frames[-3:]):
                raise Gone(f"it closed before it answered {id!r}")
            if time.monotonic() > end:
                return None
            time.sleep(0.0005)

    def call(self, method, params, seconds):
        found = self.answer(self.request(method, params), seconds)
        if found is None:
            raise TimeoutError(f"no answer to {method} within {seconds} s")
        return found

    def named(self, name, id=None):
        """Sends a request that the profile names."""
        asked = self.profile["requests"][name]
        return self.request(asked["method"], self.fill(asked["params"]) if "params" in asked else None, id)

    def timed(self, name, seconds=60):
        began = time.monotonic()
        answer = self.answer(self.named(name), seconds)
        return time.monotonic() - began, answer

    def cancel(self, id):
        method, key = CANCEL[self.kind]
        self.notify(method, {key: id})

    def answers(self, id):
        return [f for _, way, f in self.frames if way == "<" and "method" not in f and f.get("id", self) == id and type(f["id"]) is type(id)]

    def cpu(self):
        """Processor seconds of the processes of the program's group that are alive."""
        ticks = 0
        for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self.link.child.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.link.close()
        self.stderr.seek(0)
        said = self.stderr.read().decode(errors="replace")
        self.stderr.close()
        if self.log:
            self.log.write(f"stderr: {short(said, 3000)}\n")
            self.log.close()
        shutil.rmtree(self.temporary, ignore_errors=True)
        return said


def outcome(answer):
    if answer is None:
        return "silence"
    if "error" in answer:
        return f"error {answer['error'].get('code')}"
    result = answer.get("result")
    if isinstance(result, dict) and "stopReason" in result:
        return f"stopReason {result['stopReason']}"
    if isinstance(result, dict) and result.get("isError"):
        return "result isError"
    size = len(result) if isinstance(result, (list, str)) else len(json.dumps(result))
    return "result null" if result is None else f"result of {size}"


def ms(seconds):
    return f"{seconds * 1000:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


class Look:
    def __init__(self, row, home, frames):
        self.row, self.home, self.frames, self.facts = row, home, frames, []
        self.base, self.quick, self.delay, self.limit = 0, 0, 0, 5
        self.slow = "slow" in self.row_profile().get("requests", {})

    def say(self, text):
        text = re.sub(re.escape(tempfile.gettempdir()) + r"/look-\w+", "/SCRATCH", text.replace(str(self.home), "HOME").replace(f"{pathlib.Path.home()}/", "/USER/"))
        self.facts.append(text)
        print(f"  {text}", flush=True)

    def session(self, part):
        self.frames.mkdir(parents=True, exist_ok=True)
        return Session(self.row, self.home, self.frames / f"{part}.frames")

    def baseline(self, tries=3):
        session = self.session("baseline")
        self.say(f"ready after {ms(session.ready)}")
        first, answer = session.timed("quick")
        self.say(f"quick, first: {ms(first)}, {outcome(answer)}: {short(answer, 160)}")
        if not self.slow:
            self.say(f"quick: {', '.join(ms(session.timed('quick')[0]) for _ in range(5))}")
            return self.finish(session)
        slow, answers = [], []
        for _ in range(tries):
            cpu = session.cpu()
            took, answer = session.timed("slow", 40)
            slow.append(took)
            answers.append((outcome(answer), round(session.cpu() - cpu, 2)))
            if took > 15:
                break
        quick = [session.timed("quick") for _ in range(5)]
        self.base, self.quick = statistics.median(slow), statistics.median(took for took, _ in quick)
        self.delay = min(0.4, self.base / 4)
        # The first may take longer than the others, where the program still loads.
        self.limit = max(slow) * 1.5 + 1
        self.say(f"quick: {', '.join(ms(took) for took, _ in quick)}")
        self.say(f"slow: {', '.join(ms(took) for took in slow)}; answer and processor seconds: {answers}; {short(answer, 200)}")
        # Quick while slow runs.
        id = session.named("slow")
        time.sleep(self.delay)
        took, _ = session.timed("quick")
        done = bool(session.answers(id))
        session.answer(id, 40)
        self.say(f"quick while slow runs: {ms(took)}, slow {'was' if done else 'was not'} answered before it")
        self.finish(session)

    def finish(self, session):
        said = session.close().strip()
        if said and not any(fact.startswith("stderr") for fact in self.facts):
            self.say(f"stderr: {short(said, 300)!r}")

    def alive(self, session, after):
        try:
            took, answer = session.timed("quick", max(10, self.limit * 2))
        except Gone as gone:
            self.say(f"AFTER {after}: {gone}")
            return False
        if answer is None:
            self.say(f"AFTER {after}: quick is not answered")
        return answer is not None

    def running(self, tries=5):
        session = self.session("running")
        session.timed("slow", 90)  # The first may take longer.
        results, afters, cpus = collections.Counter(), [], []
        times = []
        for _ in range(tries):
            id = session.named("slow")
            time.sleep(self.delay)
            if session.answers(id):
                results["ended before its cancel"] += 1
                continue
            cpu, began = session.cpu(), time.monotonic()
            session.cancel(id)
            answer = session.answer(id, self.limit)
            times.append(time.monotonic() - began)
            results[outcome(answer)] += 1
            sample = answer
            took, quick = session.timed("quick", max(10, self.limit * 2))
            afters.append(took)
            if answer is None or times[-1] < self.base / 2:
                time.sleep(0.3)
                cpu = session.cpu()
                time.sleep(0.5)
                cpus.append(round(session.cpu() - cpu, 2))
        self.say(f"cancel of a running slow ({ms(self.delay)} in; baseline {ms(self.base)}): {dict(results)} after {', '.join(ms(t) for t in times)}")
        self.say(f"  the last answer: {short(sample, 300)}; quick right after: {', '.join(ms(t) for t in afters)}; cpu in 0.5 s later: {cpus}")
        took, answer = session.timed("slow", 40)
        self.say(f"slow again afterwards: {ms(took)}, {outcome(answer)}")
        self.finish(session)

    def together(self):
        """The cancel directly behind its request, in one go."""
        session = self.session("together")
        id = session.named("slow")
        began = time.monotonic()
        session.cancel(id)
        answer = session.answer(id, self.limit)
        self.say(f"cancel directly behind its request: {outcome(answer)} after {ms(time.monotonic() - began)}")
        self.alive(session, "that")
        self.finish(session)

    def twice(self):
        session = self.session("twice")
        id = session.named("slow")
        time.sleep(self.delay)
        session.cancel(id)
        session.cancel(id)
        answer = session.answer(id, self.limit)
        session.cancel(id)
        self.alive(session, "three cancels of one request")
        time.sleep(min(self.base, 3) + 0.5)
        self.say(f"three cancels of one request: {outcome(answer)}, {len(session.answers(id))} answers")
        took, answer = session.timed("slow", 40)
        self.say(f"  slow after it: {ms(took)}, {outcome(answer)}")
        self.finish(session)

    def late(self):
        session = self.session("late")
        id = session.named("quick")
        session.answer(id, 20)
        session.cancel(id)
        took, answer = session.timed("quick", 20)
        self.say(f"cancel after the answer: answers to it {len(session.answers(id))}; next quick {outcome(answer)} in {ms(took)}")
        if self.slow:
            took, answer = session.timed("slow", 40)
            self.say(f"  next slow: {outcome(answer)} in {ms(took)}")
        self.finish(session)

    def unknown(self):
        session = self.session("unknown")
        before = len(session.frames)
        session.cancel(987654)
        session.cancel("no-such-request")
        ok = self.alive(session, "cancels of unknown ids")
        # An id that is used after its cancel came.
        session.cancel(5555)
        id = session.named("quick", 5555)
        answer = session.answer(id, 10)
        self.say(f"cancels of unknown ids: alive {ok}; frames back {self.back(session, before)}; a request with that id later: {outcome(answer)}")
        self.finish(session)

    def back(self, session, before):
        """Frames that came and are answers to nothing that was sent, or signs of trouble."""
        sent = [frame["id"] for _, way, frame in session.frames if way == ">" and "id" in frame]
        return [
            short(f, 250)
            for _, way, f in session.frames[before:]
            if way == "<" and ("id" not in f or f["id"] not in sent or "method" in f) and not ("method" in f and "id" in f)
            and "stream-ended-of" not in f
        ]

    def malformed(self):
        method, key = CANCEL[self.row["kind"]]
        session = self.session("malformed")
        for name, params in [("true", {key: True}), ("null", {key: None}), ("{}", {}), ("none", None), ("array", [1]), ("object", {key: {"a": 1}})]:
            try:
                before = len(session.frames)
                session.notify(method, params)
                ok = self.alive(session, f"malformed cancel {name}")
                self.say(f"malformed cancel {name}: alive {ok}; frames back {self.back(session, before)}")
            except Gone as gone:
                ok = False
                self.say(f"malformed cancel {name}: GONE {gone}")
            if not ok:
                session.close()
                session = self.session(f"malformed-after-{name}")
        said = session.close()
        if said.strip():
            self.say(f"  stderr {short(said[-250:], 250)!r}")

    def ids(self):
        session = self.session("ids")
        for sent, cancelled in [(7001, "7001"), ("7002", 7002), ("text-7003", "text-7003"), (0, 0)]:
            id = session.named("slow", sent)
            time.sleep(self.delay)
            began = time.monotonic()
            session.cancel(cancelled)
            answer = session.answer(id, self.limit)
            self.say(f"request {sent!r}, cancel {cancelled!r}: {outcome(answer)} after {ms(time.monotonic() - began)}")
        self.alive(session, "ids")
        self.finish(session)

    def methods(self):
        session = self.session("methods")
        for method in ["no/such/method", "$/noSuchMethod"]:
            before = len(session.frames)
            answer = session.answer(session.request(method, {}), 10)
            self.say(f"unknown request {method}: {outcome(answer)} {short(answer, 200)}")
            session.notify(method, {})
            ok = self.alive(session, f"unknown notification {method}")
            self.say(f"  unknown notification: alive {ok}; frames back {self.back(session, before)}")
        self.finish(session)

    def two(self):
        session = self.session("two")
        began = time.monotonic()
        first, second = session.named("slow"), session.named("slow")
        time.sleep(self.delay)
        session.cancel(first)
        one = session.answer(first, self.limit * 2)
        when = time.monotonic() - began
        other = session.answer(second, self.limit * 2)
        self.say(f"two slow, first cancelled: first {outcome(one)} at {ms(when)}; second {outcome(other)} at {ms(time.monotonic() - began)}")
        self.alive(session, "two")
        began = time.monotonic()
        first, second = session.named("slow"), session.named("slow")
        time.sleep(self.delay)
        session.cancel(second)
        one = session.answer(second, self.limit * 2)
        when = time.monotonic() - began
        other = session.answer(first, self.limit * 2)
        self.say(f"two slow, second cancelled: second {outcome(one)} at {ms(when)}; first {outcome(other)} within {ms(time.monotonic() - began)}")
        self.finish(session)

    def progress(self):
        asked = self.row_profile().get("requests", {}).get("progress")
        if not asked:
            return self.say("progress: the profile names none")
        session = self.session("progress")
        began = time.monotonic()
        id = session.named("progress")
        answer = session.answer(id, 40)
        count = sum(way == "<" and f.get("method") == asked["notification"] for _, way, f in session.frames)
        took = time.monotonic() - began
        self.say(f"progress, not cancelled: {outcome(answer)} after {ms(took)}, {count} notifications")
        start = len(session.frames)
        id = session.named("progress")
        end = time.monotonic() + took
        while time.monotonic() < end and sum(f.get("method") == asked["notification"] for _, _, f in session.frames[start:]) < 2:
            time.sleep(0.01)
        session.cancel(id)
        at = time.monotonic()
        answer = session.answer(id, took + 1)
        answered = time.monotonic()
        time.sleep(max(0.5, at + took - time.monotonic()))
        later = [t for t, way, f in session.frames[start:] if way == "<" and t > at + 0.05 and f.get("method") == asked["notification"]]
        after = [t for t in later if t > answered] if answer else []
        self.say(f"progress, cancelled after two: {outcome(answer)} after {ms(answered - at)}; {len(later)} notifications more, {len(after)} after the answer")
        self.alive(session, "progress")
        self.finish(session)

    def row_profile(self):
        return tomllib.loads((HERE / self.row["profile"]).read_text())

    def turn(self):
        """ACP's own cancel of a prompt's turn."""
        if self.row["kind"] != "acp":
            return
        session = self.session("turn")
        for _ in range(3):
            id = session.named("slow")
            time.sleep(self.delay)
            began = time.monotonic()
            session.notify("session/cancel", {"sessionId": session.bound["session"]})
            answer = session.answer(id, self.limit)
            self.say(f"session/cancel: {outcome(answer)} after {ms(time.monotonic() - began)}: {short(answer, 200)}")
        self.alive(session, "session/cancel")
        self.finish(session)


QUICK_PARTS = ["late", "unknown", "malformed", "methods"]
PARTS = ["running", "together", "twice", "late", "unknown", "malformed", "ids", "methods", "two", "progress", "turn"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--home", default=os.environ.get("SCOREBOARD_HOME", HERE.parent.parent / "target" / "scoreboard"))
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--frames", default=None)
    parser.add_argument("--truth", action="store_true")
    options = parser.parse_args()
    home = pathlib.Path(options.home).resolve()
    rows = {row["name"]: row for row in tomllib.loads((HERE / "programs.toml").read_text())["program"]}
    for name in options.names:
        print(f"{name} ({rows[name]['version']})", flush=True)
        look = Look(rows[name], home, pathlib.Path(options.frames or home / "frames") / name)
        parts = options.only.split(",") if look.slow else QUICK_PARTS
        for part in ["baseline", *filter(None, parts)]:
            try:
                getattr(look, part)()
            except (Gone, TimeoutError) as error:
                look.say(f"{part}: STOPPED: {error}")
                if part == "baseline":
                    break
        if options.truth:
            page = HERE / "truth" / f"{name}.md"
            read = page.read_text().partition("## Seen")[0].rstrip()
            page.write_text(read + "\n\n## Seen\n\n```text\n" + "\n".join(look.facts) + "\n```\n")


if __name__ == "__main__":
    sys.exit(main())
