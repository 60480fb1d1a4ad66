// A plot over the positions of the text. All of them share the chosen token: a line at it, and values under the plot.

const MARGIN = { left: 52, right: 12, top: 8, bottom: 36 };

/** Round steps: about `wanted` of them in `span`. */
function tickStep(span, wanted) {
  const raw = span / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= raw) ?? 10);
}

/** Size a canvas to its place on the page, and wipe it; pixels of the device, coordinates of CSS. */
function fit(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.setLineDash([]);
  [pen.lineWidth, pen.globalAlpha] = [1, 1];
  return pen;
}

class Chart {
  /**
   * @param id of a figure that holds a .plot and an output
   * @param options name: for screen readers; xLabel, yLabel; yLimits(): [low, high]; yText(v); draw(chart, pen);
   *   read(t, v): the text of the plot at position t, at height v (undefined: of the chosen token)
   */
  constructor(id, options) {
    Object.assign(this, options);
    this.figure = byId(id);
    this.plot = this.figure.querySelector(".plot");
    this.output = this.figure.querySelector("output");
    this.base = make("canvas");
    this.over = make("canvas");
    this.plot.append(this.base, this.over);
    this.at = null; // where the pointer is: {t, v}
    this.stale = false; // what the next frame paints again: all, or the line at the token only
    this.waiting = false;
    // Sizes are kept: asking for them while the token changes would make the browser lay out the page each time.
    [this.wide, this.tall] = [0, 0];
    new ResizeObserver(() => {
      [this.wide, this.tall] = [this.plot.clientWidth, this.plot.clientHeight];
      this.paint();
    }).observe(this.plot);
    this.listen();
  }

  listen() {
    const { plot } = this;
    Object.entries({ tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": run.length - 1 })
      .forEach(([key, value]) => plot.setAttribute(key, value));
    plot.setAttribute("aria-label", `${this.name}; arrow keys move the chosen token`);
    const place = (event) => {
      const box = plot.getBoundingClientRect();
      const t = Math.round(this.toT(event.clientX - box.left));
      return { t: Math.max(0, Math.min(run.length - 1, t)), v: this.toV(event.clientY - box.top) };
    };
    plot.addEventListener("pointermove", (event) => { this.at = place(event); this.soon(); });
    plot.addEventListener("pointerleave", () => { this.at = null; this.soon(); });
    plot.addEventListener("click", (event) => { pin(place(event).t); reveal(state.token); });
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -50, PageUp: 50,
        Home: -run.length, End: run.length }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      pin(state.token + move);
      reveal(state.token);
    });
    onChange(["token"], () => this.soon());
  }

  get width() { return Math.max(1, this.wide - MARGIN.left - MARGIN.right); }
  get height() { return Math.max(1, this.tall - MARGIN.top - MARGIN.bottom); }
  x(t) { return MARGIN.left + ((t + 0.5) / run.length) * this.width; }
  y(v) { return MARGIN.top + (1 - (v - this.low) / (this.high - this.low)) * this.height; }
  toT(x) { return ((x - MARGIN.left) / this.width) * run.length - 0.5; }
  toV(y) { return this.low + (1 - (y - MARGIN.top) / this.height) * (this.high - this.low); }

  /** Paint all with the next frame. */
  paint() {
    this.stale = true;
    this.soon();
  }

  /** Paint what has changed with the next frame, however often it is called. */
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (!this.wide) return; // hidden
      if (this.stale) this.paintNow();
      this.mark();
    });
  }

  paintNow() {
    this.stale = false;
    [this.low, this.high] = this.yLimits();
    const pen = fit(this.base, this.wide, this.tall);
    this.axes(pen);
    pen.save();
    pen.beginPath();
    pen.rect(MARGIN.left, MARGIN.top, this.width, this.height);
    pen.clip();
    this.draw(this, pen);
    pen.restore();
  }

  axes(pen) {
    const [left, top] = [MARGIN.left, MARGIN.top];
    const [right, bottom] = [left + this.width, top + this.height];
    pen.fillStyle = colours.prompt;
    pen.fillRect(left, top, (run.prompt_length / run.length) * this.width, this.height);
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    pen.fillStyle = colours.soft;
    if (this.x(run.prompt_length) - left > 50) {
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.fillText("prompt", left + 5, this.low < this.high ? top + 9 : bottom - 9); // the corner with least in it
    }
    pen.strokeStyle = colours.rule;
    pen.lineWidth = 1;
    const line = (x0, y0, x1, y1) => { pen.beginPath(); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke(); };
    const across = tickStep(run.length, this.width / 80);
    pen.textBaseline = "top";
    for (let t = 0; t < run.length; t += across) {
      const x = this.x(t);
      pen.textAlign = x > right - 14 ? "right" : "center";
      line(x, bottom, x, bottom + 4);
      pen.fillText(count(t), x > right - 14 ? right : x, bottom + 6);
    }
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const up = tickStep(Math.abs(this.high - this.low), this.height / 40);
    const [least, most] = [Math.min(this.low, this.high), Math.max(this.low, this.high)];
    for (let v = Math.ceil(least / up) * up; v <= most + up * 1e-6; v += up) {
      const y = Math.round(this.y(v)) + 0.5;
      line(left, y, right, y);
      pen.fillText(this.yText(v), left - 6, y);
    }
    pen.strokeStyle = colours.soft;
    line(left, bottom + 0.5, right, bottom + 0.5);
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    pen.fillText(this.xLabel, left + this.width / 2, bottom + MARGIN.bottom - 4);
    pen.save();
    pen.translate(11, top + this.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(this.yLabel, 0, 0);
    pen.restore();
  }

  /** The line at the token, or at the pointer, and the text of the plot there. */
  mark() {
    const pen = fit(this.over, this.wide, this.tall);
    const line = (t, dashes) => {
      pen.setLineDash(dashes);
      pen.beginPath();
      pen.moveTo(this.x(t), MARGIN.top);
      pen.lineTo(this.x(t), MARGIN.top + this.height);
      pen.stroke();
    };
    pen.strokeStyle = colours.ink;
    line(state.token, []);
    if (this.at) line(this.at.t, [2, 2]);
    const text = this.at ? this.read(this.at.t, this.at.v) : this.read(state.token);
    this.output.textContent = text;
    this.plot.setAttribute("aria-valuenow", state.token);
    this.plot.setAttribute("aria-valuetext", text);
  }
}
