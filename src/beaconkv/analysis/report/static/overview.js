// The strip beside the text: all of it in one view, with arcs from the chosen token to what it looks at.

function buildOverview() {
  const root = byId("overview");
  const canvas = root.querySelector("canvas");
  const strip = 12;
  let waiting = false;

  function paint() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const [width, height] = [root.clientWidth, root.clientHeight];
      if (!width) return;
      const pen = fit(canvas, width, height);
      const y = (t) => ((t + 0.5) / run.length) * height;
      pen.fillStyle = colours.prompt;
      pen.fillRect(0, 0, strip, height);
      pen.fillStyle = colours.rule;
      pen.fillRect(0, y(run.prompt_length - 0.5), width, 1);
      marks(pen, y);
      const [first, last] = inView();
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 1.5;
      pen.strokeRect(0.75, y(first), strip - 1.5, Math.max(3, y(last) - y(first)));
      arcs(pen, y, width);
    });
  }

  function marks(pen, y) {
    const global = ofHead(run.is_global, state.head);
    pen.fillStyle = colours.global;
    pen.globalAlpha = 0.7;
    for (let t = 0; t < run.length; t++) if (global[t]) pen.fillRect(2, y(t), strip - 4, 1);
    pen.globalAlpha = 1;
  }

  function arcs(pen, y, width) {
    const found = targetsOf(state.head, state.token, droppedOf(state.policy, state.head));
    const from = y(state.token);
    for (const target of [...found].reverse()) {
      const to = y(target.t);
      // Far targets bulge out more: near ones stay readable beside them.
      const bulge = strip + 8 + (width - strip - 12) * Math.sqrt((state.token - target.t) / run.length);
      pen.strokeStyle = pen.fillStyle = target.gone ? colours.gone : colours.target;
      pen.setLineDash(target.gone ? [3, 2] : []);
      pen.lineWidth = 1 + 3 * Math.sqrt(target.weight);
      pen.globalAlpha = 0.85;
      pen.beginPath();
      pen.moveTo(strip, from);
      pen.bezierCurveTo(bulge, from, bulge, to, strip, to);
      pen.stroke();
      pen.globalAlpha = 1;
      pen.fillRect(0, to - 1, strip + 3, 2.5);
    }
    pen.setLineDash([]);
    pen.fillStyle = colours.ink;
    pen.beginPath();
    pen.arc(strip, from, 3.5, 0, 7);
    pen.fill();
  }

  root.addEventListener("click", (event) => {
    const box = root.getBoundingClientRect();
    const t = Math.floor(((event.clientY - box.top) / box.height) * run.length);
    reveal(Math.max(0, Math.min(run.length - 1, t)));
  });
  byId("text").addEventListener("scroll", paint, { passive: true });
  onChange(["head", "policy", "token"], paint);
  new ResizeObserver(paint).observe(root);
  return paint;
}
