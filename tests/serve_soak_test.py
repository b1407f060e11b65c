"""Clients that connect, stream, abort and disconnect at random for SOAK_SECONDS (default 5), and
hold every answer that is complete against the one that a single client got.

Run by ctest as serve_cli_test.py is; the sanitizer builds run it for longer (Makefile). SOAK_SEED
(default 1) decides what the clients do.
"""

import json
import os
import random
import socket
import threading
import time
import unittest

from serve_process import PATIENCE, Server, chat, events, put_together

SECONDS = float(os.environ.get("SOAK_SECONDS", "5"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
CLIENTS = 8
CHAT = "/v1/chat/completions"
TEXTS = "/v1/completions"
RESPONSES = "/v1/responses"

SYSTEM = {"role": "system", "content": "You answer in few words. " * 10}
BODIES = [
    (CHAT, chat("What is the capital of France?", max_tokens=60)),
    (CHAT, chat("Name a colour.", max_tokens=60, temperature=1, seed=3)),
    (CHAT, chat([SYSTEM, {"role": "user", "content": "Who are you?"}], max_tokens=40)),
    (CHAT, chat([SYSTEM, {"role": "user", "content": "What is rain?"}], max_tokens=40, stop="e")),
    (CHAT, chat("Describe a cat.", max_tokens=60, reasoning_effort="none",
                response_format={"type": "json_object"})),
    (TEXTS, {"prompt": "The capital of France is", "max_tokens": 80, "ignore_eos": True}),
    (TEXTS, {"prompt": "Once upon a time", "max_tokens": 80, "temperature": 0.8, "seed": 9,
             "stop": [" the "]}),
    (RESPONSES, {"input": "What is the capital of Italy?", "max_output_tokens": 60}),
]


def outcome(path, json_answer):
    if path == RESPONSES:
        return ([(item["type"], item["content"][0]["text"]) for item in json_answer["output"]],
                json_answer["status"])
    choice = json_answer["choices"][0]
    if path == TEXTS:
        return choice["text"], choice["finish_reason"]
    message = choice["message"]
    return (message["content"] or "", message.get("reasoning_content", ""),
            choice["finish_reason"])


def is_end(event):
    return event == "[DONE]" or event.get("type") in ("response.completed", "response.incomplete")


def streamed_outcome(path, chunks):
    if path == RESPONSES:
        whole = outcome(path, chunks[-1]["response"])
        deltas = "".join(c["delta"] for c in chunks if c["type"].endswith("_text.delta"))
        return whole if deltas == "".join(text for _, text in whole[0]) else deltas
    if path == CHAT:
        message, finish = put_together(chunks)
        return message["content"], message["reasoning_content"], finish
    choices = [c["choices"][0] for c in chunks if c != "[DONE]"]
    return "".join(c["text"] for c in choices), choices[-1]["finish_reason"]


class Soak(unittest.TestCase):
    def setUp(self):
        self.problems = []
        self.counts = {"whole": 0, "streamed": 0, "aborted": 0, "refused": 0, "odd": 0}
        self.lock = threading.Lock()

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def check(self, what, i, got):
        self.count(what)
        if got != self.expected[i]:
            with self.lock:
                self.problems.append((BODIES[i], self.expected[i], got))

    def one_request(self, server, choose):
        i = choose.randrange(len(BODIES))
        path, body = BODIES[i]
        kind = choose.random()
        if kind < 0.25:
            status, _, data = server.request("POST", path, body)
            if status == 429:
                return self.count("refused")
            self.assertEqual(status, 200, data)
            return self.check("whole", i, outcome(path, json.loads(data)))
        if kind < 0.35:  # not quite HTTP, or a client that hangs up before it has asked
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as raw:
                raw.sendall(choose.choice([b"GET / HT", b"\x16\x03\x01", b"POST " + path.encode(),
                                           b"POST /tokenize HTTP/1.1\r\nContent-Length: 99\r\n\r\n{"]))
                time.sleep(choose.random() * 0.05)
            return self.count("odd")
        try:
            connection, response = server.stream(path, body)
        except AssertionError as error:
            if ": 429:" not in str(error):
                raise
            return self.count("refused")
        chunks = []
        leaves_after = choose.randrange(1, 60) if kind < 0.65 else None
        for event in events(response):
            chunks.append(event)
            if len(chunks) == leaves_after:
                break
        done = is_end(chunks[-1])
        response.close()
        connection.close()
        if not done:
            self.assertIsNotNone(leaves_after, chunks[-1])
            return self.count("aborted")
        return self.check("streamed", i, streamed_outcome(path, chunks))

    def client(self, server, number, end):
        choose = random.Random(SEED * 1000 + number)
        try:
            while time.monotonic() < end and not self.problems:
                self.one_request(server, choose)
        except Exception as error:  # a thread's failure must reach the test
            with self.lock:
                self.problems.append(repr(error))

    def test_answers_that_are_computed(self):
        self.soak("--keep-nothing")

    def test_answers_that_go_on_from_kept_states(self):
        self.soak()

    def soak(self, *flags):
        with Server("--parallel", "4", "--queue", "6", *flags) as server:
            self.expected = [outcome(path, server.post(path, body)) for path, body in BODIES]
            end = time.monotonic() + SECONDS / 2
            threads = [threading.Thread(target=self.client, args=(server, n, end))
                       for n in range(CLIENTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(self.problems, [])
            for _ in range(PATIENCE * 10):
                if server.metric("jobs_running") + server.metric("jobs_queued") == 0:
                    break
                time.sleep(0.1)
            self.assertEqual(server.metric("jobs_running") + server.metric("jobs_queued"), 0)
            self.assertEqual(server.stop(), 0, server.stderr()[-4000:])
        self.assertNotIn("Sanitizer", server.stderr())
        print("soak:", self.counts)
        self.assertGreater(self.counts["streamed"] + self.counts["whole"], 0)


if __name__ == "__main__":
    unittest.main()
