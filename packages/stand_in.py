"""What npm's registry, GitHub's runner and Docker Compose do with the packages, as far as `.ci/packages` needs it.

stand_in.py registry FOLDER                 serves the npm packages of the folder, and prints the URL of the registry
stand_in.py action FILE NAME=VALUE..        runs the steps of a composite action with these inputs
stand_in.py compose FILE FILE-SYSTEM CLIENT runs the services of a compose file, the image from its file system, and a client beside them.
                                            Needs root: each run has a network of its own
stand_in.py client RESCIND TOKEN-FILE URL   cancels a call of the fixture at this URL, through `rescind bridge --listen stdio`, and asks
                                            whether its handler was cancelled
"""

import base64
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path


def registry(folder: str) -> None:
    packages: dict[str, dict] = {}
    for path in Path(folder).glob("*.tgz"):
        with tarfile.open(path) as tar:
            manifest = json.load(tar.extractfile("package/package.json"))
        packages[manifest["name"]] = manifest | {"path": path}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path[1:].replace("%2f", "/").replace("%2F", "/")
            tarball = [each for each in packages.values() if each["path"].name == name]
            if tarball:
                return self.answer(200, tarball[0]["path"].read_bytes())
            if name not in packages:
                return self.answer(404, b"{}")
            manifest = {key: value for key, value in packages[name].items() if key != "path"}
            path = packages[name]["path"]
            digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
            manifest["dist"] = {"tarball": f"{url}/{path.name}", "integrity": f"sha512-{digest}"}
            version = manifest["version"]
            page = {"name": name, "dist-tags": {"latest": version}, "versions": {version: manifest}}
            self.answer(200, json.dumps(page).encode())

        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    print(url, flush=True)
    server.serve_forever()


def action(file: str, *given: str) -> None:
    import yaml

    action = yaml.safe_load(Path(file).read_text())
    inputs = dict(each.split("=", 1) for each in given)
    for name in inputs:
        if name not in action["inputs"]:
            sys.exit(f"the action has no input {name}")
    for name, field in action["inputs"].items():
        if name not in inputs:
            if field.get("required"):
                sys.exit(f"the input {name} is required")
            inputs[name] = str(field["default"])

    def value(text: str) -> str:
        whole = re.sub(r"\$\{\{ *inputs\.([\w-]+) *\}\}", lambda found: inputs[found[1]], text)
        if "${{" in whole:
            sys.exit(f"not known here: {text}")
        return whole

    if action["runs"]["using"] != "composite":
        sys.exit("only composite actions run here")
    for step in action["runs"]["steps"]:
        unknown = set(step) - {"name", "shell", "env", "run"}
        if unknown or step["shell"] != "bash":
            sys.exit(f"not known here: {step}")
        print(f"## {step['name']}", flush=True)
        environment = os.environ | {"CI": "true", "GITHUB_ACTIONS": "true"}
        environment |= {name: value(text) for name, text in step.get("env", {}).items()}
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write(value(step["run"]))
            script.flush()
            # As GitHub's runner starts bash.
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", script.name]
            code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode
        if code != 0:
            sys.exit(code)


