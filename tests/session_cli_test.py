"""Sessions of the program: turns across runs, kill -9, damaged files.

Run by ctest as cli_test.py is.
"""

import json
import os
import pty
import signal
import subprocess
import tempfile
import time
import unittest

from cli_test import PROGRAM, clean_environment, run, run_json

STORY = ("--prompt", "Once upon a time")
SAMPLED = ("--temperature", "1", "--frequency-penalty", "0.1", "--seed", "9", "--ignore-stop")


class Sessions(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name

    def session(self, name, *args):
        return ("run", "--session", name, "--session-dir", self.dir, *args)

    def show(self, name):
        return run_json("sessions", "show", name, "--session-dir", self.dir)

    def test_runs_add_up_to_one(self):
        whole = run_json("run", *STORY, "--max-new", "40", *SAMPLED)
        first = run_json(*self.session("a", *STORY, "--max-new", "13", *SAMPLED))
        rest = run_json(*self.session("a", "--max-new", "27", *SAMPLED[:-3], "--ignore-stop"))
        self.assertEqual(first["ids"] + rest["ids"], whole["ids"])
        self.assertEqual(self.show("a")["ids"], whole["prompt_ids"] + whole["ids"])

    def test_logits_are_those_of_the_prompt_and_change_nothing(self):
        path = os.path.join(self.dir, "logits")
        row = 4 * run_json("info")["vocab_size"]
        whole = run_json("run", *STORY, "--max-new", "40", *SAMPLED)
        ids = run_json(*self.session("g", *STORY, "--max-new", "13", *SAMPLED))["ids"]
        ids += run_json(*self.session("g", "--logits", path, "--max-new", "27", *SAMPLED))["ids"]
        self.assertEqual(ids, whole["ids"])
        self.assertEqual(os.path.getsize(path), 0)
        more = run_json(*self.session("g", "--prompt", " and then", "--logits", path, "--max-new",
                                      "1"))
        self.assertEqual(os.path.getsize(path), row * len(more["prompt_ids"]))
        with open(path, "rb") as file:
            rows = file.read()
        text = ",".join(map(str, whole["prompt_ids"] + whole["ids"] + more["prompt_ids"]))
        run("run", "--ids", text, "--logits", path, "--max-new", "0")
        with open(path, "rb") as file:
            self.assertTrue(file.read().endswith(rows))

    def test_the_effort_belongs_to_the_first_turn(self):
        run_json(*self.session("e", "--chat", "--effort", "low", "--prompt", "Hello"))
        for flags, returncode in ((("--effort", "high"), 1), (("--effort", "low"), 0),
                                  (("--effort", "none"), 0), ((), 0)):
            done = run(*self.session("e", "--prompt", "Hello", *flags), check=False)
            self.assertEqual(done.returncode, returncode, flags)
            self.assertEqual(b"--effort belongs to the first turn" in done.stderr, returncode != 0)
        run_json(*self.session("t", *STORY, "--max-new", "2"))
        done = run(*self.session("t", "--no-think", "--max-new", "2"), check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"plain text", done.stderr)

    def test_kill_loses_the_last_tokens_only(self):
        args = (*STORY, *SAMPLED, "--context", "4000")
        process = subprocess.Popen(PROGRAM + list(self.session("k", *args, "--max-new", "3500")),
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   env=clean_environment())
        self.assertEqual(len(process.stdout.read(400)), 400)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        shown = self.show("k")
        # What had come out 64 tokens before the end, and a little more for what was in the pipe.
        self.assertGreater(shown["tokens"], 16)
        whole = run_json("run", *args, "--max-new", str(shown["tokens"] + 20))
        all_ids = whole["prompt_ids"] + whole["ids"]
        self.assertEqual(all_ids[: shown["tokens"]], shown["ids"])
        generated = shown["tokens"] - len(whole["prompt_ids"])
        rest = run_json(*self.session("k", "--context", "4000", *SAMPLED, "--max-new",
                                      str(len(whole["ids"]) - generated)))
        self.assertEqual(self.show("k")["ids"], all_ids)
        self.assertEqual(rest["prompt_ids"], [])

    def test_killed_again_and_again_it_comes_to_the_same_end(self):
        args = (*SAMPLED, "--context", "2000")
        whole = run_json("run", *STORY, *args, "--max-new", "400")
        all_ids = whole["prompt_ids"] + whole["ids"]
        for bytes_before_the_end in (60, 1, 90, 30):
            prompt = () if os.path.exists(os.path.join(self.dir, "k.session")) else STORY
            process = subprocess.Popen(
                PROGRAM + list(self.session("k", *prompt, *args, "--max-new", "1500")),
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=clean_environment())
            process.stdout.read(bytes_before_the_end)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        done = self.show("k")["ids"] if os.path.exists(os.path.join(self.dir, "k.session")) else []
        common = min(len(done), len(all_ids))
        self.assertEqual(done[:common], all_ids[:common])
        if len(done) < len(all_ids):
            prompt = () if done else STORY
            run_json(*self.session("k", *prompt, *args, "--max-new",
                                   str(len(all_ids) - max(len(done), len(whole["prompt_ids"])))))
            self.assertEqual(self.show("k")["ids"], all_ids)

    def test_kill_while_the_prompt_is_read(self):
        ids = ",".join(str(17 * i % 4000) for i in range(5000))
        args = ("--ids", ids, *SAMPLED, "--context", "6000")
        path = os.path.join(self.dir, "p.session")
        process = subprocess.Popen(PROGRAM + list(self.session("p", *args, "--max-new", "900")),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=clean_environment())
        while not os.path.exists(path) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        done = self.show("p")["ids"]
        self.assertGreaterEqual(len(done), 5000)  # the part that was not computed is known too
        whole = run_json("run", *args, "--max-new", str(len(done) - 5000 + 10))
        run_json(*self.session("p", *SAMPLED, "--context", "6000", "--max-new", "10"))
        self.assertEqual(self.show("p")["ids"], whole["prompt_ids"] + whole["ids"])

    def test_a_terminal_shows_how_far_the_prompt_is(self):
        ids = ",".join(str(17 * i % 4000) for i in range(500))
        main, side = pty.openpty()
        process = subprocess.Popen(
            PROGRAM + ["run", "--ids", ids, "--max-new", "1", "--json"], stdout=subprocess.PIPE,
            stderr=side, env=clean_environment({"TERM": "xterm"}))
        os.close(side)
        shown = b""
        while True:
            try:
                piece = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
        process.communicate(timeout=60)
        os.close(main)
        self.assertIn(b"of 500 tokens, layer 1 of ", shown)
        self.assertTrue(shown.rstrip().endswith(b"\x1b[K"), shown[-200:])
        # A pipe gets none of it, but a plain line where it takes long.
        self.assertNotIn(b"\x1b", run("run", "--ids", ids, "--max-new", "1").stderr)

    def test_chat_goes_on_after_the_earlier_turns(self):
        first = run_json(*self.session("c", "--chat", "--prompt", "What is the capital of Italy?"))
        self.assertEqual(first["finish_reason"], "stop")
        done = run(*self.session("c"), check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"complete", done.stderr)
        second = run_json(*self.session("c", "--prompt", "And of France?"))
        text = self.show("c")["text"]
        self.assertIn('<|end_of_msg|><|open|>message role="user"<|sep|>And of France?<|close|>', text)
        self.assertEqual(text.count("thinking-effort"), 1)
        self.assertNotIn("<|open|>", second["text"] + second["reasoning"])
        # The same as one process that had all of it as its prompt.
        ids = first["prompt_ids"] + first["ids"] + second["prompt_ids"]
        again = run_json("run", "--ids", ",".join(map(str, ids)), "--max-new",
                         str(len(second["ids"])))
        self.assertEqual(again["ids"], second["ids"])

    def test_a_cut_answer_goes_on_with_its_parts_in_place(self):
        prompt = ("--chat", "--prompt", "What is the capital of Italy?")
        whole = run_json("run", *prompt)
        run_json(*self.session("c", *prompt, "--max-new", "5"))
        done = run(*self.session("c", "--prompt", "b"), check=False)
        self.assertIn(b"cut off", done.stderr)
        rest = run_json(*self.session("c"))
        self.assertEqual(rest["ids"], whole["ids"][5:])
        self.assertTrue(whole["text"].endswith(rest["text"]))
        self.assertNotIn("<|", rest["text"] + rest["reasoning"])

    def test_interrupt_saves(self):
        process = subprocess.Popen(
            PROGRAM + list(self.session("i", *STORY, "--ignore-stop", "--max-new", "100000",
                                        "--context", "200000")),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
        process.stdout.read(50)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertGreater(self.show("i")["tokens"], 5)

    # Of two that save one the later would undo what the other said.
    def test_one_process_at_a_time_goes_on_with_a_session(self):
        for first in (self.session("l", *STORY, "--ignore-stop", "--max-new", "100000", "--context",
                                   "200000"),
                      ("chat", "--session", "l", "--session-dir", self.dir)):
            process = subprocess.Popen(PROGRAM + list(first), stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       env=clean_environment())
            process.stdin.write(b"What is the capital of Japan?\n")
            process.stdin.flush()
            process.stdout.read(1)
            while not os.path.exists(os.path.join(self.dir, "l.session")):
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            for second in (self.session("l", "--prompt", "a", "--max-new", "1"),
                           ("sessions", "rm", "l", "--session-dir", self.dir)):
                done = run(*second, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"another process ({process.pid})", done.stderr.decode())
            run(*self.session("m", *STORY, "--max-new", "1"))  # another one
            if first[0] == "run":
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)  # a chat ends with its input
            self.assertEqual(sorted(os.listdir(self.dir)), ["l.session", "m.session"])
            for name in ("l", "m"):
                run("sessions", "rm", name, "--session-dir", self.dir)

    def test_a_folder_that_is_not_there_holds_no_sessions(self):
        for flags in (("--session-dir", self.dir + "/none"), ("--model", self.dir + "/none")):
            done = run("sessions", "list", *flags, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"/none: there is no such folder", done.stderr)
        self.assertEqual(run("sessions", "list", "--session-dir", self.dir).stdout, b"")

    def test_list_and_rm(self):
        run(*self.session("a", *STORY, "--max-new", "2"))
        with open(os.path.join(self.dir, "bad.session"), "wb") as file:
            file.write(b"x" * 500)
        listed = run_json("sessions", "list", "--session-dir", self.dir)
        self.assertEqual([s["name"] for s in listed], ["a", "bad"])
        self.assertIn("problem", listed[1])
        self.assertIn(b"unusable", run("sessions", "list", "--session-dir", self.dir).stdout)
        run("sessions", "rm", "bad", "--session-dir", self.dir)
        self.assertEqual(os.listdir(self.dir), ["a.session"])

    def test_what_cannot_be_used_is_refused(self):
        run(*self.session("a", *STORY, "--max-new", "2"))
        cases = [
            (self.session("a", "b", "--cache", "bf16"), "--cache f32"),
            (self.session("a", "b", "--context", "3"), "--context"),
            (self.session("a", "--chat", "b"), "--chat"),
            (self.session("../a", "b"), "session name"),
            (self.session("none"), "expected one prompt"),
            (self.session("a", "--prompt-file", os.devnull), "prompt is empty"),
            (self.session("a", "--ids", ","), "prompt is empty"),
            (("sessions", "show", "none", "--session-dir", self.dir), "none"),
            (("sessions", "rm", "none", "--session-dir", self.dir), "no such session"),
        ]
        for args, expected in cases:
            with self.subTest(args=args):
                done = run(*args, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(expected, done.stderr.decode().strip().splitlines()[-1])
        path = os.path.join(self.dir, "a.session")
        with open(path, "r+b") as file:
            file.seek(5000)
            file.write(b"\x55\xaa")
        done = run(*self.session("a", "b"), check=False)
        self.assertIn(b"damaged", done.stderr)


if __name__ == "__main__":
    unittest.main()
