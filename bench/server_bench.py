#!/usr/bin/env python3
"""What the server costs beside the model: k3-nano, whose tokens take a millisecond.

    bench/server_bench.py [PROGRAM]          default: build/release/deltafin

Starts a server and prints, each next to what it is compared with:
- tokens per second of `deltafin run`, of one client, and of eight at once;
- the time for which the server delays a token: client's time less the scheduler's;
- the time to the first byte of a stream, and of an answer that is not streamed;
- what 1,000 idle connections cost, and whether all of them still answer.
The client only counts events, so that it takes little of the processors.
"""

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

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/deltafin")
MODEL = str(ROOT / "models/k3-nano")
TOKENS = 1500
PROMPT = "The capital of France is"
CLIENTS = 8
IDLE = 1000


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


def generation(seed, tokens=TOKENS):
    return request("/v1/completions", {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True,
                                       "temperature": 1, "seed": seed, "stream": True})


def stream(port, clients):
    """Runs so many streams at once: wall seconds, and the scheduler's decode seconds of each."""
    select = selectors.DefaultSelector()
    tails = {}
    begin = time.perf_counter()
    for seed in range(clients):
        connection = connect(port)
        connection.sendall(generation(seed))
        select.register(connection, selectors.EVENT_READ)
        tails[connection] = b""
    decode = []
    while tails:
        for key, _ in select.select():
            connection = key.fileobj
            data = connection.recv(1 << 16)
            tail = tails[connection] + data
            if b"[DONE]" in tail or not data:
                decode.append(float(re.search(rb'"decode_seconds":([0-9.e-]+)', tail).group(1)))
                select.unregister(connection)
                del tails[connection]
                connection.close()
            else:
                tails[connection] = tail[-2000:]
    return time.perf_counter() - begin, decode


def run_command():
    done = subprocess.run([PROGRAM, "run", "--model", MODEL, "--prompt", PROMPT, "--max-new",
                           str(TOKENS), "--ignore-stop", "--temperature", "1", "--seed", "0",
                           "--spec", "off", "--json"], capture_output=True, check=True)
    return json.loads(done.stdout)["timings"]["decode_tokens_per_second"]


def first_byte(port, body):
    times = []
    for seed in range(40):
        connection = connect(port)
        begin = time.perf_counter()
        connection.sendall(request("/v1/chat/completions", {**body, "seed": seed}))
        connection.recv(1)
        times.append(time.perf_counter() - begin)
        while connection.recv(1 << 16).find(b"0\r\n\r\n") < 0 and body.get("stream"):
            pass
        connection.close()
    return statistics.median(times) * 1e3, max(times) * 1e3


def memory(process):
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    field = lambda name: int(re.search(rf"^{name}:\s+(\d+)", text, re.M).group(1))
    return field("VmRSS") / 1024, field("Threads")


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
    print(f"{IDLE} idle connections: {answered} answered, {again} again after 2 s (in "
          f"{seconds:.2f} s); {(after - before) * 1024 / IDLE:.1f} KB each, "
          f"{threads_after - threads} more threads")


def main():
    alone = [run_command() for _ in range(3)]
    process, port = start()
    try:
        stream(port, 1)  # warm
        one, eight = [], []
        for _ in range(3):
            one.append(stream(port, 1))
            eight.append(stream(port, CLIENTS))
        rate = lambda runs, clients: statistics.median(clients * TOKENS / wall for wall, _ in runs)
        print(f"deltafin run: {statistics.median(alone):.0f} tokens/s")
        print(f"one client: {rate(one, 1):.0f} tokens/s "
              f"({rate(one, 1) / statistics.median(alone):.2f} of run)")
        print(f"{CLIENTS} clients: {rate(eight, CLIENTS):.0f} tokens/s in all "
              f"({rate(eight, CLIENTS) / rate(one, 1):.2f} of one client)")
        for name, runs in (("one client", one), (f"{CLIENTS} clients", eight)):
            extra = [(wall - max(decode)) / TOKENS * 1e3 for wall, decode in runs]
            per_pass = [max(decode) / TOKENS * 1e3 for _, decode in runs]
            print(f"{name}: {statistics.median(per_pass):.3f} ms a pass in the scheduler, "
                  f"{statistics.median(extra):.4f} ms a token beside it (prompt and connection "
                  "included)")
        message = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        print("first byte of a stream: median %.1f ms, longest %.1f" %
              first_byte(port, {**message, "stream": True}))
        print("answer of one token, not streamed: median %.1f ms, longest %.1f" %
              first_byte(port, message))
        idle(process, port)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
