"""Starts a small HTTP server on loopback, whose page comes after 2.5 s, and then a command that may ask it.

The page's address is http://127.0.0.1:47813/slow, as a profile cannot know a port that is chosen later.
"""

import http.server
import subprocess
import sys
import threading
import time


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(2.5)
        body = b"<html><body><p>slow</p></body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer.allow_reuse_address = True
try:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 47813), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
except OSError:
    pass  # Another session's server answers.
sys.exit(subprocess.run(sys.argv[1:]).returncode)
