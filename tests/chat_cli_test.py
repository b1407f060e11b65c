"""deltafin chat, over a pipe and at a terminal.

Run by ctest as cli_test.py is.
"""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import termios
import time
import unittest

from cli_test import NANO, PROGRAM, clean_environment, run, run_json
from serve_process import Server

ITALY = "What is the capital of Italy?"
JAPAN = "What is the capital of Japan?"
SECONDS = 60  # until something that must come counts as missing


def endless():
    """Flags that keep an answer from ending."""
    flags = []
    for spelling in ("<|close|>", "<|open|>", "<|end_of_msg|>", "[EOS]"):
        ids = run_json("tokenize", "--specials", "--json", spelling)["ids"]
        if len(ids) == 1:
            flags += ["--logit-bias", f"{ids[0]}:-100"]
    return flags


def chat(text, *args, check=True):
    return run("chat", *args, stdin=text.encode(), check=check)


class Pipe(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name

    def test_turns_have_the_answers_of_run(self):
        kept = ("--session", "c", "--session-dir", self.dir)
        first = run_json("run", *kept, "--chat", "--prompt", ITALY)
        second = run_json("run", *kept, "--prompt", JAPAN)
        done = chat(f"{ITALY}\n{JAPAN}\n")
        self.assertEqual(done.stdout.decode(),
                         first["text"].strip("\n") + "\n" + second["text"].strip("\n") + "\n")
        self.assertIn(first["reasoning"], done.stderr.decode())
        self.assertIn("per second", done.stderr.decode())
        self.assertIn("GB/s", done.stderr.decode())

    def test_a_turn_appends_only_what_is_new(self):
        done = chat(f"{ITALY}\n{JAPAN}\n/save two\n", "--session-dir", self.dir)
        self.assertIn(b"saved as two", done.stderr)
        shown = run_json("sessions", "show", "two", "--session-dir", self.dir)
        first = run_json("run", "--chat", "--prompt", ITALY)
        whole = first["prompt_ids"] + first["ids"]
        self.assertEqual(shown["ids"][: len(whole)], whole)
        self.assertEqual(shown["text"].count("thinking-effort"), 1)

    def test_saved_conversations_go_on_here_and_in_run(self):
        whole = chat(f"{ITALY}\n{JAPAN}\n").stdout
        chat(f"{ITALY}\n", "--session", "s", "--session-dir", self.dir)
        done = chat(f"/load s\n{JAPAN}\n", "--session-dir", self.dir)
        self.assertEqual(done.stdout, whole)  # the last answer is shown again
        self.assertIn(b"1 turns", done.stderr)
        rest = chat(f"{JAPAN}\n", "--session", "s", "--session-dir", self.dir)
        self.assertIn(b"2 turns", rest.stderr)
        more = run_json("run", "--session", "s", "--session-dir", self.dir, "--prompt", ITALY)
        self.assertEqual(more["finish_reason"], "stop")

    def test_system_and_effort_are_said_when_they_change(self):
        commands = ("/effort low\n/system Be brief.\n" + ITALY + "\n/effort high\n" + JAPAN +
                    "\n/effort none\n" + ITALY + "\n/save e\n")
        done = chat(commands, "--session-dir", self.dir)
        text = run_json("sessions", "show", "e", "--session-dir", self.dir)["text"]
        self.assertEqual(text.count("Be brief."), 1)
        self.assertLess(text.index("thinking_effort=low"), text.index(ITALY))
        self.assertLess(text.index(ITALY), text.index("thinking_effort=high"))
        self.assertLess(text.index("thinking_effort=high"), text.index(JAPAN))
        last = text[text.rindex(ITALY):]
        self.assertNotIn("think<|sep|>", last)
        self.assertIn("effort none", done.stderr.decode())

    def test_what_was_not_said_yet_is_said_after_loading(self):
        chat(f"{ITALY}\n/system Be brief.\n/effort low\n/save p\n", "--session-dir", self.dir)
        done = chat(f"/load p\n/system\n{JAPAN}\n/save p\n/load p\n{ITALY}\n/save p\n",
                    "--session-dir", self.dir)
        self.assertIn(b"system: Be brief.", done.stderr)
        text = run_json("sessions", "show", "p", "--session-dir", self.dir)["text"]
        self.assertEqual(text.count("Be brief."), 1)
        self.assertEqual(text.count("thinking_effort=low"), 1)
        self.assertLess(text.index("Be brief."), text.index(JAPAN))

    def test_flags_count_when_a_conversation_goes_on(self):
        kept = ("--session", "f", "--session-dir", self.dir, "--max-new", "4")
        chat(f"{ITALY}\n", *kept, "--system", "Be brief.", "--effort", "low")
        chat(f"{JAPAN}\n", *kept, "--system", "Be brief.", "--effort", "low")  # said already
        chat(f"{JAPAN}\n", *kept)
        text = run_json("sessions", "show", "f", "--session-dir", self.dir)["text"]
        self.assertEqual((text.count("Be brief."), text.count("thinking_effort=low")), (1, 1))
        chat(f"{JAPAN}\n", *kept, "--system", "Be rude.", "--effort", "high")
        text = run_json("sessions", "show", "f", "--session-dir", self.dir)["text"]
        self.assertEqual((text.count("Be rude."), text.count("thinking_effort=high")), (1, 1))

        def answer(seed):
            folder = os.path.join(self.dir, f"seed{seed}")
            shutil.copytree(self.dir, folder, ignore=shutil.ignore_patterns("seed*"))
            return chat(f"{ITALY}\n", "--session", "f", "--session-dir", folder, "--effort", "none",
                        "--temperature", "3", "--seed", seed).stdout

        self.assertNotEqual(answer("1"), answer("2"))

    def test_bytes_that_are_no_text_end_nothing(self):
        done = run("chat", "--session-dir", self.dir,
                   stdin=b"/system Be \xffbrief.\nHello \xfe\n/save u\n/load u\n/system\n")
        self.assertIn("system: Be \ufffdbrief.", done.stderr.decode(errors="replace"))
        text = run_json("sessions", "show", "u", "--session-dir", self.dir)["text"]
        self.assertIn("Be \ufffdbrief.", text)
        self.assertIn("Hello \ufffd", text)

    def test_lines_may_end_as_on_windows(self):
        self.assertEqual(chat(f"{ITALY}\r\n/quit\r\n{JAPAN}\r\n").stdout,
                         chat(f"{ITALY}\n").stdout)

    def test_a_cut_answer_is_closed_before_the_next_question(self):
        chat(f"{ITALY}\n{JAPAN}\n/save k\n", "--session-dir", self.dir, "--max-new", "3")
        text = run_json("sessions", "show", "k", "--session-dir", self.dir)["text"]
        begin = text.index("<|open|>think<|sep|>")
        between = text[begin:text.index(JAPAN)]
        self.assertIn("<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>"
                      "<|close|>message<|sep|><|end_of_msg|>", between)

    def test_another_conversation_is_never_saved_over(self):
        chat(f"{ITALY}\n/save o\n/save o\n", "--session-dir", self.dir)
        done = chat(f"{JAPAN}\n/save o\n", "--session-dir", self.dir, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"there is a conversation o already", done.stderr)
        self.assertIn(ITALY, run_json("sessions", "show", "o", "--session-dir", self.dir)["text"])

    def test_clear_begins_anew(self):
        done = chat(f"{ITALY}\n/clear\n{JAPAN}\n")
        alone = chat(f"{JAPAN}\n")
        self.assertTrue(done.stdout.endswith(alone.stdout))

    def test_a_backslash_joins_lines(self):
        chat("What is the capital\\\nof Italy?\n/save m\n", "--session-dir", self.dir)
        text = run_json("sessions", "show", "m", "--session-dir", self.dir)["text"]
        self.assertIn("What is the capital\nof Italy?", text)

    def test_thinking_can_be_hidden(self):
        reasoning = run_json("run", "--chat", "--prompt", ITALY)["reasoning"]
        hidden = chat(f"{ITALY}\n", "--hide-thinking")
        self.assertNotIn(reasoning, hidden.stderr.decode())
        shown = chat(f"{ITALY}\n/think\n", "--hide-thinking")
        self.assertIn(reasoning, shown.stderr.decode())

    def test_commands(self):
        done = chat("/help\n/stats\n/system\n/load\n/exit\nnever asked\n", "--session-dir", self.dir)
        for expected in (b"/effort", b"RAM", b"no system message", b"nothing is saved"):
            self.assertIn(expected, done.stderr)
        self.assertEqual(done.stdout, b"")

    def test_a_path_is_a_question(self):
        done = chat("/etc/passwd is a file?\n")
        self.assertNotEqual(done.stdout, b"")

    def test_mistakes_are_said_and_fail_a_script(self):
        cases = [("/nothing\n", "no command /nothing"), ("/effort much\n", "expected none, low"),
                 ("/save\n", "expected a name"), ("/save ../x\n", "session name"),
                 ("/load none\n", "none"), ("/save empty\n", "nothing to save")]
        for text, expected in cases:
            with self.subTest(text=text):
                done = chat(text + f"{ITALY}\n", "--session-dir", self.dir, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(expected, done.stderr.decode())
                self.assertIn(b"Rome", done.stdout)  # it goes on

    def test_a_plain_text_is_no_conversation(self):
        run("run", "--session", "p", "--session-dir", self.dir, "--prompt", "Once", "--max-new", "2")
        done = chat(f"/load p\n{ITALY}\n", "--session-dir", self.dir, check=False)
        self.assertIn(b"plain text", done.stderr)
        self.assertIn(b"Rome", done.stdout)

    def test_a_file_that_cannot_be_loaded_changes_nothing(self):
        with Server(keep_dir=self.dir) as server:
            server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 3})
        # A session of this model, but no conversation's.
        state = next(name for name in os.listdir(self.dir) if name.endswith(".session"))
        os.rename(os.path.join(self.dir, state), os.path.join(self.dir, "state.session"))
        done = chat(f"{ITALY}\n/load state\n/stats\n", "--session-dir", self.dir, check=False)
        self.assertIn(b"state.session (note)", done.stderr)
        tokens = re.findall(rb"context +(\d+) of", done.stderr)
        self.assertEqual(len(tokens), 2)
        self.assertEqual(tokens[0], tokens[1])

    def test_interrupt_ends_a_script(self):
        process = subprocess.Popen(PROGRAM + ["chat", *endless()], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=clean_environment())
        process.stdin.write(f"{ITALY}\n{JAPAN}\n".encode())
        process.stdin.flush()
        read = b""
        while b"thinking: " not in read:
            piece = process.stderr.read(1)
            self.assertTrue(piece, read)
            read += piece
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130)

    def test_a_failure_ends_the_answer_and_not_the_conversation(self):
        model = os.path.join(self.dir, "model")
        shutil.copytree(NANO, model, ignore=shutil.ignore_patterns(".deltafin"))
        shard = os.path.join(model, "model-00005-of-000014.safetensors")
        with open(shard, "rb") as file:
            weights = file.read()
        # With little memory every token reads the disk. What the program takes by itself varies.
        flags = ("--model", model, "--context", "2000", "--session-dir", self.dir)
        least = re.search(rb"at least --ram (\d+)M", chat("x\n", *flags, "--ram", "1M",
                                                         check=False).stderr).group(1)
        process = subprocess.Popen(
            PROGRAM + ["chat", *flags, "--ram", f"{int(least) + 4}M", "--session", "f", "--system", "Be brief.",
                       *endless()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=clean_environment())
        self.addCleanup(process.kill)

        def say(line):
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()

        def read_until(text):
            read = b""
            while text not in read:
                self.assertTrue(select.select([process.stderr], [], [], SECONDS)[0], read)
                piece = os.read(process.stderr.fileno(), 1)
                self.assertTrue(piece, read)
                read += piece
            return read

        say(ITALY)
        read_until(b"thinking: ")
        os.truncate(shard, 0)
        self.assertIn(b"\ndeltafin: ", read_until(b"then the file ended\n"))
        with open(shard, "r+b") as file:
            file.write(weights)
        say("/stats")
        tokens = int(re.search(rb"context +(\d+) of", read_until(b" turns")).group(1))
        say(JAPAN)
        read_until(b"thinking: ")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130)
        saved = run_json("sessions", "show", "f", "--session-dir", self.dir)
        first = run_json("tokenize", "--decode", " ".join(map(str, saved["ids"][:tokens])))["text"]
        self.assertEqual(saved["text"][: len(first)], first)
        self.assertIn(ITALY, first)
        rest = saved["text"][len(first):]
        self.assertTrue(rest.startswith("<|close|>think<|sep|><|open|>response<|sep|>"), rest)
        self.assertIn(JAPAN, rest)
        self.assertEqual(saved["text"].count("Be brief."), 1)

    def test_a_full_context_is_said(self):
        done = chat(f"{ITALY}\n" * 9, "--context", "300", check=False)
        self.assertIn(b"fill the context of 300", done.stderr)
        self.assertIn(b"Rome", done.stdout)


