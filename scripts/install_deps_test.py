#!/usr/bin/env python3
"""Runs install-deps against stand-ins for dpkg-query, apt-get, apt-cache, id and sudo."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).with_name("install-deps")
TOOLS = ["sh", "env", "grep", "tr", "mktemp", "rm", "tail", "cat", "touch"]


class InstallDepsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.bin = self.root / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(next(
                p for p in (f"/bin/{tool}", f"/usr/bin/{tool}") if os.path.exists(p)))
        self.calls = self.root / "calls"
        self.calls.write_text("")
        (self.root / "os-release").write_text("ID=debian\n")
        self.installed("")
        self.tool("id", "echo 0")
        self.tool("apt-get", f'echo "apt-get $*" >>{self.calls}')
        self.tool("apt-cache", 'echo "  Candidate: 1.0"')

    def tearDown(self):
        self.folder.cleanup()

    def tool(self, name, body):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def installed(self, *names):
        """dpkg-query that knows these packages, and one that was removed."""
        lines = " ".join(f"{name}=installed" for name in names)
        self.tool("dpkg-query", f'echo "{lines} libfmt-dev=config-files "')

    def run_script(self, *arguments):
        return subprocess.run(
            [SCRIPT, *arguments], text=True, capture_output=True, check=False,
            stdin=subprocess.DEVNULL,
            env={"PATH": str(self.bin), "DELTAFIN_OS_RELEASE": str(self.root / "os-release")})

    def group(self, name):
        return [p.split("|")[0] for p in self.run_script("--print", name).stdout.split()]

    def test_groups_grow(self):
        run, test, check = (set(self.group(name)) for name in ("run", "test", "check"))
        self.assertLess(run, test)
        self.assertLess(test, check)
        self.assertIn("libssl-dev", run)
        self.assertNotIn("libgtest-dev", run)

    def test_does_nothing_when_all_is_there(self):
        self.installed(*self.group("check"))
        result = self.run_script("check")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertEqual(self.calls.read_text(), "")

    def test_installs_what_is_missing_and_nothing_else(self):
        self.installed(*(p for p in self.group("run") if p not in ("libfmt-dev", "g++")))
        result = self.run_script("run")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("installing g++ libfmt-dev\n", result.stdout)
        calls = self.calls.read_text().splitlines()
        self.assertEqual(len(calls), 1)
        self.assertTrue(calls[0].endswith(" g++ libfmt-dev"), calls)
        self.assertIn("-y", calls[0])

    def test_fetches_the_lists_once_when_a_package_is_not_found(self):
        self.tool("apt-get", f'''echo "$1" >>{self.calls}
case $1 in
  update) touch {self.root}/lists ;;
  install) [ -f {self.root}/lists ] ;;
esac''')
        self.assertEqual(self.run_script("run").returncode, 0)
        self.assertEqual(self.calls.read_text().split(), ["install", "update", "install"])

    def test_takes_the_alternative_that_exists(self):
        self.installed(*(p for p in self.group("run") if p != "libboost1.81-dev"))
        self.tool("apt-cache", '''case $2 in
  libboost-dev) echo "  Candidate: 1.83" ;;
  *) echo "  Candidate: (none)" ;;
esac''')
        self.run_script("run")
        self.assertTrue(self.calls.read_text().endswith(" libboost-dev\n"))
        self.installed(*(p for p in self.group("run") if p != "libboost1.81-dev"), "libboost-dev")
        self.assertEqual(self.run_script("run").stdout, "")

    def test_reports_what_apt_said(self):
        self.tool("apt-get", "echo 'E: no space left'; exit 100")
        result = self.run_script("run")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no space left", result.stderr)

    def test_without_a_temporary_file_nothing_is_tried(self):
        (self.bin / "mktemp").unlink()
        self.tool("mktemp", "echo 'mktemp: No space left' >&2; exit 1")
        result = self.run_script("run")
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stderr.endswith(
            "No space left\ninstall-deps: no temporary file could be made\n"), result.stderr)
        self.assertEqual(self.calls.read_text(), "")

    def test_uses_sudo(self):
        self.tool("id", "echo 1000")
        self.tool("sudo", f'echo "sudo $*" >>{self.calls}')
        self.assertEqual(self.run_script("run").returncode, 0)
        self.assertIn("sudo env DEBIAN_FRONTEND=noninteractive apt-get install",
                      self.calls.read_text())

    def test_without_root_names_the_command(self):
        self.tool("id", "echo 1000")
        result = self.run_script("run")
        self.assertEqual(result.returncode, 1)
        self.assertIn("apt-get install -y --no-install-recommends make g++ cmake", result.stderr)
        self.assertEqual(self.calls.read_text(), "")

    def test_other_systems_get_a_message(self):
        (self.root / "os-release").write_text("ID=fedora\n")
        result = self.run_script("run")
        self.assertEqual(result.returncode, 1)
        self.assertIn("neither Debian nor Ubuntu", result.stderr)

    def test_a_descendant_of_debian_counts(self):
        (self.root / "os-release").write_text('ID=mint\nID_LIKE="ubuntu debian"\n')
        self.assertEqual(self.run_script("run").returncode, 0)

    def test_unknown_group(self):
        self.assertEqual(self.run_script("everything").returncode, 1)


if __name__ == "__main__":
    unittest.main()
