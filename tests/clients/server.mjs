// `deltafin serve` with k3-nano, for tests.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const kRepository = join(dirname(fileURLToPath(import.meta.url)), "../..");
const kProgram = process.env.DELTAFIN_PROGRAM ?? join(kRepository, "build/release/deltafin");
const kModel = join(kRepository, "models/k3-nano");
const kStartMilliseconds = 120_000;
process.env.no_proxy = "127.0.0.1"; // no proxy finds these servers

/** {url, stop(), restart()}: restart listens where it did before. `flags` are the server's. */
export async function startServer(flags = []) {
  const state = mkdtempSync(join(tmpdir(), "deltafin-serve-"));
  let child = null;
  let port = 0;

  async function start() {
    child = spawn(kProgram, ["serve", "--model", kModel, "--port", String(port), "--keep-dir", state, ...flags], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    let output = "";
    const url = await new Promise((resolve, reject) => {
      const fail = (why) => {
        child.kill("SIGKILL");
        reject(new Error(`deltafin serve ${why}:\n${output}`));
      };
      const timer = setTimeout(() => fail("does not start"), kStartMilliseconds);
      const read = (piece) => {
        output += piece;
        const match = /http:\/\/[\w.:[\]]+:(\d+)/.exec(output);
        if (!match) return;
        clearTimeout(timer);
        port = Number(match[1]);
        resolve(`http://127.0.0.1:${port}/`);
      };
      child.stdout.on("data", read);
      child.stderr.on("data", read);
      child.on("error", (error) => fail(error.message));
      child.on("exit", (code) => fail(`ended with ${code}`));
    });
    return url;
  }

  const server = {
    url: await start(),
    async stop() {
      if (child === null || child.exitCode !== null || child.signalCode !== null) return;
      const ended = once(child, "exit");
      child.kill("SIGTERM");
      await ended;
      child = null;
    },
    restart: start,
  };
  process.on("exit", () => {
    child?.kill("SIGKILL");
    rmSync(state, { recursive: true, force: true });
  });
  return server;
}
