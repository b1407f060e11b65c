"""What `cmake --install` leaves is complete and works from there.

Run by ctest as cli_test.py is, with DELTAFIN_BUILD_DIR.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from cli_test import PROGRAM, clean_environment, run

BUILD = os.environ["DELTAFIN_BUILD_DIR"]


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.prefix = pathlib.Path(folder.name)
        subprocess.run(["cmake", "--install", BUILD, "--prefix", folder.name], check=True,
                       capture_output=True)

    def test_the_program_finds_the_model_that_comes_with_it(self):
        program = PROGRAM[:-1] + [str(self.prefix / "bin" / "deltafin")]
        done = subprocess.run(program + ["run", "--prompt", "The capital of France is"],
                              capture_output=True, check=True, env=clean_environment())
        self.assertIn(b"Paris", done.stdout)

    def test_what_is_written_about_the_program_is_of_this_one(self):
        for path, args in {
                "share/man/man1/deltafin.1": ("man",),
                "share/bash-completion/completions/deltafin": ("completion", "bash"),
                "share/zsh/site-functions/_deltafin": ("completion", "zsh"),
                "share/fish/vendor_completions.d/deltafin.fish": ("completion", "fish"),
        }.items():
            with self.subTest(path=path):
                self.assertEqual((self.prefix / path).read_bytes(), run(*args).stdout)

    def test_the_service_starts_what_was_installed(self):
        unit = self.prefix / "lib/systemd/system/deltafin-serve.service"
        self.assertIn(f"ExecStart={self.prefix}/bin/deltafin serve ", unit.read_text())
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            return
        done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_nothing_that_a_run_left_is_installed(self):
        self.assertEqual(list(self.prefix.rglob(".deltafin")), [])
        self.assertTrue((self.prefix / "share/doc/deltafin/copyright").exists())


if __name__ == "__main__":
    unittest.main()
