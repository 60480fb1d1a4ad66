// The bar of choices, the theme, and the places in the page that repeat what was chosen.

function option(value, text) {
  const element = make("option", "", text);
  element.value = value;
  return element;
}

function buildControls() {
  const select = byId("head");
  const order = run.heads.map((head, i) => i).sort((a, b) => {
    const [one, two] = [run.heads[a], run.heads[b]];
    return one.layer - two.layer || one.head - two.head;
  });
  for (const layer of new Set(order.map((i) => run.heads[i].layer))) {
    const group = make("optgroup");
    group.label = `Layer ${layer}`;
    for (const i of order.filter((i) => run.heads[i].layer === layer)) {
      const { head, share } = run.heads[i];
      group.append(option(i, `layer ${layer}, head ${head}: ${percent(share)} global`));
    }
    select.append(group);
  }
  byId("policy").append(option(-1, policyName(-1)));
  byId("other").append(option(-1, "nothing"));
  run.policies.forEach((policy, i) => {
    byId("policy").append(option(i, policyName(i)));
    byId("other").append(option(i, policyName(i)));
  });
  for (const key of ["head", "policy", "other"]) {
    byId(key).addEventListener("change", (event) => change({ [key]: Number(event.target.value) }));
    onChange([key], showChoice);
  }
  for (const element of document.querySelectorAll(".if-policies")) element.hidden = !run.policies.length;
  byId("other").parentElement.hidden = run.policies.length < 2;
  byId("policy").parentElement.hidden = !run.policies.length;
  showChoice();
}

function showChoice() {
  for (const key of ["head", "policy", "other"]) byId(key).value = String(state[key]);
  const texts = { head: headName(run.heads[state.head]), policy: policyName(state.policy) };
  for (const element of document.querySelectorAll("[data-show]")) element.textContent = texts[element.dataset.show];
}

/** `repaint` is called when colours have changed. */
function buildTheme(repaint) {
  const root = document.documentElement;
  const button = byId("theme");
  const label = () => { button.textContent = root.dataset.theme === "dark" ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; });
  new MutationObserver(() => { label(); readColours(); repaint(); }).observe(root, { attributeFilter: ["data-theme"] });
  label();
  readColours();
}