def compose(file: str, image: str, *client: str) -> None:
    import yaml

    if "STAND_IN_NETWORK" not in os.environ:
        os.environ["STAND_IN_NETWORK"] = "own"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])
    file = Path(file).resolve()
    wanted = yaml.safe_load(file.read_text())
    scratch = Path(tempfile.mkdtemp())
    # Each service has a name and an address, and all are on this loopback.
    services = {name: f"127.0.0.{number}" for number, name in enumerate(wanted["services"], 2)}
    hosts = scratch / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in services.items()))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    mounts: list[str] = []

    def mount(*words: str | Path) -> None:
        subprocess.run(["mount", *words], check=True)
        mounts.append(words[-1])

    mount("--bind", hosts, "/etc/hosts")
    children: list[tuple[str, subprocess.Popen]] = []

    def start(name: str) -> None:
        service = wanted["services"][name]
        for other in service.get("depends_on", []):
            if other not in [started for started, _ in children]:
                start(other)
        command = list(service["command"])
        if command[0] in ("redis-server", "haproxy"):
            # Debian's, in place of the image.
            for config in service.get("configs", []):
                path = scratch / config["source"]
                path.write_text(wanted["configs"][config["source"]]["content"])
                command = [str(path) if word == config["target"] else word for word in command]
            if command[0] == "redis-server":
                command += ["--dir", str(scratch)]
            started = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        else:
            folder = scratch / name
            shutil.copytree(image, folder)
            (folder / "etc").mkdir(exist_ok=True)
            shutil.copy(hosts, folder / "etc/hosts")
            for secret in service.get("secrets", []):
                path = folder / "run/secrets" / secret
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.parent / wanted["secrets"][secret]["file"], path)
                path.chmod(0o444)
            folder.chmod(0o755)
            (folder / "proc").mkdir(exist_ok=True)
            mount("-t", "proc", "proc", folder / "proc")
            (folder / "dev").mkdir(exist_ok=True)
            (folder / "dev/null").touch()
            mount("--bind", "/dev/null", folder / "dev/null")
            if service.get("build"):
                # Its image is made of others, which are not here: the fixture is in place of the server.
                command = command[: command.index("--")] + ["--", "/rescind", "fixture", "--dialect=mcp", "--listen=stdio"]
            chroot = ["chroot", "--userspec=65532:65532", str(folder), "/rescind"]
            environment = {"PATH": os.environ["PATH"]}
            started = subprocess.Popen(chroot + command, stdin=subprocess.DEVNULL, env=environment)
        children.append((name, started))

    code = 1
    try:
        for name in services:
            if name not in [started for started, _ in children]:
                start(name)
        time.sleep(2)
        ended = [f"{name}: {child.returncode}" for name, child in children if child.poll() is not None]
        if ended:
            sys.exit(f"ended: {', '.join(ended)}")
        code = subprocess.run(client).returncode
    finally:
        for name, child in reversed(children):
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                code = 1
                print(f"{name} did not end within its grace period", file=sys.stderr)
            if name not in ("redis", "balancer") and child.returncode != 0:
                code = 1
                print(f"{name} ended with {child.returncode}", file=sys.stderr)
        for place in mounts:
            subprocess.run(["umount", place], check=True)
        shutil.rmtree(scratch)
    sys.exit(code)


def client(rescind: str, token: str, url: str) -> None:
    refused = 0
    try:
        urllib.request.urlopen(urllib.request.Request(url, b"{}", {"content-type": "application/json"}))
    except urllib.error.HTTPError as error:
        refused = error.code
    if refused != 401:
        sys.exit(f"without the token the answer was {refused}, not 401")
    command = [rescind, "bridge", "--dialect=mcp", "--listen=stdio", f"--to-token-file={token}", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bridge:

        def send(message: dict) -> None:
            bridge.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
            bridge.stdin.flush()

        def ask(number: int, method: str, params: dict) -> dict:
            send({"id": number, "method": method, "params": params})
            for line in bridge.stdout:
                message = json.loads(line)
                if message.get("id") == number and "method" not in message:
                    if "error" in message:
                        sys.exit(f"{method} failed: {line}")
                    return message["result"]
                if message.get("id") == 2:
                    sys.exit(f"the cancelled call was answered: {line}")
            sys.exit(f"the bridge ended before it answered {method}")

        # Over HTTP one message can overtake another.
        def until(count: str, number: int) -> None:
            for number in range(number, number + 100):
                if ask(number, "tools/call", {"name": "stats", "arguments": {}})["structuredContent"][count] == 1:
                    return
                time.sleep(0.1)
            sys.exit(f"{count} did not become 1")

        ask(1, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "client", "version": "1"}})
        send({"method": "notifications/initialized"})
        send({"id": 2, "method": "tools/call", "params": {"name": "wait", "arguments": {}}})
        until("running", 100)
        send({"method": "notifications/cancelled", "params": {"requestId": 2}})
        until("cancelled", 200)
        bridge.stdin.close()
        if bridge.wait(10) != 0:
            sys.exit(f"the client's bridge ended with {bridge.returncode}")
    print(f"401 without the token, and a call at {url} was cancelled and its handler too")


commands = {"client": client, "registry": registry, "action": action, "compose": compose}
if len(sys.argv) < 3 or sys.argv[1] not in commands:
    sys.exit(__doc__)
commands[sys.argv[1]](*sys.argv[2:])
