// The mean distance of each query to its top keys, over the text.

function buildDistance() {
  const chart = new Chart("distance", {
    name: "Mean distance of each query to its top keys",
    xLabel: "position of the query (tokens)",
    yLabel: "mean distance (tokens)",
    yLimits: () => [0, 1.05 * ofHead(run.distance, state.head).reduce((a, v) => (v > a ? v : a), run.local_distance)],
    yText: count,
    draw,
    read: (t) => {
      const i = state.head * run.length + t;
      const kind = run.is_global[i] ? "global" : "local";
      return Number.isNaN(run.distance[i]) ? `at ${count(t)}: unknown`
        : `at ${count(t)} \u201c${inline(run.tokens[t])}\u201d: ${count(Math.round(run.distance[i]))} tokens back, ${kind}`;
    },
  });

  function draw(chart, pen) {
    const distance = ofHead(run.distance, state.head);
    const global = ofHead(run.is_global, state.head);
    for (const kind of [0, 1]) {
      pen.fillStyle = kind ? colours.global : colours.soft;
      const size = kind ? 3 : 2;
      for (let t = 0; t < run.length; t++) {
        if (global[t] === kind && !Number.isNaN(distance[t])) {
          pen.fillRect(chart.x(t) - size / 2, chart.y(distance[t]) - size / 2, size, size);
        }
      }
    }
    pen.strokeStyle = colours.ink;
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(0, chart.y(run.local_distance));
    pen.lineTo(chart.wide, chart.y(run.local_distance));
    pen.stroke();
    pen.fillStyle = colours.ink;
    pen.textAlign = "left";
    pen.textBaseline = "bottom";
    pen.setLineDash([]);
    pen.lineWidth = 4;
    pen.strokeStyle = colours.paper;
    pen.strokeText("global above, local below", chart.x(0) + 6, chart.y(run.local_distance) - 3);
    pen.fillText("global above, local below", chart.x(0) + 6, chart.y(run.local_distance) - 3);
  }

  onChange(["head"], () => chart.paint());
  return () => chart.paint();
}
