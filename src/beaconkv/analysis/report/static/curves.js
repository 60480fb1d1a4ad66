// The cost of eviction: attention lost, and how well observation queries represent later queries.

function buildCurves() {
  buildLines();
  buildSummary();
  const lost = new Chart("lost", {
    name: "Attention lost",
    xLabel: "position (tokens)",
    yLabel: "attention lost (%)",
    yLimits: () => [0, niceTop(run.policies.flatMap((policy) => Array.from(lostOf(policy)).filter(Number.isFinite)))],
    yText: (v) => String(Math.round(1000 * v) / 10),
    draw: (chart, pen) => eachPolicy(pen, (policy) => stepLine(chart, pen, policy)),
    read: (t) => readAll(t, (policy) => percent(lostOf(policy)[cycleOf(policy, t)])),
  });
  const coverage = new Chart("coverage", {
    name: "Coverage",
    xLabel: "position of the query (tokens)",
    yLabel: "best cosine",
    yLimits: () => [lowest(), 1],
    yText: (v) => v.toFixed(1),
    draw: (chart, pen) => eachPolicy(pen, (policy) => policy.coverage && thinLine(chart, pen, policy)),
    read: (t) => readAll(t, (policy) => {
      const value = policy.coverage ? ofHead(policy.coverage, state.head)[t] : NaN;
      return Number.isNaN(value) ? "none" : value.toFixed(2);
    }),
  });
  byId("coverage").hidden = run.policies.every((policy) => !policy.coverage);
  const paint = () => { lost.paint(); coverage.paint(); };
  onChange(["head"], paint);
  return paint;
}

function lostOf(policy) {
  const cycles = policy.steps.length + 1;
  return policy.lost.subarray(state.head * cycles, (state.head + 1) * cycles);
}

/** Which cycle position t lies in: 0 until the first eviction. */
function cycleOf(policy, t) {
  let cycle = 0;
  while (cycle < policy.steps.length && t > policy.steps[cycle]) cycle += 1;
  return cycle;
}

const niceTop = (values) => Math.max(0.01, 1.08 * values.reduce((a, b) => Math.max(a, b), 0));

function lowest() {
  let low = 0;
  for (const policy of run.policies) {
    if (policy.coverage) for (const v of ofHead(policy.coverage, state.head)) if (v < low) low = v;
  }
  return low;
}

function readAll(t, value) {
  return `at ${count(t)}: ${run.policies.map((policy, i) => `${policyName(i)} ${value(policy)}`).join("; ")}`;
}

function eachPolicy(pen, draw) {
  run.policies.forEach((policy, i) => {
    pen.strokeStyle = legible(policy.colour);
    pen.setLineDash(dashesOf(i));
    draw(policy);
  });
  pen.setLineDash([]);
}

function stepLine(chart, pen, policy) {
  const ends = [-0.5, ...Array.from(policy.steps, (t) => t + 0.5), run.length - 0.5];
  pen.lineWidth = 1.75;
  pen.beginPath();
  let going = false;
  lostOf(policy).forEach((share, i) => {
    if (Number.isFinite(share)) {
      pen[going ? "lineTo" : "moveTo"](chart.x(ends[i]), chart.y(share));
      pen.lineTo(chart.x(ends[i + 1]), chart.y(share));
    }
    going = Number.isFinite(share);
  });
  pen.stroke();
}

function thinLine(chart, pen, policy) {
  const values = ofHead(policy.coverage, state.head);
  pen.lineWidth = 0.9;
  pen.beginPath();
  let going = false;
  values.forEach((v, t) => {
    const there = !Number.isNaN(v);
    if (there) pen[going ? "lineTo" : "moveTo"](chart.x(t), chart.y(v));
    going = there;
  });
  pen.stroke();
}

/** The legend of both plots. Samples are drawn, since a list's style cannot know the dashes. */
function buildLines() {
  const draw = () => byId("lines").replaceChildren(...run.policies.map((policy, i) => {
    const sample = make("canvas", "sample");
    const pen = fit(sample, 28, 10);
    pen.strokeStyle = legible(policy.colour);
    pen.setLineDash(dashesOf(i));
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(0, 5);
    pen.lineTo(28, 5);
    pen.stroke();
    return make("li", "", sample, policyName(i));
  }));
  draw();
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
}

/** Policies side by side, rows in the order in which they first come. */
function buildSummary() {
  const names = [...new Set(run.policies.flatMap((policy) => policy.summary.map(([name]) => name)))];
  byId("summary").hidden = !names.length;
  const cell = (tag, text, scope) => {
    const element = make(tag, "", text);
    if (scope) element.scope = scope;
    return element;
  };
  const head = make("tr", "", cell("td", ""), ...run.policies.map((policy, i) => cell("th", policyName(i), "col")));
  const rows = names.map((name) => make("tr", "", cell("th", name, "row"), ...run.policies.map((policy) => {
    const row = policy.summary.find(([other]) => other === name);
    return cell("td", row ? row[1] : "\u2013");
  })));
  byId("summary").querySelector("table").append(make("thead", "", head), make("tbody", "", ...rows));
}
