"""The program as a person uses it: flags, output, signals, exit codes.

Run by ctest with DELTAFIN_PROGRAM (the command, an emulator in front of it where needed) and
DELTAFIN_SOURCE_DIR in the environment.
"""

import json
import os
import platform
import pty
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

PROGRAM = shlex.split(os.environ["DELTAFIN_PROGRAM"])
SOURCE = os.environ["DELTAFIN_SOURCE_DIR"]
NANO = os.path.join(SOURCE, "models", "k3-nano")
PROMPTS = json.load(open(os.path.join(SOURCE, "tests", "data", "nano", "prompts.json")))


def clean_environment(extra=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("K3_", "DELTAFIN_ROOT"))}
    env["K3_SPINE"] = "bf16"  # whatever lies beside the files
    env.update(extra or {})
    return env


def run(*args, stdin=None, env=None, check=True, preexec_fn=None):
    done = subprocess.run(PROGRAM + list(args), input=stdin, env=clean_environment(env),
                          capture_output=True, timeout=240, preexec_fn=preexec_fn)
    if check and done.returncode != 0:
        raise AssertionError(f"{args}: exit {done.returncode}: {done.stderr.decode()}")
    return done


def run_json(*args, **kwargs):
    return json.loads(run(*args, "--json", **kwargs).stdout)


