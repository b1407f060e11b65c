"""The server as clients use it: real processes, k3-nano, plain HTTP.

Run by ctest with DELTAFIN_PROGRAM (the command, an emulator in front of it where needed) and
DELTAFIN_SOURCE_DIR in the environment.
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from serve_process import (NANO, PATIENCE, PROGRAM, SOURCE, Server, chat, clean_environment, events,
                           put_together)

PROMPTS = json.load(open(os.path.join(SOURCE, "tests", "data", "nano", "prompts.json")))
TEXT = PROMPTS[0]
QUESTIONS = ["What is the capital of France?", "What is the capital of Japan?", "Say hello.",
             "Name a colour."]
CHAT = "/v1/chat/completions"
TEXTS = "/v1/completions"

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                           "size": {"type": "integer"},
                                           "kind": {"enum": ["old", "new"]}},
          "required": ["city", "size", "kind"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {
    "type": "object", "properties": {"kind": {"enum": ["old", "new"]}, "size": {"type": "integer"}},
    "required": ["kind"], "additionalProperties": False}}}
OTHER_TOOL = {"type": "function", "function": {"name": "wait"}}


def wait_for(condition):
    """Polls: how long it takes is no part of a test."""
    for _ in range(PATIENCE * 20):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def answer_of(json_answer):
    choice = json_answer["choices"][0]
    message = choice["message"]
    return message["content"], message.get("reasoning_content"), choice["finish_reason"]


class Shared(unittest.TestCase):
    """Tests that need a server with the default flags share one."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()


