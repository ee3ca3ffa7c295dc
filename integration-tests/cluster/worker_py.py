"""Plays examples/worker.py: `worker_py.py RESCIND REDIS_SERVER WORKER`. The script `worker_py` starts it."""

import json
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request

import redis

RESCIND, REDIS, WORKER = sys.argv[1:]
LIMIT = 60  # seconds, for each wait: a busy machine is slow
LONG = 10 * LIMIT * 1000  # milliseconds: a job that does not finish in any wait
children = []


class Child:
    """A program and its lines. It is killed at the end."""

    def __init__(self, *command, stream):
        pipes = {stream: subprocess.PIPE}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, **pipes)
        children.append(self.process)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, args=[getattr(self.process, stream)], daemon=True).start()

    def read(self, pipe):
        for line in pipe:
            self.lines.put(line.rstrip())
        self.lines.put(None)

    def until(self, part):
        """The next line that has this part."""
        while True:
            line = self.lines.get(timeout=LIMIT)
            if line is None:
                raise SystemExit(f"{self.process.args[0]} ended before it printed {part!r}")
            if part in line:
                return line


def start_redis(folder):
    for _ in range(5):  # another program may take the port meanwhile
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", folder]
        server = Child(REDIS, *options, stream="stdout")
        try:
            server.until("Ready to accept connections")
            return f"redis://127.0.0.1:{port}"
        except SystemExit:
            continue
    raise SystemExit("redis-server did not start")


class Client:
    """A session of MCP over streamable HTTP."""

    def __init__(self, url):
        self.url, self.session = url, None
        client = {"name": "worker_py", "version": "0"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        with self.post({"id": 0, "method": "initialize", "params": params}) as answer:
            self.session = answer.headers["Mcp-Session-Id"]
            answer.read()
        self.post({"method": "notifications/initialized"}).close()

    def post(self, message):
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self.session:
            headers |= {"Mcp-Session-Id": self.session, "Mcp-Protocol-Version": "2025-11-25"}
        body = json.dumps({"jsonrpc": "2.0"} | message).encode()
        return urllib.request.urlopen(urllib.request.Request(self.url, body, headers), timeout=LIMIT)

    def remote(self, number, ms):
        """Sends a request whose work another process does. Returns a queue that gets the text of its response."""
        response = queue.Queue()

        def ask():
            try:
                with self.post({"id": number, "method": "test/remote", "params": {"ms": ms}}) as answer:
                    response.put(answer.read().decode())
            except OSError as error:
                response.put(f"failed: {error}")

        threading.Thread(target=ask, daemon=True).start()
        return response

    def key(self, number):
        with self.post({"id": f"key {number}", "method": "test/key", "params": {"id": number}}) as answer:
            text = answer.read().decode()
        return text.split('"key":"')[1].split('"')[0]

    def cancel(self, number):
        self.post({"method": "notifications/cancelled", "params": {"requestId": number}}).close()


def play(folder):
    server = start_redis(folder)
    options = ["--dialect", "mcp", "--listen", "http://127.0.0.1:0/mcp", "--cluster", server, "--node", "n1"]
    fixture = Child(RESCIND, "fixture", *options, stream="stderr")
    client = Client(fixture.until("listening on ").removeprefix("listening on "))

    # Cancelled before any worker takes it: the record of the cancel is all that the worker can find.
    client.remote(1, LONG)
    early = client.key(1)
    with redis.Redis.from_url(server).pubsub() as doorbell:
        doorbell.subscribe(f"rescind:signal:cancelled.{early}")
        doorbell.get_message(timeout=None)
        client.cancel(1)
        if not doorbell.get_message(timeout=LIMIT):
            raise SystemExit("the cancel of a request did not ring")
    worker = Child(sys.executable, WORKER, server, stream="stdout")
    worker.until(f"started {early}")
    worker.until(f"cancelled {early}")
    print("a job whose request was cancelled before: stopped at once")

    client.remote(2, LONG)
    running = client.key(2)
    worker.until(f"started {running}")
    client.cancel(2)
    worker.until(f"cancelled {running}")
    print("a job whose request is cancelled: stopped")

    answer = client.remote(3, 50)
    worker.until("finished ")
    text = answer.get(timeout=LIMIT)
    if '"worked_ms":50' not in text:
        raise SystemExit(f"the request did not get the end of its job: {text}")
    print("a job that finishes: its request is answered")

    client.remote(4, LONG)
    running = client.key(4)
    worker.until(f"started {running}")
    worker.process.terminate()
    worker.until(f"given back {running}")
    if code := worker.process.wait(timeout=LIMIT):
        raise SystemExit(f"the worker that was told to end ended with {code}")
    worker = Child(sys.executable, WORKER, server, stream="stdout")
    worker.until(f"started {running}")
    client.cancel(4)
    worker.until(f"cancelled {running}")
    print("a job of a worker that is told to end: another does it")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        try:
            play(scratch)
        finally:
            for child in reversed(children):
                child.kill()
                child.wait()
