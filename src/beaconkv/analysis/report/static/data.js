// The recorded run, decoded, and the few questions that every view asks of it.

const NOT_DROPPED = 2147483647;
const DTYPES = { f4: Float32Array, i4: Int32Array, u1: Uint8Array };

/** {dtype, shape, data: base64} -> typed array; little-endian, as all browsers are. */
function decode(array) {
  const text = atob(array.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new DTYPES[array.dtype](bytes.buffer);
}

function readRun() {
  const run = JSON.parse(document.getElementById("data").textContent);
  run.length = run.tokens.length;
  run.numTargets = run.targets.shape[2];
  for (const name of ["frequency", "is_global", "distance", "targets", "weights"]) run[name] = decode(run[name]);
  for (const policy of run.policies) {
    for (const name of ["dropped", "steps", "lost"]) policy[name] = decode(policy[name]);
    policy.coverage = policy.coverage && decode(policy.coverage);
  }
  return run;
}

const run = readRun();

const byId = (id) => document.getElementById(id);

/** Values (T,) of head i in an array (n, T). */
const ofHead = (array, i) => array.subarray(i * run.length, (i + 1) * run.length);

/** (T,): after which position each entry of the KV head of head i is gone; all NOT_DROPPED for the full cache (policy -1). */
function droppedOf(policy, i) {
  if (policy < 0) return new Int32Array(run.length).fill(NOT_DROPPED);
  const { layer, kv_head } = run.heads[i];
  const row = run.layers.indexOf(layer) * run.num_kv_heads + kv_head;
  return ofHead(run.policies[policy].dropped, row);
}

/** What query t of head i looks at, strongest first: [{t, weight, after, gone}]; after: the entry was dropped there. */
function targetsOf(i, t, dropped) {
  const found = [];
  const from = (i * run.length + t) * run.numTargets;
  for (let k = from; k < from + run.numTargets; k++) {
    const target = run.targets[k];
    if (target >= 0) found.push({ t: target, weight: run.weights[k], after: dropped[target], gone: t > dropped[target] });
  }
  return found;
}
