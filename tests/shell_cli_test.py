"""What the program says of itself to shells and to man.

Run by ctest as cli_test.py is.
"""

import os
import re
import shutil
import subprocess
import unittest

from cli_test import run


def options_of(*path):
    """The options that --help lists."""
    text = run(*path, "--help").stdout.decode()
    return set(re.findall(r"^  (?:-\w,)?(--[a-z][\w-]*)", text, re.MULTILINE))


def commands_of(*path):
    text = run(*path, "--help").stdout.decode()
    _, found, rest = text.partition("\nSubcommands:\n")
    return re.findall(r"^  ([a-z][\w-]*)", rest, re.MULTILINE) if found else []


def all_paths():
    for name in commands_of():
        yield (name,)
        for sub in commands_of(name):
            yield (name, sub)


def complete(*words):
    """What bash offers for the last of these words."""
    script = run("completion", "bash").stdout.decode()
    quoted = " ".join(f"'{word}'" for word in ("deltafin", *words))
    script += (f"\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _deltafin\n"
               'printf "%s\\n" "${COMPREPLY[@]}"\n')
    env = {k: v for k, v in os.environ.items() if k != "BASH_ENV"}
    env["LC_ALL"] = "C"  # of a locale that is not there bash complains
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, check=True,
                          cwd="/usr", env=env)
    assert not done.stderr, done.stderr
    return [line for line in done.stdout.decode().split("\n") if line]


class Completion(unittest.TestCase):
    def test_bash_offers_every_command_and_option(self):
        self.assertGreater(len(commands_of()), 8)
        self.assertLessEqual(set(commands_of()), set(complete("")))
        for path in all_paths():
            with self.subTest(path=path):
                offered = set(complete(*path, "--"))
                self.assertLessEqual(options_of(*path), offered)
                self.assertLessEqual(set(commands_of(*path)), set(complete(*path, "")))

    def test_bash_completes_values(self):
        self.assertEqual(complete("run", "--mod"), ["--model"])
        self.assertIn("share", complete("run", "--model", "sh"))
        self.assertEqual(complete("run", "--max-new", ""), [])
        self.assertEqual(complete("completion", "f"), ["fish"])
        self.assertEqual(complete("synth", "--like", ""), [])
        self.assertIn("share", complete("synth", ""))
        self.assertEqual(complete("render", "--vocab", "sh"), ["share"])
        self.assertEqual(complete("sessions", "l"), ["list"])
        self.assertNotIn("--chat", complete("sessions", "list", "--"))

    def test_other_shells_know_every_option(self):
        zsh = run("completion", "zsh").stdout.decode()
        fish = run("completion", "fish").stdout.decode()
        self.assertTrue(zsh.startswith("#compdef deltafin\n"))
        for path in all_paths():
            body = re.search(r"^_deltafin_%s\(\) \{\n(.*?)^\}" % "_".join(path), zsh,
                             re.MULTILINE | re.DOTALL).group(1)
            for option in options_of(*path):
                self.assertIn(f"'{option}[", body)
                self.assertRegex(fish, r"__fish_seen_subcommand_from %s\b.* -l %s\b" %
                                 (path[-1], option[2:]))
        for shell, text in (("zsh", zsh), ("fish", fish)):
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=text.encode(), check=True)

    def test_unknown_shells_are_refused(self):
        self.assertEqual(run("completion", "csh", check=False).returncode, 2)


class ManPage(unittest.TestCase):
    def test_has_every_command_and_option(self):
        page = run("man").stdout.decode()
        self.assertTrue(page.startswith(".TH DELTAFIN 1 "))
        plain = page.replace("\\-", "-").replace("\\&", "")
        for path in all_paths():
            begin = plain.index(f".SS \\fBdeltafin {' '.join(path)}\\fR")
            end = plain.find(".SS", begin + 1)
            for option in options_of(*path) - {"--help"}:
                self.assertIn(f"\\fB{option}\\fR", plain[begin:end])

    def test_is_well_formed(self):
        groff = shutil.which("groff")
        if groff is None:
            self.skipTest("groff is not installed")
        done = subprocess.run([groff, "-man", "-ww", "-Tascii", "-z"], input=run("man").stdout,
                              capture_output=True, check=True)
        self.assertEqual(done.stderr, b"")


if __name__ == "__main__":
    unittest.main()