class Run(unittest.TestCase):
    def test_continues_a_text_as_the_oracle_does(self):
        prompt = PROMPTS[0]
        out = run_json("run", "--prompt", prompt["text"], "--max-new", "64", "--ignore-stop")
        self.assertEqual(out["prompt_ids"], prompt["ids"])
        self.assertEqual(out["ids"], prompt["greedy_ids"])
        self.assertEqual(out["finish_reason"], "length")
        self.assertTrue(out["text"].startswith(" Paris."))
        self.assertGreater(out["timings"]["decode_tokens_per_second"], 0)

    def test_stops_at_the_end_of_the_document(self):
        out = run_json("run", "--prompt", PROMPTS[0]["text"])
        self.assertEqual(out["finish_reason"], "stop")
        self.assertEqual(out["ids"], PROMPTS[0]["greedy_ids"][: PROMPTS[0]["stop_index"] + 1])
        self.assertEqual(out["text"], " Paris.")  # the marker itself is not text

    def test_answers_a_question_in_the_chat_format(self):
        chats = [p for p in PROMPTS if p["kind"] == "chat" and len(p["messages"]) == 1
                 and p["options"] == {"thinking": True, "thinking_effort": "max"}]
        self.assertTrue(chats)
        for chat in chats[:2]:
            out = run_json("run", "--chat", "--prompt", chat["messages"][0]["content"])
            self.assertEqual(out["prompt_ids"], chat["ids"])
            stop = chat["stop_index"]
            expected = chat["greedy_ids"] if stop is None else chat["greedy_ids"][: stop + 1]
            self.assertEqual(out["ids"][: len(expected)], expected)
            for marker in ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"):
                self.assertNotIn(marker, out["text"] + out["reasoning"])

    def test_answer_on_stdout_reasoning_and_notes_on_stderr(self):
        out = run("run", "--chat", "--prompt", "What is the capital of France?")
        as_json = run_json("run", "--chat", "--prompt", "What is the capital of France?")
        self.assertEqual(out.stdout.decode(), as_json["text"] + "\n")
        stderr = out.stderr.decode()
        self.assertIn("thinking: " + as_json["reasoning"], stderr)
        self.assertIn("k3-nano", stderr.splitlines()[0])
        self.assertIn("threads", stderr)

    def test_prompt_sources_agree(self):
        text = "The capital of France is"
        expected = run("run", "--prompt", text, "--max-new", "4").stdout
        self.assertEqual(run("run", text, "--max-new", "4").stdout, expected)
        self.assertEqual(run("run", "-", "--max-new", "4", stdin=text.encode()).stdout, expected)
        ids = ",".join(map(str, PROMPTS[0]["ids"]))
        self.assertEqual(run("run", "--ids", ids, "--max-new", "4").stdout, expected)
        with tempfile.NamedTemporaryFile() as file:
            file.write(text.encode())
            file.flush()
            self.assertEqual(run("run", "--prompt-file", file.name, "--max-new", "4").stdout,
                             expected)

    def test_logits_of_every_prompt_position(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "logits")
            out = run_json("run", "--prompt", PROMPTS[0]["text"], "--logits", path, "--max-new", "0")
            self.assertEqual(out["ids"], [])
            data = open(path, "rb").read()
            positions = len(PROMPTS[0]["ids"])
            self.assertEqual(len(data) % (4 * positions), 0)
            vocab = len(data) // 4 // positions
            last = struct.unpack(f"<{vocab}f", data[-4 * vocab:])
            self.assertEqual(max(range(vocab), key=last.__getitem__), PROMPTS[0]["greedy_ids"][0])
            with_text = run_json("run", "--prompt", PROMPTS[0]["text"], "--logits", path,
                                 "--max-new", "8", "--ignore-stop")
            self.assertEqual(open(path, "rb").read(), data)
            self.assertEqual(with_text["ids"], PROMPTS[0]["greedy_ids"][:8])

    def test_threads_and_cache_do_not_change_the_text(self):
        texts = {run("run", "--prompt", "Once upon a time", "--max-new", "12", *flags).stdout
                 for flags in ((), ("--threads", "1"), ("--threads", "3"), ("--isa", "plain"))}
        if platform.machine() == "x86_64" and "qemu" not in PROGRAM[0]:
            if " avx2 " in open("/proc/cpuinfo").read():
                texts.add(run("run", "--prompt", "Once upon a time", "--max-new", "12", "--isa",
                              "avx2").stdout)
        self.assertEqual(len(texts), 1)
        run("run", "--prompt", "Once upon a time", "--max-new", "4", "--cache", "bf16")

    def test_a_context_in_a_file_does_not_change_the_text(self):
        ids = ",".join(str((i * i * 31 + 7 * i) % 4300) for i in range(600))
        args = ["run", "--ids", ids, "--max-new", "20", "--ignore-stop"]
        with tempfile.TemporaryDirectory() as folder:
            spill = ["--context-in-ram", "100K", "--spill-dir", folder]
            done = run(*args, *spill, "--json", "--profile")
            out = json.loads(done.stdout)
            self.assertEqual(out["ids"], run_json(*args)["ids"])
            self.assertGreater(out["profile"]["total"]["bytes"]["context"], 0)
            self.assertIn(b"the others in a file in " + folder.encode(), done.stderr)
            self.assertEqual(os.listdir(folder), [])
            self.assertNotIn(b"in a file", run(*args, "--context-in-ram", "1G").stderr)

    def test_approximate_numerics_are_accepted_and_say_what_they_gain(self):
        args = ["run", "--prompt", PROMPTS[0]["text"], "--max-new", "8"]
        exact = run(*args)
        self.assertNotIn(b"approximate", exact.stderr)
        for extra, env in ((["--numerics", "approx"], {}), ([], {"K3_APPROX": "1"})):
            approx = run(*args, *extra, env=env)
            self.assertEqual(approx.stdout, exact.stdout)
            self.assertIn(b"approximate numerics: nothing is gained", approx.stderr)
        flag_wins = run(*args, "--numerics", "exact", env={"K3_APPROX": "1"})
        self.assertNotIn(b"approximate", flag_wins.stderr)
        self.assertNotEqual(run(*args, "--numerics", "fast", check=False).returncode, 0)

    def test_sampling_repeats_with_its_seed(self):
        args = ("run", "--prompt", "Once upon a time", "--max-new", "16", "--temperature", "1.1",
                "--top-p", "0.95", "--ignore-stop")
        first = run_json(*args)
        again = run_json(*args, "--seed", str(first["seed"]), "--threads", "1")
        self.assertEqual(again["ids"], first["ids"])
        others = {tuple(run_json(*args, "--seed", str(seed))["ids"]) for seed in range(4)}
        self.assertGreater(len(others), 1)

    def test_drafts_change_no_token(self):
        text = "one two three four five six seven eight nine ten one two three four five"
        for sampling in ((), ("--temperature", "1", "--seed", "5")):
            args = ("run", "--prompt", text, "--max-new", "40", "--ignore-stop", *sampling)
            off = run_json(*args, "--spec", "off")
            self.assertEqual(off["drafts"]["passes"], 0)
            for mode in ("auto", "1", "8"):
                self.assertEqual(run_json(*args, "--spec", mode)["ids"], off["ids"])
            self.assertEqual(run_json(*args, env={"K3_SPEC": "3"})["ids"], off["ids"])
        # The small model repeats itself when it always takes the most likely token.
        always = run_json("run", "--prompt", "Once upon a time", "--max-new", "200",
                          "--ignore-stop", "--spec", "8")
        self.assertGreater(always["drafts"]["accepted_tokens"], 0)

    def test_bias_and_logprobs(self):
        args = ("run", "--prompt", PROMPTS[0]["text"], "--max-new", "3", "--ignore-stop")
        out = run_json(*args, "--logprobs", "2")
        self.assertEqual([p["id"] for p in out["logprobs"]], out["ids"])
        self.assertEqual(out["logprobs"][0]["top"][0]["token"], " Paris")
        self.assertLessEqual(out["logprobs"][0]["logprob"], 0)
        self.assertEqual(len(out["logprobs"][0]["top"]), 2)
        self.assertNotIn("logprobs", run_json(*args))
        other = run_json(*args, "--logit-bias", f"{out['ids'][0]}:-100", "--logit-bias", "7:1")
        self.assertNotEqual(other["ids"][0], out["ids"][0])

    def test_interrupt_prints_what_there_is_and_exits_130(self):
        process = subprocess.Popen(
            PROGRAM + ["run", "--prompt", "Once upon a time", "--max-new", "100000",
                       "--ignore-stop", "--context", "200000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
        first = process.stdout.read(1)  # generation has begun
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        rest, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertLess(time.monotonic() - start, 20)
        self.assertTrue((first + rest).endswith(b"\n"))
        self.assertIn(b"cancelled", stderr)

    def test_a_lost_terminal_is_an_interrupt_unless_it_means_nothing(self):
        for means_nothing in (False, True):  # as under nohup
            process = subprocess.Popen(
                PROGRAM + ["run", "--prompt", "Once upon a time", "--max-new", "100000",
                           "--ignore-stop", "--context", "200000"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(),
                preexec_fn=lambda: signal.signal(
                    signal.SIGHUP, signal.SIG_IGN if means_nothing else signal.SIG_DFL))
            process.stdout.read(1)
            process.send_signal(signal.SIGHUP)
            if means_nothing:
                process.stdout.read(200)
                process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130 if means_nothing else 129)
            self.assertIn(b"cancelled", stderr)

    def test_interrupt_with_json_still_prints_the_object(self):
        process = subprocess.Popen(
            PROGRAM + ["run", "--prompt", "Once upon a time", "--max-new", "100000", "--json",
                       "--ignore-stop", "--context", "200000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
        line = b"begin"
        while line and b"spine" not in line:
            line = process.stderr.readline()
        process.send_signal(signal.SIGINT)  # while it reads the prompt, or later
        stdout, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(json.loads(stdout)["finish_reason"], "cancelled")

    def test_errors_are_one_clear_line(self):
        cases = [
            (("run",), "expected one prompt"),
            (("run", "--prompt", "a", "--ids", "1"), "expected one prompt"),
            (("run", "--prompt", "a", "--model", "/nowhere"), "/nowhere"),
            (("run", "--ids", "1,x"), "token ids"),
            (("run", "--ids", "999999"), "token id"),
            (("run", "--prompt-file", "/nowhere"), "/nowhere"),
            (("run", "--prompt-file", "/"), "/: reading failed"),
            (("render", "/"), "/: reading failed"),
            (("run", "--prompt", "a", "--effort", "medium"), "low, high or max"),
            (("run", "--prompt", "a", "--effort", "low"), "--chat"),
            (("run", "--prompt", "a", "--system", "b"), "--chat"),
            (("run", "--prompt", "a", "--ram", "lots"), "--ram"),
            (("run", "--prompt", "a", "--ram", "1M"), "at least"),
            (("run", "--prompt", "a", "--cache", "f16"), "--cache"),
            (("run", "--prompt", "a", "--device", "gpu:99"), "GPU 99"),
            (("run", "--prompt", "a", "--device", "gpu:x"), "gpu:x"),
            (("run", "--prompt", "a", "--device", "tpu"), "--device"),
            (("run", "--prompt", "a", "--gpu-ram", "lots"), "--gpu-ram"),
            (("run", "--prompt", "a", "--spine", "int4"), "--spine"),
            (("run", "--prompt", "a", "--preload", "maybe"), "--preload"),
            (("run", "--prompt", "a", "--pin-layers", "-2"), "--pin-layers"),
            (("bench", "decode", "--spine", "int4"), "--spine"),
            (("bench", "batch", "--model", "/nowhere"), "/nowhere"),
            (("bench", "context", "--model", "/nowhere"), "/nowhere"),
            (("bench", "decode", "--model", "/nowhere"), "/nowhere"),
            (("bench", "disk", "--model", "/nowhere"), "/nowhere"),
            (("bench", "prefill", "--model", "/nowhere"), "/nowhere"),
            (("bench", "spec", "--model", "/nowhere"), "/nowhere"),
            (("run", "--prompt", "a", "--isa", "mmx"), "instruction set"),
            (("run", "--prompt", "a", "--logits", "/nowhere/x"), "/nowhere/x"),
            (("run", "--prompt", "a b c d e f g h", "--context", "2"), "--context"),
            (("run", "--prompt", "a", "--temperature", "-1"), "temperature"),
            (("run", "--prompt", "a", "--top-p", "0"), "top-p"),
            (("run", "--prompt", "a", "--top-k", "-1"), "top-k"),
            (("run", "--prompt", "a", "--min-p", "1"), "min-p"),
            (("run", "--prompt", "a", "--repetition-penalty", "0"), "repetition penalty"),
            (("run", "--prompt", "a", "--presence-penalty", "1000"), "presence penalty"),
            (("run", "--prompt", "a", "--frequency-penalty", "nan"), "frequency penalty"),
            (("run", "--prompt", "a", "--logit-bias", "5"), "ID:VALUE"),
            (("run", "--prompt", "a", "--logit-bias", "5:1000"), "logit bias"),
            (("run", "--prompt", "a", "--logit-bias", "99999:1"), "logit bias"),
            (("run", "--prompt", "a", "--logprobs", "-1"), "logprobs"),
            (("run", "--prompt", "a", "--logprobs", "1"), "--json"),
            (("serve", "--cors", "https://chat.example/"), "--cors"),
            (("serve", "--cors", "chat.example"), "--cors"),
            (("run", "--prompt", "a", "--spec", "9"), "--spec"),
            (("run", "--prompt", "a", "--spec", "fast"), "--spec"),
            (("tokenize", "--decode", "4608"), "4608"),
            (("render", "/nowhere"), "/nowhere"),
            (("info", "--model", "/nowhere"), "/nowhere"),
        ]
        for args, expected in cases:
            with self.subTest(args=args):
                done = run(*args, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(done.stdout, b"")
                last = done.stderr.decode().strip().splitlines()[-1]
                self.assertTrue(last.startswith("deltafin: "), last)
                self.assertIn(expected, last)

    def test_a_shard_with_holes_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(NANO, os.path.join(folder, "model"))
            shard = sorted(f for f in os.listdir(model) if f.endswith(".safetensors"))[-1]
            path = os.path.join(model, shard)
            size = os.path.getsize(path)
            args = ("run", "--prompt", "a", "--max-new", "1", "--model", model)
            self.assertNotIn("holes", run(*args).stderr.decode())
            # The last 64 KiB were never written; written over, they would still take room.
            with open(path, "rb") as old:
                kept = old.read(size - 65536)
            os.remove(path)
            with open(path, "wb") as new:
                new.write(kept)
                new.truncate(size)
            self.assertIn("holes: 1 of 14 shards", run(*args, check=False).stderr.decode())

    def test_holes_of_what_text_does_not_read_are_not_said(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            run("synth", model, "--like", "nano", "--layers", "4", "--experts", "16")
            args = ("run", "--ids", "1,2", "--max-new", "1", "--model", model)
            self.assertNotIn("holes", run(*args).stderr.decode())

    def test_opens_as_many_files_as_the_system_allows(self):
        # k3-nano has 14 shards, and the program some files of its own.
        def limit(soft, hard):
            return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        args = ("run", "--prompt", "a", "--max-new", "1")
        run(*args, preexec_fn=limit(16, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        done = run(*args, check=False, preexec_fn=limit(16, 16))
        self.assertEqual(done.returncode, 1)
        self.assertIn("ulimit -n", done.stderr.decode())

    @unittest.skipUnless(os.path.exists("/dev/full"), "this system has no /dev/full")
    def test_what_cannot_be_printed_is_an_error(self):
        commands = (("tokenize", "a"), ("run", "--prompt", "a", "--max-new", "1"),
                    ("run", "--prompt", "a", "--max-new", "1", "--json"), ("info",), ("man",),
                    ("--help",))
        with open("/dev/full", "wb") as full:
            for args in commands:
                with self.subTest(args=args):
                    done = subprocess.run(PROGRAM + list(args), stdout=full,
                                          stderr=subprocess.PIPE, env=clean_environment())
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(b"standard output", done.stderr)

    def test_a_closed_stream_is_no_file_of_the_model(self):
        for stream in (0, 1, 2):
            done = subprocess.run(
                PROGRAM + ["run", "--prompt", "The capital of France is", "--max-new", "2"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=clean_environment(), preexec_fn=lambda: os.close(stream))
            self.assertEqual(done.returncode, 1 if stream == 1 else 0, stream)
            self.assertEqual(b"Paris" in done.stdout, stream != 1)
            self.assertEqual(b"standard output" in done.stderr, stream == 1)

    def test_computes_with_a_gpu_what_the_cpu_computes(self):
        args = ("run", "--prompt", PROMPTS[0]["text"], "--max-new", "8", "--ignore-stop")
        plain = run_json(*args, "--device", "cpu")
        for name in ("gpu", "mps"):  # the software driver of the tests' packages
            done = run(*args, "--json", env={"K3_DEV": name})
            self.assertEqual(json.loads(done.stdout)["ids"], plain["ids"])
            self.assertIn(b"on the GPU", done.stderr)
        self.assertNotIn(b"on the GPU", run(*args).stderr)  # auto wants a real one

    def test_lists_devices_and_says_why_there_is_no_gpu(self):
        devices = run_json("info", "--devices")["devices"]
        self.assertEqual(devices[0]["device"], "cpu")
        self.assertEqual(devices[1]["device"], "gpu:0")
        self.assertTrue(any(d["usable"] for d in devices[1:]), devices)
        self.assertIn(b"exact", run("info", "--devices").stdout)
        nothing = {"VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"}
        done = run("info", "--devices", env=nothing)
        self.assertIn(b"Vulkan", done.stderr)
        self.assertIn(b"cpu", done.stdout)
        done = run("run", "--prompt", "a", "--device", "gpu", env=nothing, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, b"")
        last = done.stderr.decode().strip().splitlines()[-1]
        self.assertTrue(last.startswith("deltafin: --device gpu: "), last)
        run("run", "--prompt", "a", "--max-new", "1", "--device", "auto", env=nothing)

    def test_wrong_flags_exit_2_and_help_exits_0(self):
        for args in ((), ("fly",), ("run", "--no-such-flag"), ("run", "x", "--max-new", "-1"),
                     ("bench", "spec", "--preload", "on"), ("info", "--preload", "on"),
                     ("quality", "--text", "-", "--preload", "on")):
            self.assertEqual(run(*args, check=False).returncode, 2, args)
        for command in ("run", "tokenize", "render", "info", "trace"):
            self.assertIn(b"--help", run(command, "--help").stdout)
        self.assertTrue(run("--version").stdout.startswith(b"deltafin "))

    def test_numbers_are_decimal_whole_and_in_their_range(self):
        for args in (("run", "a", "--seed", "-1"), ("run", "a", "--seed", "18446744073709551616"),
                     ("run", "a", "--seed", "0x10"), ("run", "a", "--max-new", "1e3"),
                     ("run", "a", "--top-k", "99999999999999999999"),
                     ("run", "a", "--temperature", "warm"), ("serve", "--port", "65536"),
                     ("serve", "--grace", "nan"), ("bench", "disk", "--seconds", "nan"),
                     ("bench", "context", "--contexts", "1k"), ("synth", "/x", "--layers", "0")):
            with self.subTest(args=args):
                done = run(*args, check=False)
                self.assertEqual(done.returncode, 2)
                expected = f"deltafin: {args[-2]}: expected a .*number.*, got \"{args[-1]}\""
                self.assertRegex(done.stderr.decode(), expected)
        sampled = ("run", "--prompt", "Once", "--max-new", "8", "--temperature", "1")
        self.assertEqual(run(*sampled, "--seed", "010").stdout,
                         run(*sampled, "--seed", "10").stdout)

    def test_a_program_without_its_model_says_so_where_it_needs_one(self):
        with tempfile.TemporaryDirectory() as folder:
            alone = shutil.copy(PROGRAM[-1], folder + "/deltafin")
            for args, expected in ((("run", "a"), b"--model DIR"),
                                   (("bench", "kernels", "--isa", "none"), b"instruction set")):
                done = subprocess.run(PROGRAM[:-1] + [alone, *args], env=clean_environment(),
                                      capture_output=True, timeout=60)
                self.assertEqual(done.returncode, 1)
                self.assertIn(expected, done.stderr)

    def test_a_command_that_is_none_is_named(self):
        for args, word, expected in ((("rum",), "rum", "run, chat"), (("rum", "-x"), "rum", "run"),
                                     (("sessions", "lst"), "lst", "list, show, rm"),
                                     (("bench", "disc", "--json"), "disc", "disk")):
            done = run(*args, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f'got "{word}"', done.stderr.decode())
            self.assertIn(expected, done.stderr.decode())
        for args, rest in ((("run", "--max_new", "5", "hi"), "--max_new hi"),
                           (("run", "a", "--modle", "x"), "--modle x"),
                           (("--model", "m", "info"), "--model m")):
            done = run(*args, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"deltafin: not expected: {rest}\n", done.stderr.decode())

    # A model's text must not move the cursor, change the title or send keys.
    def test_a_text_that_begins_with_a_dash_is_told_how_to_come_in(self):
        for args, word in ((("run", "-hello"), "-hello"), (("run", "--hello world"), "--hello world"),
                           (("run", "--max-new", "1", "-x"), "-x"),
                           (("tokenize", "-hello"), "-hello"), (("tokenize", "--", "-"), None),
                           (("sessions", "show", "-mine"), "-mine")):
            done = run(*args, stdin=b"", check=False)
            self.assertEqual(done.returncode, 2 if word else 0, args)
            if word:
                error = done.stderr.decode()
                self.assertIn(f"deltafin: not expected: {word}\n", error)
                command = " ".join(a for a in args[:2] if a.isalpha())
                self.assertIn(f'comes after --: deltafin {command} -- "{word}"\n', error)
        self.assertEqual(run("tokenize", "-5 degrees").stdout, run("tokenize", "--", "-5 degrees").stdout)
        for args in (("run", "-h"), ("run", "-hello", "--help"), ("chat", "-hx")):
            self.assertIn(b"Usage: deltafin", run(*args).stdout)

    def test_a_terminal_gets_no_control_characters_of_the_model(self):
        escapes = ("run", "a", "--logit-bias", "27:100", "--max-new", "3", "--ignore-stop")
        self.assertEqual(run(*escapes).stdout, b"\x1b\x1b\x1b\n")
        for stream in ("stdout", "stderr"):
            for name, no_color in (("xterm", ""), ("xterm", "1"), ("dumb", "")):
                args = escapes if stream == "stdout" else ("run", "--chat", "Hello", "--max-new", "9")
                shown = self.shown(args, stream, {"TERM": name, "NO_COLOR": no_color})
                if stream == "stdout":
                    self.assertEqual(shown.decode(), "\ufffd" * 3 + "\r\n")
                    continue
                self.assertIn(b"thinking: ", shown)
                self.assertEqual(b"\x1b[2m" in shown, name == "xterm" and not no_color)
                self.assertEqual(b"\x1b" in shown, name == "xterm")

    def test_nor_of_what_it_decodes_or_renders(self):
        decode = ("tokenize", "--decode", "27 97 200")  # half a character too
        self.assertEqual(run(*decode).stdout, b"\x1ba\xc8\n")
        self.assertEqual(self.shown(decode, "stdout").decode(), "\ufffda\ufffd\r\n")
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump({"messages": [{"role": "user", "content": "\x1b[31m"}]}, file)
            file.flush()
            self.assertIn(b"\x1b[31m", run("render", file.name).stdout)
            self.assertNotIn(b"\x1b", self.shown(("render", file.name), "stdout"))

    def shown(self, args, stream, env=None):
        """What a terminal that is one of the streams gets."""
        main, side = pty.openpty()
        others = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: side}
        process = subprocess.Popen(PROGRAM + list(args), env=clean_environment(env), **others)
        os.close(side)
        shown = b""
        with open(main, "rb", buffering=0) as terminal:
            try:
                while piece := terminal.read(65536):
                    shown += piece
            except OSError:  # the other end is closed
                pass
        self.assertEqual(process.wait(60), 0)
        return shown

    def test_an_empty_value_is_none(self):
        for flag in ("--model", "--session", "--temperature", "--seed", "--max-new", "--ram",
                     "--logits", "--trace", "--also", "--isa"):
            done = run("run", "a", flag, "", check=False)
            self.assertEqual(done.returncode, 2, flag)
            self.assertIn(f"deltafin: {flag}: expected", done.stderr.decode())
        self.assertEqual(run("serve", "--api-key", "", check=False).returncode, 2)
        run("run", "--chat", "--system", "", "--prompt", "a", "--max-new", "1")

    def test_a_flag_that_may_be_repeated_leaves_the_prompt_alone(self):
        for flags in (("--logit-bias", "5:1"), ("--also", SOURCE, "--logit-bias", "5:1")):
            self.assertEqual(run_json("run", *flags, "a", "--max-new", "1")["prompt_ids"],
                             run_json("run", "a", "--max-new", "1")["prompt_ids"])

    def test_environment_names_are_defaults_of_flags(self):
        args = ("run", "--prompt", "a", "--max-new", "1")
        self.assertIn(b"like 8 or 1.5, got \"8G\"",
                      run(*args, env={"K3_RAM_GB": "8G"}, check=False).stderr)
        self.assertIn(b"--device", run(*args, env={"K3_DEV": "x"}, check=False).stderr)
        self.assertNotEqual(run(*args, env={"K3_RAM_GB": "x"}, check=False).returncode, 0)
        self.assertIn(b"--prefetch", run(*args, env={"K3_PREFETCH": "x"}, check=False).stderr)
        run(*args, env={"K3_PREFETCH": "off"})
        self.assertIn(b"--ram", run(*args, env={"K3_RAM_GB": "1"}).stderr)
        self.assertIn(b"K3_TEMPLATES", run(*args, env={"K3_TEMPLATES": "1"}).stderr)
        run(*args, "--device", "cpu", env={"K3_DEV": "x"})  # the flag wins
        self.assertIn(b"--pin-layers", run(*args, env={"K3_PIN_LAYERS": "x"}, check=False).stderr)
        self.assertIn(b"--preload", run(*args, env={"K3_PRELOAD": "x"}, check=False).stderr)
        plain = run_json(*args)
        for env in ({"K3_PIN_LAYERS": "2"}, {"K3_PRELOAD": "1"}, {"K3_PROFILE": "1"}):
            other = run_json(*args, env=env)
            self.assertEqual(other["ids"], plain["ids"])
            self.assertEqual("profile" in other, "K3_PROFILE" in env)
        self.assertNotIn("profile", run_json(*args, env={"K3_PROFILE": "0"}))
        with tempfile.TemporaryDirectory() as root:
            os.symlink(NANO, os.path.join(root, "Kimi-K3"))
            info = run_json("info", env={"DELTAFIN_ROOT": root})
            self.assertEqual(info["dir"], os.path.join(root, "Kimi-K3"))
            done = run(*args, env={"DELTAFIN_ROOT": root + "/none"})
            self.assertEqual(done.stderr.count(b"DELTAFIN_ROOT has no effect"), 1)
            for words, env in ((args, {"DELTAFIN_ROOT": "x" * 300}),
                               (("sessions", "list", "--model", "x" * 300), {})):
                done = run(*words, env=env, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(b": cannot be read: File name too long", done.stderr)
                self.assertNotIn(b"unexpected", done.stderr)
            done = run(*args, "--model", NANO, env={"DELTAFIN_ROOT": root + "/none"})
            self.assertNotIn(b"DELTAFIN_ROOT", done.stderr)

    def test_profile_adds_up(self):
        args = ("run", "--prompt", "The capital of", "--max-new", "5", "--ignore-stop",
                "--spec", "off", "--profile")
        profile = run_json(*args)["profile"]
        self.assertEqual([row["name"] for row in profile["passes"]],
                         ["prompt"] + [f"token {i}" for i in range(2, 6)])
        total = profile["total"]
        self.assertEqual(total["passes"], 5)
        for row in profile["passes"] + [total]:
            self.assertAlmostEqual(sum(row["phases"].values()), row["seconds"], places=6)
            self.assertGreater(row["phases"]["KDA"], 0)
            self.assertTrue(0 <= row["overlap"] <= 1)
        self.assertAlmostEqual(sum(row["seconds"] for row in profile["passes"]), total["seconds"],
                               places=6)
        self.assertGreater(profile["passes"][0]["bytes"]["spine"], 10_000_000)
        self.assertEqual(profile["passes"][1]["bytes"]["spine"], 0)  # it is in RAM
        self.assertEqual(profile["passes"][1]["bytes"]["embedding"], 256 * 2)
        self.assertGreater(profile["memory_limit"], 0)
        table = run(*args).stderr.decode()
        for words in ("spine wait", "expert wait", "MLA", "token 5", "foretold", "measured"):
            self.assertIn(words, table)

    def test_shards_in_several_folders(self):
        args = ("run", "--prompt", "The capital of", "--max-new", "5", "--ignore-stop")
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            for i, name in enumerate(sorted(os.listdir(NANO))):
                if not name.startswith("."):
                    folder = two if i % 2 and name.endswith(".safetensors") else one
                    os.symlink(os.path.join(NANO, name), os.path.join(folder, name))
            self.assertEqual(run_json(*args, "--model", one, "--also", two)["ids"],
                             run_json(*args)["ids"])
            self.assertIn("is missing", run(*args, "--model", one, check=False).stderr.decode())
            # What to run names both folders.
            shard = next(n for n in os.listdir(two) if n.endswith(".safetensors"))
            os.makedirs(two + "/.deltafin/presence")
            with open(f"{two}/.deltafin/presence/{shard}.map", "wb"):
                pass  # nothing of it is here
            self.assertIn(f"deltafin setup --dir {one} --also {two}",
                          run(*args, "--model", one, "--also", two, check=False).stderr.decode())
            for command in ("run a", "info", "convert spine --to int8", "bench disk"):
                done = run(*command.split(), "--model", one, "--also", two + "/none", check=False)
                self.assertEqual(done.returncode, 1, command)
                self.assertIn("/none: expected a folder with shards", done.stderr.decode())


def oracle_picks(prompt):
    """[layer - 1][position] -> the ids the router must pick, and the margin to the next one."""
    data = open(os.path.join(SOURCE, "tests", "data", "nano", "router.safetensors"), "rb").read()
    header_bytes = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + header_bytes])

    def rows(name, code):
        entry = header[f"{prompt:02}.{name}"]
        begin, end = (8 + header_bytes + at for at in entry["data_offsets"])
        return entry["shape"], struct.unpack(f"<{(end - begin) // struct.calcsize(code)}{code}",
                                             data[begin:end])

    (layers, tokens, top_k), ids = rows("idx", "h")
    margins = rows("margin", "f")[1]
    return [[(set(ids[(layer * tokens + pos) * top_k:][:top_k]), margins[layer * tokens + pos])
             for pos in range(tokens)] for layer in range(layers)]


class Trace(unittest.TestCase):
    def test_picks_are_those_of_the_oracle(self):
        prompt = PROMPTS[0]
        oracle = oracle_picks(0)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "router_trace.jsonl")
            run("run", "--prompt", prompt["text"], "--max-new", "20", "--ignore-stop",
                "--trace", path)
            with open(path) as file:
                lines = [json.loads(line) for line in file]
            # The last token that is generated is not computed.
            steps = len(prompt["ids"]) + 19
            self.assertEqual({(l["step"], l["layer"]) for l in lines},
                             {(step, layer) for step in range(steps) for layer in range(1, 13)})
            self.assertEqual(len(lines), steps * 12)
            for line in lines:
                want, margin = oracle[line["layer"] - 1][line["step"]]
                if margin > 1e-5:  # else two experts are as good as equal
                    self.assertEqual(set(line["ids"]), want)
                self.assertAlmostEqual(sum(line["w"]), sum(lines[0]["w"]), places=4)

            svg = os.path.join(folder, "heat.svg")
            report = run_json("trace", path, "--slots", "36,72,768", "--svg", svg)
            self.assertEqual(report["steps"], steps)
            self.assertEqual(report["picks_per_step"], 72)
            rates = report["simulation"]["hit_rates"]
            self.assertEqual(rates["next use"][2], rates["optimum"][2])
            self.assertGreater(rates["next use"][0], rates["LRU"][0])
            with open(svg) as file:
                self.assertTrue(file.read().startswith("<svg "))
            self.assertIn(b"load max/mean", run("trace", path).stdout)

    def test_malformed_lines_are_named(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"step":0,"layer":1,"ids":[1]}\n{"step":1,"layer":1,"ids":[-1]}\n')
            file.flush()
            done = run("trace", file.name, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"{file.name}: line 2: expected ids", done.stderr.decode())
            file.seek(0)
            file.truncate()
            file.write('{"step":0,"layer":1,"ids":[7]}\n')
            file.flush()
            done = run("trace", file.name, "--experts", "7", check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("--experts: expected at least 8", done.stderr.decode())
            self.assertEqual(run_json("trace", file.name, "--experts", "9")["experts"], 9)


class Tokenize(unittest.TestCase):
    def test_round_trip(self):
        ids = run("tokenize", "The capital of France is").stdout.split()
        self.assertEqual([int(i) for i in ids], PROMPTS[0]["ids"])
        text = run("tokenize", "--decode", " ".join(i.decode() for i in ids)).stdout
        self.assertEqual(text, b"The capital of France is\n")

    def test_specials_only_when_asked(self):
        plain = run_json("tokenize", "a <|open|> b")["ids"]
        special = run_json("tokenize", "--specials", "a <|open|> b")["ids"]
        self.assertGreater(len(plain), len(special))
        self.assertIn(4355, special)
        self.assertNotIn(4355, plain)

    def test_standard_input_and_json(self):
        out = run_json("tokenize", "-", stdin="naïve 🙂".encode())
        self.assertEqual(out["text"], "naïve 🙂")
        self.assertEqual(len(out["ids"]), len(out["tokens"]))


class Render(unittest.TestCase):
    def test_matches_the_reference_conversations(self):
        cases = json.load(open(os.path.join(SOURCE, "tests", "data", "nano", "chat_render.json")))
        case = next(c for c in cases if c["options"] ==
                    {"thinking": True, "thinking_effort": "max"})
        request = json.dumps({"messages": case["messages"], "reasoning_effort": "max"})
        out = run_json("render", "-", stdin=request.encode())
        self.assertEqual(out["ids"], case["ids"])
        self.assertEqual(out["text"], case["rendered"])

    def test_bad_requests_name_the_field(self):
        for request, field in (("{}", "messages"), ('{"messages":[{"role":"x"}]}', "role"),
                               ("not json", "line")):
            done = run("render", "-", stdin=request.encode(), check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(field, done.stderr.decode())


class Info(unittest.TestCase):
    def test_sizes_and_plan(self):
        info = run_json("info")
        self.assertEqual(info["layers"], 13)
        self.assertEqual(info["experts"], 64)
        with tempfile.TemporaryDirectory() as folder:
            path = os.fsencode(folder) + b"/\xff"
            os.symlink(os.fsencode(NANO), path)
            self.assertTrue(run_json("info", "--model", path)["dir"].endswith("/\ufffd"))
        names = [line["what"] for line in info["plan"]]
        self.assertIn("spine", names)
        self.assertIn("expert slots", names)
        self.assertIn(b"memory plan", run("info").stdout)


if __name__ == "__main__":
    unittest.main()
