// The text: one span a token. Listeners sit on the container, and a step touches only the spans whose look changes.

let spans = [];
let marked = []; // spans with a look of their own: the token shown and what it looks at

function buildText() {
  const root = byId("text");
  const part = (name, from, to) => {
    if (from === to) return;
    const box = make("div", name.toLowerCase());
    box.append(make("div", "part", `${name} \u00b7 ${count(to - from)} tokens`));
    let block = make("div", "block");
    for (let t = from; t < to; t++) {
      const span = make("span", "", visible(run.tokens[t]));
      span.dataset.t = t;
      spans.push(span);
      block.append(span);
      // Blocks end with a line, so that they look like one text; the browser lays them out one by one.
      const full = block.childElementCount >= 100 && run.tokens[t].endsWith("\n");
      if (full || t === to - 1) {
        box.append(block);
        block = make("div", "block");
      }
    }
    root.append(box);
  };
  part("Prompt", 0, run.prompt_length);
  part("Answer", run.prompt_length, run.length);
  root.addEventListener("pointerover", (event) => {
    const t = tokenOf(event.target);
    if (t !== null && !state.pinned && event.pointerType !== "touch") change({ token: t });
  });
  root.addEventListener("click", (event) => {
    const t = tokenOf(event.target);
    if (t === null) return;
    if (state.pinned && t === state.token) change({ pinned: false });
    else pin(t);
  });
  onChange(["head"], markGlobal);
  onChange(["head", "policy", "token", "pinned"], markTargets);
  markGlobal();
  markTargets();
}

function tokenOf(element) {
  const t = element.dataset?.t;
  return t === undefined ? null : Number(t);
}

function markGlobal() {
  const global = ofHead(run.is_global, state.head);
  spans.forEach((span, t) => span.classList.toggle("global", global[t] === 1));
}

function markTargets() {
  for (const span of marked) {
    span.classList.remove("target", "gone", "shown", "pinned");
    span.style.removeProperty("--strength");
  }
  const found = targetsOf(state.head, state.token, droppedOf(state.policy, state.head));
  const most = found.reduce((a, target) => Math.max(a, target.weight), 1e-9);
  marked = found.map((target) => {
    const span = spans[target.t];
    span.classList.add("target");
    span.classList.toggle("gone", target.gone);
    span.style.setProperty("--strength", `${Math.round(15 + 70 * (target.weight / most))}%`);
    return span;
  });
  const shown = spans[state.token];
  shown.classList.add("shown");
  shown.classList.toggle("pinned", state.pinned);
  marked.push(shown);
}

const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Scroll the text, not the page, until token t is seen; `centre`: in the middle. */
function reveal(t, centre = true) {
  const root = byId("text");
  const [box, line] = [root.getBoundingClientRect(), spans[t].getBoundingClientRect()];
  if (!centre && line.top >= box.top + 24 && line.bottom <= box.bottom - 24) return;
  const top = root.scrollTop + line.top - box.top - root.clientHeight / 2;
  root.scrollTo({ top, behavior: still.matches || !centre ? "auto" : "smooth" });
}

/** First and last token in view. */
function inView() {
  const box = byId("text").getBoundingClientRect();
  const first = (test) => {
    let [low, high] = [0, run.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (test(spans[middle].getBoundingClientRect())) high = middle;
      else low = middle + 1;
    }
    return low;
  };
  return [first((line) => line.bottom > box.top), first((line) => line.top >= box.bottom)];
}