class Chat(Shared):
    def test_says_what_the_command_says(self):
        for question in QUESTIONS[:2]:
            done = subprocess.run(
                PROGRAM + ["run", "--model", NANO, "--chat", "--prompt", question, "--json"],
                env=clean_environment(), capture_output=True, timeout=PATIENCE, check=True)
            expected = json.loads(done.stdout)
            got = self.server.post(CHAT, chat(question))
            message = got["choices"][0]["message"]
            self.assertEqual(message["content"], expected["text"])
            self.assertEqual(message["reasoning_content"], expected["reasoning"])
            self.assertEqual(got["usage"]["prompt_tokens"], len(expected["prompt_ids"]))
            self.assertEqual(got["usage"]["completion_tokens"], len(expected["ids"]))
            self.assertEqual(got["model"], "k3-nano")

    def test_a_stream_makes_the_same_answer(self):
        for question in QUESTIONS:
            whole = self.server.post(CHAT, chat(question, max_tokens=100))
            chunks = self.server.streamed(
                CHAT, chat(question, max_tokens=100, stream_options={"include_usage": True}))
            message, finish = put_together(chunks)
            self.assertEqual((message["content"], message["reasoning_content"], finish),
                             answer_of(whole))
            self.assertEqual(chunks[-1], "[DONE]")
            self.assertEqual(chunks[-2]["usage"]["completion_tokens"],
                             whole["usage"]["completion_tokens"])

    def test_thinking_can_be_switched_off(self):
        message = self.server.post(CHAT, chat("Say hello.", reasoning_effort="none",
                                              max_tokens=30))["choices"][0]["message"]
        self.assertNotIn("reasoning_content", message)

    def test_seeds(self):
        ask = lambda **more: answer_of(self.server.post(
            CHAT, chat("Say hello.", max_tokens=40, temperature=1.5, **more)))
        self.assertEqual(ask(seed=1), ask(seed=1))
        self.assertNotEqual(ask(seed=1), ask(seed=2))
        several = self.server.post(CHAT, chat("Say hello.", max_tokens=40, temperature=1.5, seed=1,
                                              n=3))
        self.assertEqual(len({c["message"]["reasoning_content"] + (c["message"]["content"] or "")
                              for c in several["choices"]}), 3)
        self.assertEqual(answer_of(several), ask(seed=1))

    def test_stop_strings_cut_wherever_they_fall(self):
        content = self.server.post(CHAT, chat(QUESTIONS[0]))["choices"][0]["message"]["content"]
        self.assertGreater(len(content), 3)
        for begin in range(1, len(content) - 1):
            stop = content[begin:begin + 3]
            cut = self.server.post(CHAT, chat(QUESTIONS[0], stop=stop))
            self.assertEqual(cut["choices"][0]["message"]["content"],
                             content[:content.index(stop)])
            self.assertEqual(cut["choices"][0]["finish_reason"], "stop")
            message, _ = put_together(self.server.streamed(CHAT, chat(QUESTIONS[0], stop=[stop])))
            self.assertEqual(message["content"], content[:content.index(stop)])

    def test_logprobs_are_those_of_the_content(self):
        choice = self.server.post(CHAT, chat(QUESTIONS[0], logprobs=True, top_logprobs=3)
                                  )["choices"][0]
        tokens = choice["logprobs"]["content"]
        text = b"".join(bytes(t["bytes"]) for t in tokens)
        self.assertEqual(text.decode(), choice["message"]["content"])
        for token in tokens:
            self.assertEqual(len(token["top_logprobs"]), 3)
            # Greedy: the most likely one was taken.
            self.assertEqual(token["top_logprobs"][0]["logprob"], token["logprob"])
        chunks = self.server.streamed(CHAT, chat(QUESTIONS[0], logprobs=True, top_logprobs=3))
        streamed = [t for c in chunks if c != "[DONE]" and c["choices"][0]["logprobs"]
                    for t in c["choices"][0]["logprobs"]["content"]]
        self.assertEqual(streamed, tokens)

    def test_json_of_a_schema(self):
        for effort in ("none", "max"):
            got = self.server.post(CHAT, chat(
                "Describe Paris.", reasoning_effort=effort, max_tokens=2000,
                response_format={"type": "json_schema",
                                 "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}))
            choice = got["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop")
            value = json.loads(choice["message"]["content"])
            self.assertEqual(set(value), {"city", "size", "kind"})
            self.assertIsInstance(value["size"], int)
            self.assertIn(value["kind"], ("old", "new"))

    def test_any_json_object(self):
        # With this temperature and seed it comes to an end.
        choice = self.server.post(CHAT, chat("Describe Paris.", reasoning_effort="none",
                                             max_tokens=500, temperature=1.5, seed=2,
                                             response_format={"type": "json_object"})
                                  )["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertIsInstance(json.loads(choice["message"]["content"]), dict)

    def call(self, **fields):
        # Text before a call may go on for ever: end-of-text is what this bias asks for.
        close = self.server.post("/tokenize", {"messages": [
            {"role": "user", "content": "x"}]})["tokens"]
        body = chat("Look it up.", tools=[TOOL, OTHER_TOOL], reasoning_effort="none",
                    max_tokens=600, logit_bias={str(self.close_token(close)): 30}, **fields)
        return body

    def close_token(self, rendered):
        # The prompt of one message ends with <|close|> message <|sep|> <|end_of_msg|> and the
        # begin of the answer; <|close|> is the one token that ids of plain text never are.
        text = self.server.post("/detokenize", {"tokens": rendered})["content"]
        self.assertIn("<|close|>", text)
        for token in rendered:
            if self.server.post("/detokenize", {"tokens": [token]})["content"] == "<|close|>":
                return token
        self.fail("no <|close|>")

    def test_a_tool_that_must_be_called(self):
        body = self.call(tool_choice={"type": "function", "function": {"name": "look_up"}},
                         parallel_tool_calls=False)
        choice = self.server.post(CHAT, body)["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        calls = choice["message"]["tool_calls"]
        self.assertEqual(len(calls), 1)
        self.assertEqual(calls[0]["function"]["name"], "look_up")
        arguments = json.loads(calls[0]["function"]["arguments"])
        self.assertIn(arguments["kind"], ("old", "new"))
        message, finish = put_together(self.server.streamed(CHAT, body))
        self.assertEqual(finish, "tool_calls")
        self.assertEqual([(c["name"], c["arguments"]) for c in message["tool_calls"]],
                         [("look_up", calls[0]["function"]["arguments"])])
        # And back with the result.
        again = self.server.post(CHAT, chat([
            {"role": "user", "content": "Look it up."},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": "42"}],
            tools=[TOOL, OTHER_TOOL], max_tokens=20))
        self.assertGreater(again["usage"]["completion_tokens"], 0)

    def test_required_and_none(self):
        choice = self.server.post(CHAT, self.call(tool_choice="required",
                                                  parallel_tool_calls=False))["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertIn(choice["message"]["tool_calls"][0]["function"]["name"], ("look_up", "wait"))
        choice = self.server.post(CHAT, self.call(tool_choice="none"))["choices"][0]
        self.assertNotIn("tool_calls", choice["message"])

    def test_a_growing_conversation_computes_what_is_new(self):
        messages = [{"role": "system", "content": "You are kind. " * 20},
                    {"role": "user", "content": "Who are you?"}]
        first = self.server.post(CHAT, chat(messages, max_tokens=60))
        message = first["choices"][0]["message"]
        messages += [{"role": "assistant", "content": message["content"],
                      "reasoning_content": message["reasoning_content"]},
                     {"role": "user", "content": "And who am I?"}]
        second = self.server.post(CHAT, chat(messages, max_tokens=60))
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, first["usage"]["prompt_tokens"] // 2)
        self.assertLess(cached, second["usage"]["prompt_tokens"])
        with Server("--keep-nothing") as other:
            for _ in range(2):
                alone = other.post(CHAT, chat(messages, max_tokens=60))
                self.assertEqual(alone["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(answer_of(alone), answer_of(second))


class Texts(Shared):
    def test_goes_on_as_the_oracle_does(self):
        count = len(TEXT["greedy_ids"])
        for prompt in (TEXT["text"], TEXT["ids"]):
            got = self.server.post(TEXTS, {"prompt": prompt, "max_tokens": count,
                                           "ignore_eos": True})
            expected = self.server.post("/detokenize", {"tokens": TEXT["greedy_ids"]})["prompt"]
            self.assertEqual(got["choices"][0]["text"], expected)
            self.assertEqual(got["choices"][0]["finish_reason"], "length")
        stopped = self.server.post(TEXTS, {"prompt": TEXT["text"]})["choices"][0]
        self.assertEqual(stopped["text"], " Paris.")
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_lists_of_prompts(self):
        texts = [p["text"] for p in PROMPTS if p["kind"] == "raw"][:3]
        alone = [self.server.post(TEXTS, {"prompt": t, "max_tokens": 20})["choices"][0]["text"]
                 for t in texts]
        together = self.server.post(TEXTS, {"prompt": texts, "max_tokens": 20, "n": 1})
        self.assertEqual([c["text"] for c in together["choices"]], alone)
        self.assertEqual([c["index"] for c in together["choices"]], list(range(len(texts))))

    def test_echo_scores_a_prompt(self):
        got = self.server.post(TEXTS, {"prompt": TEXT["text"], "echo": True, "logprobs": 2,
                                       "max_tokens": 0})
        choice = got["choices"][0]
        self.assertEqual(choice["text"], TEXT["text"])
        logprobs = choice["logprobs"]
        self.assertEqual("".join(logprobs["tokens"]), TEXT["text"])
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertTrue(all(x <= 0 for x in logprobs["token_logprobs"][1:]))
        self.assertEqual(got["usage"]["completion_tokens"], 0)
        more = self.server.post(TEXTS, {"prompt": TEXT["text"], "echo": True, "logprobs": 2,
                                        "max_tokens": 3})["choices"][0]
        self.assertTrue(more["text"].startswith(TEXT["text"]))
        self.assertEqual("".join(more["logprobs"]["tokens"]), more["text"])
        self.assertEqual(more["logprobs"]["token_logprobs"][:len(logprobs["tokens"])],
                         logprobs["token_logprobs"])
        for offset, token in zip(more["logprobs"]["text_offset"], more["logprobs"]["tokens"]):
            self.assertEqual(more["text"][offset:offset + len(token)], token)


class Interface(Shared):
    def test_models_health_page(self):
        self.assertEqual(json.loads(self.server.get("/v1/models"))["data"][0]["id"], "k3-nano")
        self.assertEqual(json.loads(self.server.get("/v1/models/k3-nano"))["object"], "model")
        self.assertEqual(json.loads(self.server.get("/health"))["status"], "ok")
        status, headers, body = self.server.request("GET", "/")
        self.assertEqual(status, 200)
        self.assertIn(b"<!doctype html>", body)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])

    def test_errors(self):
        cases = [
            ("POST", CHAT, b"{", {}, 400, None),
            ("POST", CHAT, chat("x", temperature=-1), {}, 400, "temperature"),
            ("POST", CHAT, chat("x", model="gpt-4"), {}, 404, "model"),
            ("POST", CHAT, chat([{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "x"}}]}]), {}, 400,
             "messages[0].content[0]"),
            ("POST", TEXTS, {"prompt": "x", "suffix": "y"}, {}, 400, "suffix"),
            ("POST", TEXTS, {"prompt": [1] * 9000}, {}, 400, None),
            ("POST", CHAT, chat("x"), {"Content-Type": "text/plain"}, 415, None),
            ("GET", CHAT, None, {}, 405, None),
            ("GET", "/v1/nothing", None, {}, 404, None),
            ("GET", "/health", None, {"Host": "evil.example"}, 403, None),
            ("POST", CHAT, b"[" * 200000, {}, 400, None),
            ("POST", CHAT, b" " * (17 << 20), {}, 413, None),
        ]
        for method, path, body, headers, expected, param in cases:
            status, _, data = self.server.request(method, path, body, headers)
            self.assertEqual(status, expected, (path, data))
            error = json.loads(data)["error"]
            self.assertEqual(error["param"], param, data)
            self.assertTrue(error["message"])
            self.assertNotIn(SOURCE, data.decode())

    def test_unknown_fields_are_named(self):
        status, headers, _ = self.server.request("POST", CHAT, chat("x", max_tokens=1, future=1))
        self.assertEqual((status, headers["X-Deltafin-Ignored"]), (200, "future"))

    def test_who_watches_sees_the_experts(self):
        connection = self.server.connect()
        connection.request("GET", "/api/live")
        live = events(connection.getresponse())
        hello = next(live)
        self.assertEqual((hello["type"], hello["model"]), ("hello", "k3-nano"))
        seen = threading.Event()

        def write():
            for seed in range(1000):  # other answers than before: what is known comes at once
                if seen.is_set():
                    return
                self.server.streamed(TEXTS, {"prompt": TEXT["text"], "max_tokens": 2000,
                                             "ignore_eos": True, "temperature": 1, "seed": seed})

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for state in live:
                if state.get("picks") and state["rates"]["new_tokens"] and state["jobs"]:
                    break
        finally:
            seen.set()
        self.assertIn(state["jobs"][0]["phase"], ("queued", "prefill", "decode"))
        phases = state["rates"]["phases"]
        self.assertAlmostEqual(sum(phases.values()), 1, places=3)
        self.assertGreater(phases["KDA"], 0)
        self.assertEqual(state["rates"]["network_bytes"], 0)
        for layer in state["picks"]:
            self.assertLess(layer["layer"], hello["num_layers"])
            self.assertTrue(layer["ids"])
            self.assertTrue(all(0 <= i < hello["num_experts"] for i in layer["ids"]))
        self.assertGreater(state["experts"]["requested"], 0)
        connection.close()
        writer.join()

    def test_clients_together_get_what_they_get_alone(self):
        bodies = [chat(q, max_tokens=80, **more) for q in QUESTIONS
                  for more in ({}, {"temperature": 1, "seed": 5}, {"stop": "a"})]
        alone = [answer_of(self.server.post(CHAT, body)) for body in bodies]
        together = [None] * len(bodies)

        def ask(i):
            message, finish = put_together(self.server.streamed(CHAT, bodies[i]))
            together[i] = (message["content"], message["reasoning_content"], finish)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)

    def test_a_client_that_leaves_is_noticed(self):
        body = {"prompt": TEXT["text"], "max_tokens": 7000, "ignore_eos": True}
        connection, response = self.server.stream(TEXTS, body)
        next(events(response))
        response.close()
        connection.close()
        wait_for(lambda: self.server.metric("jobs_running") == 0)
        self.assertRegex(self.server.stderr(), r"client left: [1-9]\d* prompt tokens")


class Processes(unittest.TestCase):
    LONG = {"prompt": TEXT["text"], "max_tokens": 7000, "ignore_eos": True}

    def test_a_full_queue(self):
        with Server("--parallel", "1", "--queue", "0") as server:
            connection, response = server.stream(TEXTS, self.LONG)
            next(events(response))
            status, headers, data = server.request("POST", CHAT, chat("x"))
            self.assertEqual(status, 429, data)
            self.assertGreater(int(headers["Retry-After"]), 0)
            self.assertEqual(json.loads(data)["error"]["type"], "rate_limit_error")
            response.close()
            connection.close()
            wait_for(lambda: server.metric("jobs_running") == 0)
            server.post(CHAT, chat("x", max_tokens=2))

    def test_sigterm_lets_an_answer_finish(self):
        with Server("--grace", str(PATIENCE)) as server:
            connection, response = server.stream(TEXTS, {**self.LONG, "max_tokens": 1500})
            stream = events(response)
            next(stream)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(list(stream)[-1], "[DONE]")
            self.assertEqual(server.process.wait(PATIENCE), 0)
            connection.close()

    def test_sigterm_without_grace_ends_it_with_an_error(self):
        with Server("--grace", "0") as server:
            connection, response = server.stream(TEXTS, self.LONG)
            stream = events(response)
            next(stream)
            self.assertEqual(server.stop(), 0)
            self.assertIn("stopping", list(stream)[-1]["error"]["message"])
            connection.close()

    def test_a_second_signal_stops_at_once(self):
        for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)):
            with self.subTest(first=first), Server("--grace", "60") as server:
                connection, response = server.stream(TEXTS, {**self.LONG, "n": 4})
                next(events(response))
                server.process.send_signal(first)
                wait_for(lambda: "stopping:" in server.stderr())
                self.assertNotEqual(server.stop(second), 0)
                response.close()
                connection.close()

    def test_a_restarted_server_goes_on_where_it_was(self):
        body = chat([{"role": "system", "content": "You know a lot. " * 30},
                     {"role": "user", "content": "Who are you?"}], max_tokens=50)
        with tempfile.TemporaryDirectory() as folder:
            with Server(keep_dir=folder) as server:
                first = server.post(CHAT, body)
                self.assertEqual(server.stop(), 0)
            with Server(keep_dir=folder) as server:
                second = server.post(CHAT, body)
        self.assertGreater(second["usage"]["prompt_tokens_details"]["cached_tokens"],
                           first["usage"]["prompt_tokens"] // 2)
        self.assertEqual(answer_of(first), answer_of(second))

    def test_states_that_are_lost_are_said(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "state-0.session"), "w") as file:
                file.write("not one")
            with Server(keep_dir=folder) as server:
                server.post(CHAT, chat("x", max_tokens=2))
                wait_for(lambda: "could not be written or read: 1;" in server.stderr())
                self.assertEqual(server.metric("failed_states_total"), 1)

    def test_a_default_folder_that_is_no_use_is_done_without(self):
        with tempfile.TemporaryDirectory() as model:
            for name in os.listdir(NANO):
                if name != ".deltafin":
                    os.symlink(os.path.join(NANO, name), os.path.join(model, name))
            with open(os.path.join(model, ".deltafin"), "w"):  # no folder can be made in it
                pass
            args = PROGRAM + ["serve", "--model", model, "--port", "0"]
            process = subprocess.Popen(args, env=clean_environment(), stderr=subprocess.PIPE)
            lines = []
            while not lines or not lines[-1].startswith(b"listening on"):
                lines.append(process.stderr.readline())
                self.assertNotEqual(lines[-1], b"", lines)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 0)
            notice = [line for line in lines if b"kept in memory only" in line]
            self.assertEqual(len(notice), 1, lines)
            self.assertIn(os.path.join(model, ".deltafin").encode(), notice[0])
            done = subprocess.run(args + ["--keep-dir", os.path.join(model, ".deltafin")],
                                  env=clean_environment(), capture_output=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 1)

    def test_others_need_a_key(self):
        done = subprocess.run(PROGRAM + ["serve", "--model", NANO, "--port", "0", "--host",
                                         "0.0.0.0", "--keep-nothing"], env=clean_environment(),
                              capture_output=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"--api-key", done.stderr)
        with Server("--host", "0.0.0.0", env={"DELTAFIN_API_KEY": "secret"}) as server:
            status, _, data = server.request("GET", "/v1/models")
            self.assertEqual((status, json.loads(data)["error"]["code"]), (401, "invalid_api_key"))
            server.get("/v1/models", headers={"Authorization": "Bearer secret"})
            server.get("/health", headers={"Host": "some.example"})

    def test_a_ceiling_for_answers(self):
        with Server(env={"K3_SERVER_MAX_TOKENS": "5"}) as server:
            got = server.post(CHAT, chat("Say hello."))
            self.assertEqual(got["usage"]["completion_tokens"], 5)
            self.assertEqual(got["choices"][0]["finish_reason"], "length")
            error = server.post(CHAT, chat("x", max_tokens=6), status=400)["error"]
            self.assertEqual(error["param"], "max_tokens")

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            done = subprocess.run(PROGRAM + ["serve", "--model", NANO, "--keep-nothing", "--port",
                                             str(taken.getsockname()[1])],
                                  env=clean_environment(), capture_output=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot listen on 127.0.0.1", done.stderr)


if __name__ == "__main__":
    unittest.main()
