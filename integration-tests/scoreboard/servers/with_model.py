"""Starts a small model on loopback, and then an agent that uses it: with_model.py COMMAND..

The model speaks as much of two HTTP interfaces of models as the agents need. It streams a word every 250 ms for 3 s.
"""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time


class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        gemini = "/models/" in self.path
        if gemini and "stream" not in self.path or not gemini and not asked.get("stream"):
            return self.whole(self.gemini("word", True) if gemini else self.openai("word", True, "message"))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for word in range(12):
                time.sleep(0.25)
                last = word == 11
                chunk = self.gemini(f"word {word} ", last) if gemini else self.openai(f"word {word} ", last, "delta")
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                self.wfile.flush()
            if not gemini:
                self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass  # The agent hung up.

    def do_GET(self):
        self.whole({"data": [], "models": []})

    def whole(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @staticmethod
    def gemini(text, last):
        candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0} | ({"finishReason": "STOP"} if last else {})
        return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}

    @staticmethod
    def openai(text, last, member):
        choice = {"index": 0, member: {"role": "assistant", "content": text}, "finish_reason": "stop" if last else None}
        return {"id": "one", "object": "chat.completion.chunk", "created": 1, "model": "small", "choices": [choice]}

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"
with tempfile.TemporaryDirectory() as home:
    env = os.environ | {
        "HOME": home,
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_MODEL": "small",
        "GEMINI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": address,
        "NO_COLOR": "1",
    }
    for folder, kind in ((".gemini", "gemini-api-key"), (".qwen", "openai")):
        os.makedirs(os.path.join(home, folder))
        with open(os.path.join(home, folder, "settings.json"), "w") as settings:
            json.dump({"security": {"auth": {"selectedType": kind}}, "telemetry": {"enabled": False}, "privacy": {"usageStatisticsEnabled": False}}, settings)
    code = subprocess.run(sys.argv[1:], env=env).returncode
sys.exit(code)
