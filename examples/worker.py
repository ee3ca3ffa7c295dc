"""A worker in Python: it does jobs of a cluster on Redis, and stops when the request of its job is cancelled. At SIGTERM it gives
its job back.

docs/cluster.md has the keys, channels and values. Run it with `python worker.py redis://127.0.0.1:6379` and redis-py.
"""

import json
import signal
import sys
import time

import redis

ending = []
signal.signal(signal.SIGTERM, lambda *_: ending.append(True))
engine = redis.Redis.from_url(sys.argv[1], decode_responses=True)
while not ending:
    if not (taken := engine.brpop("rescind:jobs", 5)):  # waits for a job
        continue
    job = json.loads(taken[1])
    cancelled, finished = (f"rescind:signal:{what}.{job['key']}" for what in ("cancelled", "finished"))
    with engine.pubsub() as doorbell:
        doorbell.subscribe(cancelled)
        doorbell.get_message(timeout=None)  # the server has confirmed it: a look before that could miss a cancel
        stopped, end = engine.exists(cancelled), time.monotonic() + job["params"]["ms"] / 1000
        print("started", job["key"], flush=True)
        while not stopped and not ending and (left := end - time.monotonic()) > 0:
            stopped = doorbell.get_message(timeout=min(left, 0.05))  # in place of a step of real work
    if stopped:
        print("cancelled", job["key"], flush=True)
    elif time.monotonic() < end:
        engine.lpush("rescind:jobs", taken[1])
        print("given back", job["key"], flush=True)
    else:
        result = json.dumps({"worked_ms": job["params"]["ms"]})
        engine.pipeline(transaction=False).set(finished, result, px=3_600_000, nx=True).publish(finished, result).execute()
        print("finished", job["key"], flush=True)
