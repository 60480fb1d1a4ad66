// The list of what the chosen token looks at.

function buildPanel() {
  onChange(["head", "policy", "token", "pinned"], showPanel);
  byId("targets").addEventListener("click", (event) => {
    const row = event.target.closest("li");
    if (row) reveal(Number(row.dataset.t));
  });
  showPanel();
}

function showPanel() {
  const t = state.token;
  const i = state.head;
  byId("panel-title").replaceChildren(`Token ${count(t)} `, make("q", "", inline(run.tokens[t])));
  const distance = run.distance[i * run.length + t];
  const kind = run.is_global[i * run.length + t] ? "global" : "local";
  const far = Number.isFinite(distance) ? `, looks ${count(Math.round(distance))} tokens back on average` : "";
  byId("panel-facts").textContent = `${kind} query${far}${state.pinned ? " \u00b7 held" : ""}`;
  const found = targetsOf(i, t, droppedOf(state.policy, i));
  byId("targets").replaceChildren(...found.map((target) => targetRow(target, t)));
  byId("panel-sum").textContent = sum(found);
}

function targetRow(target, t) {
  const row = make("li", target.gone ? "gone" : "");
  row.dataset.t = target.t;
  row.dataset.gone = target.gone;
  const [before, itself, after] = context(target.t, 4);
  const words = make("span", "words", `${before}`, make("mark", "", itself), `${after}`);
  const back = target.t === t ? "itself" : `${count(t - target.t)} back`;
  const numbers = make("span", "numbers", make("b", "", percent(target.weight)), ` at ${count(target.t)}, ${back}`);
  const bar = make("span", "bar");
  bar.style.setProperty("--share", `${Math.min(100, 100 * target.weight)}%`);
  const jump = make("button", "", words, bar, numbers);
  jump.type = "button";
  if (target.gone) jump.append(make("span", "fate", `evicted after ${count(target.after)}`));
  row.append(jump);
  return row;
}

function sum(found) {
  if (!found.length) return "Nothing is recorded for this token.";
  const share = (some) => percent(some.reduce((total, target) => total + target.weight, 0));
  const gone = found.filter((target) => target.gone);
  const all = `${found.length === 1 ? "This entry holds" : `These ${found.length} hold`} ${share(found)} of its attention`;
  if (state.policy < 0) return `${all}.`;
  if (!gone.length) return `${all}; ${found.length === 1 ? "it was" : "all were"} still in the cache under ${policyName(state.policy)}.`;
  const which = gone.length < found.length ? `${gone.length} of them, with ${share(gone)},` : found.length === 1 ? "it" : "all";
  return `${all}; ${which} had been evicted under ${policyName(state.policy)}.`;
}
