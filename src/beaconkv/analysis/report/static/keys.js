// The keyboard in the text: a cursor that is the chosen token.

function buildKeys() {
  byId("text").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = destination(event.key);
    if (event.key === "Escape") change({ pinned: false });
    if (to === null) return;
    event.preventDefault();
    pin(to);
    reveal(state.token, false);
    speak();
  });
}

/** The token that a key leads to; null: none of our keys. */
function destination(key) {
  const t = state.token;
  switch (key) {
    case "ArrowLeft": return t - 1;
    case "ArrowRight": return t + 1;
    case "ArrowUp": return lineFrom(t, -1);
    case "ArrowDown": return lineFrom(t, 1);
    case "Home": return 0;
    case "End": return run.length - 1;
    case "g": return nextGlobal(t, 1);
    case "G": return nextGlobal(t, -1);
    case "Enter": case " ": return t;
    default: return null;
  }
}

/** The token on the next line (step 1) or the one above (-1) that lies nearest below or above token t. */
function lineFrom(t, step) {
  const start = spans[t].getClientRects()[0];
  const x = start.left;
  let [best, line] = [t, null];
  for (let i = t + step; i >= 0 && i < run.length; i += step) {
    const box = spans[i].getClientRects()[0];
    if (Math.abs(box.top - start.top) < 3) continue;
    if (line !== null && Math.abs(box.top - line) > 3) break;
    if (line === null || Math.abs(box.left - x) < Math.abs(spans[best].getClientRects()[0].left - x)) best = i;
    line = box.top;
  }
  return best;
}

function nextGlobal(t, step) {
  const global = ofHead(run.is_global, state.head);
  for (let i = t + step; i >= 0 && i < run.length; i += step) if (global[i]) return i;
  return t;
}

/** For screen readers, after a key: what the panel shows, in one sentence. */
function speak() {
  byId("spoken").textContent = `${byId("panel-title").textContent}. ${byId("panel-facts").textContent}. ` +
    `${byId("panel-sum").textContent}`;
}
