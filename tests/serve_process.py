"""A `deltafin serve` of its own for each test, and a client that knows no library."""

import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading

PROGRAM = shlex.split(os.environ["DELTAFIN_PROGRAM"])
SOURCE = os.environ["DELTAFIN_SOURCE_DIR"]
NANO = os.path.join(SOURCE, "models", "k3-nano")
PATIENCE = 240  # seconds: a test that needs them has failed


def clean_environment(extra=None):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("K3_", "DELTAFIN_")) or k.startswith("DELTAFIN_PROGRAM")}
    env["K3_SPINE"] = "bf16"  # whatever lies beside the files
    env.update(extra or {})
    return env


class Server:
    """with Server("--parallel", "2") as server: server.post(...)"""

    def __init__(self, *flags, env=None, keep_dir=None):
        self.folder = None
        if keep_dir is None:
            self.folder = tempfile.TemporaryDirectory()
            keep_dir = self.folder.name
        self.process = subprocess.Popen(
            PROGRAM + ["serve", "--model", NANO, "--port", "0", "--keep-dir", keep_dir, *flags],
            env=clean_environment(env), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="replace")
        self.lines = []
        self.port = None
        self.listens = threading.Event()
        self.reader = threading.Thread(target=self.read_stderr, daemon=True)
        self.reader.start()
        self.listens.wait(PATIENCE)
        if self.port is None:
            self.process.kill()
            raise AssertionError("the server did not start:\n" + self.stderr())

    def read_stderr(self):
        for line in self.process.stderr:
            self.lines.append(line)
            match = re.match(r"listening on http://.*:(\d+)$", line.strip())
            if match:
                self.port = int(match.group(1))
                self.listens.set()
        self.listens.set()

    def stderr(self):
        return "".join(self.lines)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.reader.join(PATIENCE)
        self.process.stderr.close()
        if self.folder:
            self.folder.cleanup()

    def stop(self, signal_number=signal.SIGTERM):
        """Its exit status."""
        self.process.send_signal(signal_number)
        return self.process.wait(PATIENCE)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def request(self, method, path, body=None, headers=None):
        """Status, headers and the body as bytes."""
        connection = self.connect()
        all_headers = {"Content-Type": "application/json"} if body is not None else {}
        all_headers.update(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method, path, body, all_headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, response.headers, data

    def get(self, path, **kwargs):
        status, _, data = self.request("GET", path, **kwargs)
        if status != 200:
            raise AssertionError(f"{path}: {status}: {data!r}")
        return data.decode()

    def post(self, path, body, status=200, **kwargs):
        got, _, data = self.request("POST", path, body, **kwargs)
        if got != status:
            raise AssertionError(f"{path}: {got}: {data!r}")
        return json.loads(data)

    def stream(self, path, body):
        """The open connection and its response, of which events() reads."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError(f"{path}: {response.status}: {response.read()!r}")
        return connection, response

    def streamed(self, path, body):
        connection, response = self.stream(path, body)
        got = list(events(response))
        connection.close()
        return got

    def metric(self, name):
        for line in self.get("/metrics").splitlines():
            if line.startswith("deltafin_" + name + " "):
                return float(line.split()[-1])
        raise AssertionError("no metric " + name)


def events(response):
    """The data of server-sent events; "[DONE]" as it is."""
    for line in response:
        line = line.decode().rstrip("\n")
        if line.startswith("data: "):
            yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


def chat(content, **fields):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return {"messages": messages, **fields}


def put_together(chunks):
    """The message and the finish reason that chunks of one choice make."""
    message = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for chunk in chunks:
        if chunk == "[DONE]" or not chunk["choices"]:
            continue
        choice = chunk["choices"][0]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call["id"], "name": call["function"]["name"],
                                              "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        finish = choice["finish_reason"] or finish
    return message, finish
