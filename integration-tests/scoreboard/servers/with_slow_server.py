"""Starts a small HTTP proxy on loopback, which answers every request by a page after 2.5 s, and then a command: with_slow_server.py COMMAND..

The command gets `--proxy-url` with the proxy's address, as a profile cannot know a port that is chosen later.
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


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.exit(subprocess.run([*sys.argv[1:], "--proxy-url", f"http://127.0.0.1:{server.server_port}"]).returncode)
