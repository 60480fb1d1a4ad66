// Where it starts: a head and a token worth looking at, then every view.

function begin() {
  const shares = run.heads.map((head) => head.share);
  state.head = shares.indexOf(Math.max(...shares));
  state.policy = run.policies.length ? 0 : -1;
  state.other = run.policies.length > 1 ? 1 : -1;
  state.token = firstToken();
}

/** Of the answer's global queries the one that looks farthest back; else the last token. */
function firstToken() {
  const [global, distance] = [ofHead(run.is_global, state.head), ofHead(run.distance, state.head)];
  let best = run.length - 1;
  for (let t = run.prompt_length; t < run.length; t++) {
    if (global[t] && !(distance[t] <= distance[best] && global[best])) best = t;
  }
  return best;
}

begin();
const painters = [];
buildTheme(() => painters.forEach((paint) => paint()));
writeWords();
buildControls();
painters.push(buildFrequency());
buildText();
buildPanel();
buildKeys();
painters.push(buildOverview(), buildDistance());
if (run.policies.length) painters.push(buildLives(), buildCurves());
reveal(state.token, false);
window.beaconkv = publicState();
