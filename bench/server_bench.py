#!/usr/bin/env python3
"""What the server costs beside the model: k3-nano, whose tokens take a millisecond or two.

    bench/server_bench.py [--json] [PROGRAM]      default: build/release/deltafin

Starts a server and measures, each next to its target:
- tokens per second of `deltafin run`, of one client, and of eight at once;
- the time that a token takes beside the passes over the weights: the clients' time less the
  passes', for each pass, and the part of it that is not the scheduler's;
- the time to the first byte of a stream, idle and beside seven streams;
- what 1,000 idle connections cost, and whether all of them still answer.
The client only looks for the end of each stream, so that it takes little of the processors.
"""

import itertools
import json
import os
import pathlib
import re
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time

from report import at_least, at_most, show

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARGUMENTS = [a for a in sys.argv[1:] if a != "--json"]
PROGRAM = ARGUMENTS[0] if ARGUMENTS else str(ROOT / "build/release/deltafin")
MODEL = str(ROOT / "models/k3-nano")
TOKENS = 1500
ROUNDS = 3
PROMPT = "The capital of France is"
CLIENTS = 8
IDLE = 1000
FIRST_BYTES = 40

seeds = itertools.count(1)


def start():
    env = {k: v for k, v in os.environ.items() if not k.startswith(("K3_", "DELTAFIN_"))}
    process = subprocess.Popen(
        [PROGRAM, "serve", "--model", MODEL, "--port", "0", "--parallel", str(CLIENTS),
         "--keep-nothing", "--spec", "off", "--quiet"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    for line in process.stderr:
        match = re.match(r"listening on http://.*:(\d+)$", line.strip())
        if match:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, int(match.group(1))
    raise SystemExit("the server did not start")


def request(path, body):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def generation(tokens=TOKENS):
    return request("/v1/completions", {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True,
                                       "temperature": 1, "seed": next(seeds), "stream": True})


def metrics(port):
    """Seconds in passes, and passes, since the start."""
    connection = connect(port)
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = b""
    while data := connection.recv(1 << 16):
        text += data
    connection.close()
    sums = {}
    for name, value in re.findall(r"^deltafin_(\w+?)(?:\{.*\})? (\S+)$", text.decode(), re.M):
        sums[name] = sums.get(name, 0) + float(value)
    return sums["pass_seconds_total"], sums["passes_total"]


def stream(port, clients):
    """Runs so many streams at once; per pass in ms: the clients', the scheduler's, the model's."""
    seconds_before, passes_before = metrics(port)
    select = selectors.DefaultSelector()
    tails = {}
    begin = time.perf_counter()
    for _ in range(clients):
        connection = connect(port)
        connection.sendall(generation())
        select.register(connection, selectors.EVENT_READ)
        tails[connection] = b""
    scheduler = []
    while tails:
        for key, _ in select.select():
            connection = key.fileobj
            data = connection.recv(1 << 16)
            tail = tails[connection] + data
            if b"[DONE]" in tail or not data:
                seconds = [float(re.search(rb'"%s":([0-9.e-]+)' % name, tail).group(1))
                           for name in (b"prefill_seconds", b"decode_seconds")]
                scheduler.append(sum(seconds))
                select.unregister(connection)
                del tails[connection]
                connection.close()
            else:
                tails[connection] = tail[-2000:]
    wall = time.perf_counter() - begin
    seconds, passes = metrics(port)
    passes -= passes_before
    return {"tokens_per_second": clients * TOKENS / wall, "client_ms": wall / passes * 1e3,
            "scheduler_ms": max(scheduler) / passes * 1e3,
            "model_ms": (seconds - seconds_before) / passes * 1e3}


def run_command():
    done = subprocess.run([PROGRAM, "run", "--model", MODEL, "--prompt", PROMPT, "--max-new",
                           str(TOKENS), "--ignore-stop", "--temperature", "1", "--seed", "0",
                           "--spec", "off", "--json"], capture_output=True, check=True)
    return json.loads(done.stdout)["timings"]["decode_tokens_per_second"]


def first_byte(port):
    """Milliseconds from the request to the first byte of its stream."""
    times = []
    for _ in range(FIRST_BYTES):
        connection = connect(port)
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1,
                "seed": next(seeds), "stream": True}
        begin = time.perf_counter()
        connection.sendall(request("/v1/chat/completions", body))
        data = connection.recv(1)
        times.append((time.perf_counter() - begin) * 1e3)
        while b"[DONE]" not in data:
            data += connection.recv(1 << 16)
        connection.close()
    times.sort()
    return {"median_ms": statistics.median(times), "p95_ms": times[len(times) * 95 // 100 - 1],
            "longest_ms": times[-1]}


def first_byte_beside_others(port):
    """The same while seven others generate: they leave one session free."""
    others = []
    for _ in range(CLIENTS - 1):
        connection = connect(port)
        connection.sendall(generation(7000))
        others.append(connection)
    reader = threading.Thread(target=drain, args=(others,))
    reader.start()
    time.sleep(0.5)
    try:
        return first_byte(port)
    finally:
        for connection in others:
            connection.shutdown(socket.SHUT_RDWR)
        reader.join()


def drain(connections):
    select = selectors.DefaultSelector()
    for connection in connections:
        select.register(connection, selectors.EVENT_READ)
    while select.get_map():
        for key, _ in select.select():
            if not key.fileobj.recv(1 << 16):
                select.unregister(key.fileobj)
                key.fileobj.close()


def memory(process):
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    field = lambda name: int(re.search(rf"^{name}:\s+(\d+)", text, re.M).group(1))
    return field("VmRSS"), field("Threads")


def idle(process, port):
    before, threads = memory(process)
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connections = []
    for _ in range(IDLE):
        connection = connect(port)
        connection.sendall(get)
        connections.append(connection)
    answered = sum(b" 200 " in c.recv(4096) for c in connections)
    after, threads_after = memory(process)
    time.sleep(2)
    begin = time.perf_counter()
    for connection in connections:
        connection.sendall(get)
    again = sum(b" 200 " in c.recv(4096) for c in connections)
    seconds = time.perf_counter() - begin
    for connection in connections:
        connection.close()
    return {"answered": answered, "answered_again": again, "seconds_for_all": seconds,
            "kb_each": (after - before) / IDLE, "more_threads": threads_after - threads}


def results_of(run, median, first, beside, held):
    streams = [{"op": "streams", "clients": clients, "tokens_per_s": m["tokens_per_second"],
                "client_ms_per_pass": m["client_ms"], "scheduler_ms_per_pass": m["scheduler_ms"],
                "model_ms_per_pass": m["model_ms"]} for clients, m in median.items()]
    return [{"op": "deltafin run", "tokens_per_s": run}, *streams,
            {"op": "first byte", "other_streams": 0, **first},
            {"op": "first byte", "other_streams": CLIENTS - 1, **beside},
            {"op": "idle connections", "connections": IDLE, **held}]


def measure():
    run = statistics.median(run_command() for _ in range(ROUNDS))
    process, port = start()
    try:
        stream(port, CLIENTS)  # warm
        runs = {1: [], CLIENTS: []}
        for _ in range(ROUNDS):
            for clients, results in runs.items():
                results.append(stream(port, clients))
        median = {clients: {key: statistics.median(r[key] for r in results) for key in results[0]}
                  for clients, results in runs.items()}
        # Each round beside itself: what else the machine does changes over minutes.
        scaling = statistics.median(eight["tokens_per_second"] / one["tokens_per_second"]
                                    for one, eight in zip(runs[1], runs[CLIENTS]))
        first = first_byte(port)
        beside = first_byte_beside_others(port)
        held = idle(process, port)
    finally:
        process.terminate()
        process.wait()
    overhead = median[CLIENTS]["client_ms"] - median[CLIENTS]["model_ms"]
    targets = [at_most(f"ms a token beside the passes with {CLIENTS} clients", 1, overhead),
               at_most("ms to the first byte of a stream, the longest", 50, first["longest_ms"]),
               at_least("idle connections that still answer", IDLE, held["answered_again"]),
               at_least(f"tokens/s of {CLIENTS} clients to that of one", 4, scaling)]
    return results_of(run, median, first, beside, held), targets


if __name__ == "__main__":
    show(*measure(), as_json="--json" in sys.argv)
