// The page's modules for node, which takes a .js file outside of a package for something older.
import { readFile } from "node:fs/promises";

const kPage = new URL("../../src/server/page/", import.meta.url);

async function addressOf(name) {
  let source = await readFile(new URL(name, kPage), "utf8");
  for (const [words, other] of source.matchAll(/from "\.\/([\w.]+)"/g)) {
    source = source.replace(words, `from "${await addressOf(other)}"`);
  }
  return `data:text/javascript;base64,${Buffer.from(source).toString("base64")}`;
}

/** A module of the page, and those that it imports. */
export async function load(name) {
  return import(await addressOf(name));
}
