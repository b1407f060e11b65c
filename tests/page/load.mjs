// The page's modules for node, which takes a .js file outside of a package for something older.
import { readFile } from "node:fs/promises";

const kPage = new URL("../../src/server/page/", import.meta.url);

/** A module of the page that imports nothing. */
export async function load(name) {
  const source = await readFile(new URL(name, kPage), "utf8");
  return import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);
}
