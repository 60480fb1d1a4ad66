// Layers by heads: the share of queries that are global. A click explores a head.

function buildFrequency() {
  const figure = byId("frequency");
  const plot = figure.querySelector(".plot");
  const canvas = figure.querySelector("canvas");
  const output = figure.querySelector("output");
  const [rows, columns] = [run.layers.length, run.num_heads];
  const known = run.frequency.filter((share) => !Number.isNaN(share));
  const most = Math.max(0.01, known.reduce((a, b) => Math.max(a, b), 0));
  const [left, top, below] = [44, 4, 54];
  let cell = { width: 1, height: 1 };
  let over = null; // {row, column} under the pointer
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Heat map of layers and heads; choose a head with the select above");

  const indexOf = (row, column) =>
    run.heads.findIndex((head) => head.layer === run.layers[row] && head.head === column);

  function paint() {
    const width = plot.clientWidth;
    if (!width) return;
    cell.width = Math.min(40, (width - left - 4) / columns);
    cell.height = Math.max(5, Math.min(22, cell.width, 420 / rows));
    const height = top + rows * cell.height + below;
    plot.style.height = `${height}px`;
    const pen = fit(canvas, width, height);
    const box = (row, column) => [left + column * cell.width, top + row * cell.height, cell.width, cell.height];
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const share = run.frequency[row * columns + column];
        const [x, y, w, h] = box(row, column);
        pen.fillStyle = Number.isNaN(share) ? colours.prompt : mix(colours.cold, colours.hot, Math.sqrt(share / most));
        const gap = Math.min(w, h) > 6 ? 1 : 0;
        pen.fillRect(x, y, w - gap, h - gap);
        if (Number.isNaN(share)) {
          pen.strokeStyle = colours.soft;
          pen.beginPath();
          pen.moveTo(x + 2, y + h - 3);
          pen.lineTo(x + w - 3, y + 2);
          pen.stroke();
        }
      }
    }
    for (const head of run.heads) outline(pen, box(run.layers.indexOf(head.layer), head.head), 1);
    const chosen = run.heads[state.head];
    outline(pen, box(run.layers.indexOf(chosen.layer), chosen.head), 3);
    labels(pen, height);
  }

  function outline(pen, [x, y, w, h], thick) {
    pen.strokeStyle = colours.paper;
    pen.lineWidth = thick + 2;
    if (thick > 1) pen.strokeRect(x - 0.5, y - 0.5, w, h);
    pen.strokeStyle = colours.ink;
    pen.lineWidth = thick;
    pen.strokeRect(x - 0.5, y - 0.5, w, h);
  }

  function labels(pen, height) {
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    pen.fillStyle = colours.soft;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const down = Math.ceil(14 / cell.height);
    run.layers.forEach((layer, row) => {
      if (row % down === 0) pen.fillText(layer, left - 6, top + (row + 0.5) * cell.height);
    });
    pen.textAlign = "center";
    const across = Math.ceil(22 / cell.width);
    const bottom = top + rows * cell.height;
    for (let column = 0; column < columns; column += across) {
      pen.fillText(column, left + (column + 0.5) * cell.width, bottom + 10);
    }
    pen.textAlign = "left";
    pen.fillText("head", left, bottom + 24);
    pen.save();
    pen.translate(10, top + (rows * cell.height) / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText("layer", 0, 0);
    pen.restore();
    const [x, y, wide] = [left, height - 18, 120];
    for (let i = 0; i < wide; i++) {
      pen.fillStyle = mix(colours.cold, colours.hot, Math.sqrt(i / (wide - 1)));
      pen.fillRect(x + i, y, 1, 8);
    }
    pen.fillStyle = colours.soft;
    pen.fillText(`0 to ${percent(most)} of queries global`, x + wide + 8, y + 4);
  }

  function find(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - left) / cell.width);
    const row = Math.floor((event.clientY - box.top - top) / cell.height);
    return row >= 0 && row < rows && column >= 0 && column < columns ? { row, column } : null;
  }

  function tell() {
    const chosen = run.heads[state.head];
    const { row, column } = over ?? { row: run.layers.indexOf(chosen.layer), column: chosen.head };
    const name = headName({ layer: run.layers[row], head: column });
    const can = indexOf(row, column) < 0 ? " (not among those that can be explored)" : "";
    output.textContent = `${name}: ${percent(run.frequency[row * columns + column])} of queries global${can}`;
    canvas.style.cursor = over && !can ? "pointer" : "";
  }

  canvas.addEventListener("pointermove", (event) => { over = find(event); tell(); });
  canvas.addEventListener("pointerleave", () => { over = null; tell(); });
  canvas.addEventListener("click", (event) => {
    const place = find(event);
    const i = place ? indexOf(place.row, place.column) : -1;
    if (i >= 0) change({ head: i });
  });
  onChange(["head"], () => { paint(); tell(); });
  new ResizeObserver(() => { paint(); tell(); }).observe(plot);
  return paint;
}
