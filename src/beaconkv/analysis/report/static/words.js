// Numbers and tokens as readers see them.

const count = (n) => n.toLocaleString("en-US");

/** 0.1234 -> "12.3 %" */
const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %` : "unknown");

const headName = (head) => `layer ${head.layer}, head ${head.head}`;

const policyName = (i) => (i < 0 ? "full cache" : `${run.policies[i].label}, budget ${count(run.policies[i].budget)}`);

/** Characters that would show nothing, or turn the text around, as visible ones; newlines stay, with a mark. */
function visible(text) {
  if (text === "") return "\u2205";
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (character) => {
    const code = character.charCodeAt(0);
    if (character === "\n") return "\u21b5\n";
    if (character === "\t") return "\u21e5\t";
    if (code < 32) return String.fromCharCode(0x2400 + code);
    return `\u27e8${code.toString(16)}\u27e9`;
  });
}

/** On one line. */
const inline = (text) => visible(text).replace(/[\n\t]/g, "");

/** The tokens around t on one line: [before, itself, after]. */
function context(t, reach) {
  const join = (from, to) => run.tokens.slice(Math.max(0, from), to).map(inline).join("");
  return [join(t - reach, t), inline(run.tokens[t]), join(t + 1, t + 1 + reach)];
}

/** New element with a class and children (elements or text: never markup). */
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** The words a newcomer needs, with this run's numbers. */
function writeWords() {
  const many = run.top_keys === 1 ? "the key it gives" : `the ${run.top_keys} keys it gives`;
  const words = [
    ["Query, key", "To write the next token, each attention head asks a query and gives shares of attention to the keys of earlier tokens."],
    ["Local, global", `A query is global if ${many} most attention to lie more than ${count(run.local_distance)} tokens back on average; else it is local.`],
  ];
  if (run.policies.length) {
    words.push(["Budget", "How many entries (a key and a value of one token) each KV head may keep."]);
    words.push(["Evicted", "Dropped from the cache to stay within the budget. No later query can see it."]);
  }
  for (const [word, meaning] of words) byId("words").append(make("dt", "", word), make("dd", "", meaning));
}
