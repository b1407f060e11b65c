"""Setup and streaming as a person uses them, with nginx as the hub: kill -9, Ctrl-C, flags, JSON.

Run by ctest as cli_test.py is. DELTAFIN_ROUNDS=1000: 200 random kills instead of 20.
"""

import filecmp
import json
import os
import pty
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from cli_test import PROGRAM, clean_environment, run

KILLS = max(1, 20 * int(os.environ.get("DELTAFIN_ROUNDS", "100")) // 100)
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
PATH = "/moonshotai/Kimi-K3/resolve/main"


class Nginx:
    """Serves a folder as a mirror does, on loopback, out of a temporary folder."""

    def __init__(self, root):
        self.folder = tempfile.TemporaryDirectory()
        for _ in range(20):
            if self.start(root):
                return
        raise AssertionError("nginx does not start")

    def start(self, root):
        """False if somebody took the port meanwhile."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        here = self.folder.name
        config = f"""
daemon off; master_process off; worker_processes 1; pid {here}/pid; error_log {here}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log {here}/access.log; sendfile on;
  client_body_temp_path {here}/a; proxy_temp_path {here}/b; fastcgi_temp_path {here}/c;
  uwsgi_temp_path {here}/d; scgi_temp_path {here}/e;
  server {{ listen 127.0.0.1:{self.port}; location {PATH}/ {{ alias {root}/; }} }}
}}"""
        with open(f"{here}/nginx.conf", "w") as f:
            f.write(config)
        self.process = subprocess.Popen([NGINX, "-c", f"{here}/nginx.conf", "-p", here],
                                        stderr=subprocess.DEVNULL)
        while self.process.poll() is None:
            if os.path.exists(f"{here}/pid"):  # it listens
                return True
            time.sleep(0.05)
        return False

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.folder.cleanup()

    def log(self):
        with open(f"{self.folder.name}/access.log") as f:
            return f.read().splitlines()


class Setup(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root_folder = tempfile.TemporaryDirectory()
        cls.root = cls.root_folder.name + "/files"
        run("synth", cls.root, "--like", "nano", "--layers", "4", "--experts", "16", "--vocab",
            "512", "--no-vision")
        shutil.rmtree(cls.root + "/.deltafin", ignore_errors=True)
        cls.nginx = Nginx(cls.root)

    @classmethod
    def tearDownClass(cls):
        cls.nginx.stop()
        cls.root_folder.cleanup()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name + "/Kimi-K3"
        self.env = {"HF_ENDPOINT": f"http://127.0.0.1:{self.nginx.port}", "HOME": folder.name,
                    "HF_TOKEN": "", "HF_HUB_OFFLINE": "", "no_proxy": "127.0.0.1"}

    def deltafin(self, *args, **kwargs):
        return run(*args, env={**self.env, **kwargs.pop("env", {})}, **kwargs)

    def setup_model(self, *args, **kwargs):
        return self.deltafin("setup", "--dir", self.dir, "--revision", "main", "--yes", *args,
                             **kwargs)

    def events(self, done):
        return [json.loads(line) for line in done.stdout.decode().splitlines()]

    def assert_whole(self):
        for name in os.listdir(self.root):
            if os.path.isfile(f"{self.root}/{name}") and not name.startswith("."):
                if name.endswith((".safetensors", ".json", ".model")):
                    self.assertTrue(filecmp.cmp(f"{self.root}/{name}", f"{self.dir}/{name}", False),
                                    name)

    def generate(self, model, *args, **kwargs):
        return json.loads(self.deltafin("run", "--model", model, "--ids", "5,100,7,300", "--max-new",
                                        "12", "--ignore-stop", "--json", *args, **kwargs).stdout)

    def test_full(self):
        done = self.setup_model("--json")
        events = self.events(done)
        self.assertIn("plan", [event["event"] for event in events])
        self.assertEqual(events[-1]["event"], "done")
        self.assertEqual(events[-1]["mode"], "full")
        self.assertEqual(events[-1]["missing_bytes"], 0)
        self.assert_whole()
        verified = self.deltafin("verify", "--dir", self.dir)
        self.assertIn(b"all is well", verified.stdout)

    def test_ctrl_c_answers_the_question(self):
        main, side = pty.openpty()
        process = subprocess.Popen(PROGRAM + ["setup", "--dir", self.dir, "--revision", "main"],
                                   env=clean_environment(self.env), stdin=side, stdout=side,
                                   stderr=side)
        os.close(side)
        shown = b""
        while b"[Y/n]" not in shown:
            shown += os.read(main, 65536)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        while b"run the same command to go on" not in shown:
            shown += os.read(main, 65536)
        os.close(main)

    def test_dry_run(self):
        done = self.setup_model("--dry-run")
        text = done.stderr.decode()
        self.assertIn("to fetch", text)
        self.assertIn("revision main", text)
        self.assertFalse(os.path.exists(self.dir))

    def test_kill_9_at_any_moment(self):
        rng = random.Random(1)
        total = sum(os.path.getsize(f"{self.root}/{n}") for n in os.listdir(self.root)
                    if n.endswith(".safetensors"))
        rate = str(total * 2)
        kills = 0
        while kills < KILLS:
            shutil.rmtree(self.dir, ignore_errors=True)
            finished = False
            while not finished and kills < KILLS:
                process = subprocess.Popen(
                    PROGRAM + ["setup", "--dir", self.dir, "--revision", "main", "--yes", "--full",
                               "--limit-rate", rate],
                    env=clean_environment(self.env), stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL)
                try:
                    process.wait(rng.uniform(0, 0.25))
                    self.assertEqual(process.returncode, 0)
                    finished = True
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    kills += 1
                if os.path.exists(f"{self.dir}/config.json"):
                    # What counts as there is there.
                    verified = self.deltafin("verify", "--dir", self.dir, check=False)
                    self.assertEqual(verified.returncode, 0, verified.stdout)
            self.setup_model("--full")
            self.assert_whole()

    def test_kill_9_while_streaming(self):
        expected = self.generate(self.root)["ids"]
        self.setup_model("--stream")
        rng = random.Random(2)
        for _ in range(KILLS // 4):
            process = subprocess.Popen(
                PROGRAM + ["run", "--model", self.dir, "--ids", "5,100,7,300", "--max-new", "12",
                           "--ignore-stop", "--json"],
                env=clean_environment(self.env), stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0.02, 0.3))
            process.kill()
            process.wait()
            verified = self.deltafin("verify", "--dir", self.dir, check=False)
            self.assertEqual(verified.returncode, 0, verified.stdout)
        self.assertEqual(self.generate(self.dir)["ids"], expected)
        self.setup_model("--full")
        self.assert_whole()

    def test_ctrl_c_keeps_what_came(self):
        process = subprocess.Popen(
            PROGRAM + ["setup", "--dir", self.dir, "--revision", "main", "--yes", "--full",
                       "--limit-rate", "1M", "--json"],
            env=clean_environment(self.env), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "progress" and event["done_bytes"] > 100_000:
                break
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"run the same command to go on", stderr)
        plan = self.events(self.setup_model("--full", "--dry-run", "--json"))[-1]
        self.assertGreater(plan["local_bytes"], 100_000)
        self.setup_model("--full")
        self.assert_whole()

    def test_ctrl_c_does_not_wait_for_a_dead_hub(self):
        self.setup_model("--stream")
        for args in (("run", "a", "--max-new", "50"), ("serve", "--port", "0", "--grace", "1")):
            process = subprocess.Popen(
                PROGRAM + [args[0], "--model", self.dir, *args[1:]],
                env=clean_environment({**self.env, "HF_ENDPOINT": "http://127.0.0.1:1"}),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            address = None
            for line in process.stderr:
                if b"listening on " in line:
                    address = line.split()[-1].decode()
                if b"listening on " in line or (args[0] == "run" and b"streaming:" in line):
                    break
            body = json.dumps({"prompt": "a", "max_tokens": 50}).encode()
            request = address and subprocess.Popen(
                ["curl", "-s", address + "/v1/completions", "-H", "Content-Type: application/json",
                 "-d", body], stdout=subprocess.DEVNULL)
            time.sleep(2)
            self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            start = time.monotonic()
            process.communicate(timeout=120)
            self.assertLess(time.monotonic() - start, 15)
            self.assertEqual(process.returncode, 130 if args[0] == "run" else 0)
            if request:
                request.wait(20)

    def test_streaming_gives_the_same_tokens(self):
        expected = self.generate(self.root)["ids"]
        self.setup_model("--stream")
        plan = self.events(self.setup_model("--full", "--dry-run", "--json"))[-1]
        self.assertGreater(plan["missing_bytes"], 0)
        done = self.deltafin("run", "--model", self.dir, "--ids", "5,100,7,300", "--max-new", "12",
                             "--ignore-stop", "--json")
        self.assertEqual(json.loads(done.stdout)["ids"], expected)
        self.assertIn("streaming: ", done.stderr.decode())
        self.assertIn(f"deltafin setup --full --dir {self.dir}", done.stderr.decode())
        # Again, without the hub: what was needed is here.
        again = self.generate(self.dir, env={"HF_HUB_OFFLINE": "1"})
        self.assertEqual(again["ids"], expected)
        # Another installation, of which no expert is here yet.
        self.dir += "-other"
        self.setup_model("--stream")
        other = self.deltafin("run", "--model", self.dir, "--ids", "9,8,7,6,400,401", "--max-new",
                              "12", "--ignore-stop", env={"HF_HUB_OFFLINE": "1"}, check=False)
        self.assertEqual(other.returncode, 1)
        self.assertIn("deltafin setup --dir", other.stderr.decode())

    def test_every_expert_is_one_request(self):
        self.setup_model("--stream")
        before = len(self.nginx.log())
        self.generate(self.dir, "--prefetch", "off")
        requests = [line for line in self.nginx.log()[before:] if ".safetensors" in line]
        self.assertTrue(requests)
        self.assertTrue(all('" 206 ' in line for line in requests))

    def test_warm_clean_and_verify(self):
        self.setup_model("--stream")
        trace = os.path.dirname(self.dir) + "/trace"
        with open(trace, "w") as f:
            for step in range(3):
                f.write(json.dumps({"step": step, "layer": 1, "ids": [3, step]}) + "\n")
        warmed = self.deltafin("warm", "--dir", self.dir, "--revision", "main", "--trace", trace,
                               "--top", "1", "--json")
        self.assertGreater(self.events(warmed)[-1]["fetched_bytes"], 0)
        expert = self.events(warmed)[-1]["fetched_bytes"]
        with open(trace, "w") as f:
            f.write(json.dumps({"step": 0, "layer": 1, "ids": [3, 16]}) + "\n")
        other = self.deltafin("warm", "--dir", self.dir, "--revision", "main", "--trace", trace,
                              "--top", "2", check=False)
        self.assertEqual(other.returncode, 1)
        self.assertIn(b"no expert 16 in layer 1", other.stderr)
        cleaned = self.deltafin("clean", "--dir", self.dir, "--to", "0", "--json")
        self.assertEqual(json.loads(cleaned.stdout)["freed_bytes"], expert)
        self.assertEqual(json.loads(cleaned.stdout)["freed_experts"], 1)
        self.setup_model("--full")
        shard = sorted(n for n in os.listdir(self.root) if n.endswith(".safetensors"))[1]
        with open(f"{self.dir}/{shard}", "r+b") as f:
            f.seek(150_000)
            byte = f.read(1)
            f.seek(150_000)
            f.write(bytes([byte[0] ^ 1]))
        bad = self.deltafin("verify", "--dir", self.dir, check=False)
        self.assertEqual(bad.returncode, 1)
        self.assertIn(b"are not what was written", bad.stdout)
        self.deltafin("verify", "--dir", self.dir, "--repair", "--revision", "main")
        self.assert_whole()

    def test_mirror_by_host_and_path(self):
        done = self.deltafin("setup", "--dir", self.dir, "--yes",
                             env={"HF_ENDPOINT": "", "K3_HF_PATH": PATH,
                                  "K3_HF_HOST": f"http://127.0.0.1:{self.nginx.port}"})
        self.assertIn(PATH, done.stderr.decode())
        self.assert_whole()

    def test_refusals(self):
        wrong = [(["setup", "--full", "--stream"], 2), (["setup", "--layers", "5-"], 1),
                 (["setup", "--layers", "7-3"], 1), (["setup", "--limit-rate", "fast"], 1),
                 (["setup", "--layers", "1", "--stream"], 2),
                 (["setup", "--layers", "1", "--spine-only"], 2),
                 (["clean"], 2), (["warm", "--trace", "x"], 2), (["verify", "--dir", "/none"], 1)]
        for args, status in wrong:
            done = self.deltafin(*args, check=False, env={"HF_ENDPOINT": "http://127.0.0.1:1"})
            self.assertEqual(done.returncode, status, args)
        for flags in (["--layers", "9"], ["--layers", "2-4"]):
            done = self.setup_model(*flags, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("expected layers from 0 to 3", done.stderr.decode())
        offline = self.setup_model(check=False, env={"HF_HUB_OFFLINE": "1"})
        self.assertEqual(offline.returncode, 1)
        self.assertIn("HF_HUB_OFFLINE", offline.stderr.decode())
        absent = self.deltafin("setup", "--dir", self.dir, "--revision", "other", "--yes",
                               check=False)
        self.assertEqual(absent.returncode, 1)
        self.assertIn("check the repository and the revision", absent.stderr.decode())


if __name__ == "__main__":
    unittest.main()
