// What the cache holds over time: a row for each entry, a column for each moment, and what was looked at too late.

function buildLives() {
  const charts = [buildLife("life-0", () => state.policy), buildLife("life-1", () => state.other)];
  onChange(["other"], arrange);
  arrange();

  function arrange() {
    byId("life-1").hidden = state.other < 0;
    byId("lives").classList.toggle("one", state.other < 0);
  }
  return () => charts.forEach((paint) => paint());
}

function buildLife(id, policyOf) {
  let dropped = null;
  let held = null;
  let misses = null;
  const chart = new Chart(id, {
    name: "Entries of the cache over time",
    xLabel: "time: position of the query (tokens)",
    yLabel: "entry: position of the key (tokens)",
    yLimits: () => [run.length, 0],
    yText: count,
    draw,
    read,
  });

  function update() {
    dropped = droppedOf(policyOf(), state.head);
    held = heldOver(dropped);
    misses = missesOf(state.head, dropped);
    const caption = make("b", "", policyName(policyOf()));
    byId(id).querySelector("figcaption").replaceChildren(caption, `: ${missesText()}`);
    chart.paint();
  }

  function draw(chart, pen) {
    pen.fillStyle = colours.wash; // what has been read; what is still held is painted over it
    pen.beginPath();
    pen.moveTo(MARGIN.left, MARGIN.top);
    pen.lineTo(MARGIN.left + chart.width, MARGIN.top);
    pen.lineTo(MARGIN.left + chart.width, MARGIN.top + chart.height);
    pen.fill();
    pen.drawImage(lifeImage(dropped, Math.round(chart.width), Math.round(chart.height)),
      MARGIN.left, MARGIN.top, chart.width, chart.height);
    pen.fillStyle = colours.gone;
    for (const k of misses) {
      const t = Math.floor(k / run.numTargets) % run.length;
      pen.globalAlpha = Math.min(1, 0.3 + 4 * run.weights[k]);
      pen.fillRect(chart.x(t) - 1, chart.y(run.targets[k] + 0.5) - 1, 2, 2);
    }
    pen.globalAlpha = 1;
  }

  function read(t, v) {
    const size = `at ${count(t)}: ${count(held[t])} of ${count(t + 1)} entries held`;
    if (v === undefined) {
      const looked = targetsOf(state.head, t, dropped);
      const gone = looked.filter((target) => target.gone).length;
      return `${size}; ${gone} of the ${looked.length} entries that this token looks at had been evicted`;
    }
    const j = Math.max(0, Math.min(run.length - 1, Math.floor(v)));
    const name = `entry ${count(j)} \u201c${inline(run.tokens[j])}\u201d`;
    if (j > t) return `${size}; ${name} not read yet`;
    if (dropped[j] >= run.length) return `${size}; ${name} held to the end`;
    return `${size}; ${name} ${t > dropped[j] ? "was" : "will be"} evicted after ${count(dropped[j])}`;
  }

  function missesText() {
    const size = run.length * run.numTargets;
    const targets = run.targets.subarray(state.head * size, (state.head + 1) * size);
    const looks = targets.reduce((sum, target) => sum + (target >= 0), 0);
    const share = percent(looks ? misses.length / looks : 0);
    return `${count(misses.length)} of ${count(looks)} looks came after the eviction (${share})`;
  }

  onChange(["head", "policy", "other"], update);
  update();
  return () => chart.paint();
}

/** (T,): entries that query t can see, itself included. */
function heldOver(dropped) {
  const held = new Int32Array(run.length + 1);
  for (let j = 0; j < run.length; j++) {
    held[j] += 1;
    if (dropped[j] < run.length) held[dropped[j] + 1] -= 1;
  }
  for (let t = 1; t < run.length; t++) held[t] += held[t - 1];
  return held;
}

/** Indices into run.targets: those of head i that had been evicted when their query came. */
function missesOf(i, dropped) {
  const found = [];
  let k = i * run.length * run.numTargets;
  for (let t = 0; t < run.length; t++) {
    for (const end = k + run.numTargets; k < end; k++) {
      if (run.targets[k] >= 0 && t > dropped[run.targets[k]]) found.push(k);
    }
  }
  return found;
}

/** The held region, one pixel a cell: as dark as the share of the cell's entries and moments that are held. */
function lifeImage(dropped, width, height) {
  const rows = new Float32Array(height * (width + 1)); // where holding begins and ends: summed up along a row
  const entries = new Float32Array(height);
  const column = (t) => Math.min(width, Math.floor((t / run.length) * width));
  for (let j = 0; j < run.length; j++) {
    const row = Math.min(height - 1, Math.floor((j / run.length) * height));
    const span = Math.max(1, Math.ceil(((j + 1) / run.length) * height) - row); // fewer tokens than pixels
    for (let r = row; r < Math.min(height, row + span); r++) {
      entries[r] += 1;
      rows[r * (width + 1) + column(j)] += 1;
      rows[r * (width + 1) + column(Math.min(run.length, dropped[j] + 1))] -= 1;
    }
  }
  const canvas = make("canvas");
  [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, height);
  const [r, g, b] = channels(colours.held);
  for (let y = 0; y < height; y++) {
    let sum = 0;
    for (let x = 0; x < width; x++) {
      sum += rows[y * (width + 1) + x];
      image.data.set([r, g, b, Math.round((255 * sum) / Math.max(1, entries[y]))], 4 * (y * width + x));
    }
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}
