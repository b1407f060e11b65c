// Random hard texts with the ids that OpenAI's tiktoken gives them for a vocabulary, with special
// tokens off and on: one JSON array. Made tests/data/nano/tokenizer_random.json (docs/tokenizer.md).
//   npm install tiktoken && node scripts/tiktoken_cases.mjs DIR COUNT SEED > cases.json
import fs from 'fs';
import {createRequire} from 'module';
import process from 'process';

const {Tiktoken} = createRequire(process.cwd() + '/')('tiktoken');
const [dir, count, seed] = process.argv.slice(2);

const ranks = fs.readFileSync(`${dir}/tiktoken.model`, 'utf8').trim().split('\n')
    .map((line) => line.split(' ')[0]);
const named = JSON.parse(fs.readFileSync(`${dir}/tokenizer_config.json`, 'utf8')).added_tokens_decoder;
const specials = {};
for (let id = ranks.length; id < ranks.length + 256; id++)
  specials[named[id] ? named[id].content : `<|reserved_token_${id}|>`] = id;

const upper = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]';
const lower = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]';
const prefix = '[^\\r\\n\\p{L}\\p{N}]?';
const suffix = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
const pattern = [
  '[\\p{Han}]+', `${prefix}${upper}*${lower}+${suffix}`, `${prefix}${upper}+${lower}*${suffix}`,
  '\\p{N}{1,3}', ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*', '\\s*[\\r\\n]+', '\\s+(?!\\S)', '\\s+',
].join('|');
const tiktoken = new Tiktoken('! 0 ' + ranks.join(' '), specials, pattern);

let state = Number(seed) >>> 0;
const below = (n) => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor(state / 4294967296 * n);
};
const pick = (list) => list[below(list.length)];
const anyScalar = () => {
  const c = below(0x110000 - 0x800);
  return String.fromCodePoint(c < 0xd800 ? c : c + 0x800);
};
// All classes and borders of the pattern; the last line is newer than Unicode 15.
const nasty = [...'aAbBsStTrReEvVmMlLdD\'\'\'\' \n\r\t\v\f\x85\xa0\u1680\u2028\u3000019\u00b2\u0660' +
  '\u2167!.-_/\x1c\x1f\u0301\u0300\u20dd\u093e\u02b0\u01c5\u00aa\u05d0\u0644\u3042\u017f\u212a\u00df' +
  '\u0130\u4f60\u597d\u6f22\u3007\u3005\u2e80\u3021\u{16ff0}\u{20000}\u200b\u200d\u{1f600}\ufffd\ufeff' +
  '\u{2ebf0}\u{10d50}\u{10d70}\u{10d40}\u1c89\u1c8a\u{16d40}'];
const tokens = ranks.map((text) => Buffer.from(text, 'base64').toString('utf8'))
    .filter((text) => !text.includes('\ufffd'));
const spellings = Object.keys(specials);
const makers = [
  () => pick(nasty),
  (few) => pick(few),
  () => pick(tokens),
  () => [pick(spellings), '<|', anyScalar(), pick(tokens), pick(tokens)][below(5)],
];

const cases = [];
for (let n = 0; n < Number(count); n++) {
  const make = pick(makers);
  const few = Array.from({length: 2 + below(6)}, () => below(4) ? pick(nasty) : anyScalar());
  let text = '';
  for (let length = 1 + below(40); length > 0; length--) text += make(few);
  cases.push({text, ids: Array.from(tiktoken.encode(text, [], [])),
              ids_special: Array.from(tiktoken.encode(text, 'all'))});
}
console.log('[\n' + cases.map((c) => JSON.stringify(c)).join(',\n') + '\n]');
