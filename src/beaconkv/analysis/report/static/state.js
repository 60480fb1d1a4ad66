// What is chosen, and who wants to know. Views never call each other: they listen.

const state = {
  head: 0, // index into run.heads
  policy: -1, // index into run.policies; -1: the full cache
  other: -1, // the policy it is compared with; -1: none
  token: 0, // whose targets are shown
  pinned: false, // pointing elsewhere does not change it
};
const listeners = [];

/** Call `listener` after a change of one of the keys. */
function onChange(keys, listener) {
  listeners.push({ keys, listener });
}

function change(values) {
  const changed = Object.keys(values).filter((key) => state[key] !== values[key]);
  if (!changed.length) return;
  Object.assign(state, values);
  for (const { keys, listener } of listeners) if (keys.some((key) => changed.includes(key))) listener();
}

/** Choose a token and hold it. */
function pin(token) {
  change({ token: Math.max(0, Math.min(run.length - 1, token)), pinned: true });
}

/** The view that tests and curious readers get: window.beaconkv. */
function publicState() {
  const label = (i) => (i < 0 ? null : run.policies[i].label);
  const fields = {
    head: () => ({ ...run.heads[state.head] }),
    policy: () => label(state.policy),
    other: () => label(state.other),
    token: () => state.token,
    pinned: () => state.pinned,
    theme: () => document.documentElement.dataset.theme,
  };
  const view = {};
  for (const [name, get] of Object.entries(fields)) Object.defineProperty(view, name, { get, enumerable: true });
  return Object.freeze(view);
}