class Terminal(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.state = folder.name
        self.master = None

    def start(self, *args, **environment):
        self.seen = ""
        self.master, terminal = pty.openpty()
        self.process = subprocess.Popen(
            PROGRAM + ["chat", "--session-dir", self.state, *args], stdin=terminal,
            stdout=terminal, stderr=terminal, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=clean_environment({"TERM": "xterm", "XDG_STATE_HOME": self.state, "LC_ALL": "C.UTF-8",
                                   **environment}))
        os.close(terminal)
        self.addCleanup(self.finish)
        self.wait(">")

    def finish(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.master is not None:
            os.close(self.master)
            self.master = None

    def wait(self, pattern, seconds=SECONDS):
        """Waits until the pattern was shown, and takes what came up to its end."""
        end = time.monotonic() + seconds
        while True:
            match = re.search(pattern, self.seen)
            if match:
                shown, self.seen = self.seen[: match.end()], self.seen[match.end():]
                return shown
            left = end - time.monotonic()
            self.assertGreater(left, 0, f"{pattern!r} did not come; there is {self.seen!r}")
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.seen += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    self.fail(f"{pattern!r} did not come before the end: {self.seen!r}")

    def wait_for_thinking(self):
        # Before, Ctrl-C takes the question back. The line about the prompt is dim too.
        self.wait(r"\x1b\[2m(?!reading)[^\x1b]{12}")

    def type(self, text):
        os.write(self.master, text.encode())

    def leave(self):
        self.wait(r">(\x1b\[0?m)? ")
        self.type("\x04")
        self.assertEqual(self.process.wait(timeout=SECONDS), 0)

    def test_what_is_typed_ahead_counts(self):
        # The terminal's own line takes it while the answer comes; Ctrl-D arrives as a zero byte.
        self.start()
        self.type(f"{ITALY}\r")
        self.wait("context [0-9]+ of")
        self.wait(r">(\x1b\[0?m)? ")
        self.type("\x00")
        self.assertEqual(self.process.wait(timeout=SECONDS), 0)

    def test_a_conversation(self):
        self.start()
        self.type(f"{ITALY}\r")
        shown = self.wait("context [0-9]+ of")
        self.assertIn("\x1b[2m", shown)  # thinking is dim
        self.assertIn("Rome", shown)
        self.assertRegex(shown, r"tokens, [0-9.]+ per second .*GB/s from disk.*% hits.*RAM")
        self.type("/think\r")
        self.wait("thinking is hidden")
        self.type(f"{JAPAN}\r")
        shown = self.wait("context [0-9]+ of")
        self.assertRegex(shown, r"thought for [0-9.]+ s, [0-9]+ tokens")
        self.leave()
        history = os.path.join(self.state, "deltafin", "chat_history")
        self.assertEqual(stat.S_IMODE(os.stat(history).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(history)).st_mode), 0o700)

    def test_a_line_that_is_written_over_does_not_wrap(self):
        self.start()
        self.type(f"{ITALY}\r")
        self.wait(r"\x1b\[\?7l\x1b\[2mreading [^\n]* s\x1b\[0m\x1b\[\?7h")
        self.wait("context [0-9]+ of")
        self.leave()

    def test_history_comes_back_in_a_later_run(self):
        self.start()
        self.type(f"{ITALY}\r")
        self.wait("context [0-9]+ of")
        self.leave()
        self.start()
        self.type("\x1b[A")
        self.wait(re.escape("capital of Italy?"))
        self.type("\r")
        self.assertIn("Rome", self.wait("context [0-9]+ of"))
        self.leave()

    def test_history_of_another_conversation_stays(self):
        self.start()
        history = os.path.join(self.state, "deltafin", "chat_history")
        with open(history, "w", encoding="ascii") as file:
            file.write("_HiStOrY_V2_\nmeanwhile\n")  # as libedit writes it
        self.type(f"{ITALY}\r")
        self.wait("context [0-9]+ of")
        self.leave()
        with open(history, encoding="ascii") as file:
            lines = file.read().splitlines()
        self.assertIn("meanwhile", lines)
        self.assertIn("Italy?", lines[-1])

    def test_interrupt_stops_the_answer_and_not_the_program(self):
        self.start(*endless())
        self.type(f"{ITALY}\r")
        self.wait_for_thinking()
        self.type("\x03")
        self.wait(r"\(stopped\)")
        self.wait("context [0-9]+ of")
        self.type("/stats\r")
        self.wait("in 1 turns")
        # What was said before the interrupt stays, closed.
        self.type("/save i\r")
        self.wait("saved as i")
        self.leave()
        text = run_json("sessions", "show", "i", "--session-dir", self.state)["text"]
        self.assertIn(ITALY, text)

    def test_interrupt_by_signal(self):
        self.start(*endless())
        self.type(f"{ITALY}\r")
        self.wait_for_thinking()
        os.kill(self.process.pid, signal.SIGINT)
        self.wait(r"\(stopped\)")
        self.type("/quit\r")
        self.assertEqual(self.process.wait(timeout=SECONDS), 0)

    def test_interrupt_gives_up_what_was_typed(self):
        self.start()
        self.type("half a quest")
        self.wait("half a quest")
        self.type("\x03")
        self.wait(">")
        self.type("/stats\r")
        self.wait("in 0 turns")
        self.leave()

    def test_a_paste_is_one_message(self):
        self.start()
        self.type("\x1b[200~What is the capital\rof Italy?\x1b[201~\r")
        self.wait("context [0-9]+ of")
        self.type("/save p\r")
        self.wait("saved as p")
        self.leave()
        text = run_json("sessions", "show", "p", "--session-dir", self.state)["text"]
        self.assertIn("What is the capital\nof Italy?", text)

    def test_plain_without_colour(self):
        self.start(NO_COLOR="1")
        self.type(f"{ITALY}\r")
        shown = self.wait("context [0-9]+ of")
        self.assertNotIn("\x1b[2m", shown)
        self.leave()


if __name__ == "__main__":
    unittest.main()
