// Values over time on canvases: a time axis, and under the pointer the moment and its values, marked in all charts at once.

const STEPS = [15, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600]; // seconds between two ticks
const COLOURS = ["--one", "--two", "--three", "--four", "--bad", "--quiet"];
const AXIS = 30; // pixels below the plot, for times and names
const SIDE = 4;
const charts = [];
let pointed = null; // the moment under the pointer, in seconds since 1970

export const clock = (at, short = false) =>
  new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(short ? {} : { second: "2-digit" }), hour12: false });

// What was painted keeps its colors when the screen turns dark or light: paint it again.
const dark = matchMedia("(prefers-color-scheme: dark)");
export const onShade = (draw) => dark.addEventListener("change", draw);
onShade(() => charts.filter((chart) => chart.times.length).forEach((chart) => chart.draw()));

// Of a canvas that is drawn anew, or null where it has no size.
export function pen(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width) return null;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const made = canvas.getContext("2d");
  made.scale(ratio, ratio);
  made.font = "11px system-ui, sans-serif";
  const style = getComputedStyle(document.documentElement);
  return { made, width, height, colour: (name) => style.getPropertyValue(name) };
}

// The round number at the top of an axis: the first of 1, 2, 5, 10, ... that is not below the value; of bytes, in their units.
export function roundTop(value, binary) {
  let unit = 1;
  while (binary && value / unit > 512) unit *= 1024;
  const ten = 10 ** Math.floor(Math.log10(Math.max(value / unit, 1e-9)));
  return unit * ten * [1, 2, 5, 10].find((n) => n * ten >= (value / unit) * (1 - 1e-9));
}

export class Chart {
  // format: a value as people read it. stacked: shares of a whole, one above the other, in place of lines. binary: bytes.
  constructor(canvas, format, { stacked = false, binary = false } = {}) {
    Object.assign(this, { canvas, format, stacked, binary, times: [], lines: [], from: 0, to: 1, step: 1 });
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    canvas.after(this.tip);
    canvas.addEventListener("pointermove", (event) => point(this.moment(event.offsetX), this));
    canvas.addEventListener("pointerleave", () => point(null, this));
    charts.push(this);
  }

  // lines: {name: [a value, or null, for each of the times]}. from, to: the ends of the axis; step: seconds of a row.
  show(times, lines, { from, to, step }) {
    Object.assign(this, { times, lines: Object.entries(lines), from, to, step });
    const last = times.length - 1;
    this.canvas.ariaLabel = this.lines.map(([name, points]) => `${name} ${this.told(points[last])}`).join(", ");
    this.draw();
  }

  told(value) {
    return value === null || value === undefined ? "none" : this.format(value);
  }

  x(at) {
    return SIDE + ((at - this.from) / (this.to - this.from)) * (this.canvas.clientWidth - 2 * SIDE);
  }

  moment(x) {
    return this.from + ((x - SIDE) / (this.canvas.clientWidth - 2 * SIDE)) * (this.to - this.from);
  }

  draw() {
    const drawing = pen(this.canvas);
    if (!drawing) return;
    const { made, width, height, colour } = drawing;
    const bottom = height - AXIS;
    this.axis(made, width, bottom, colour);
    const sums = this.stacked ? this.times.map((_, i) => this.lines.reduce((sum, [, points]) => sum + (points[i] || 0), 0)) : [];
    const most = Math.max(1e-9, ...sums, ...this.lines.flatMap(([, points]) => points.filter((v) => v !== null)));
    const top = roundTop(most, this.binary);
    const y = (v) => bottom - (v / top) * (bottom - 14);
    if (this.stacked) this.fill(made, y, colour);
    else this.stroke(made, y, colour);
    made.fillStyle = colour("--quiet");
    if (most > 1e-9) made.fillText(this.format(top), SIDE, 11);
    this.names(made, height, colour);
    this.mark(made, bottom, colour);
  }

  axis(made, width, bottom, colour) {
    made.strokeStyle = colour("--line");
    made.fillStyle = colour("--quiet");
    made.textAlign = "center";
    const span = this.to - this.from;
    const every = STEPS.find((step) => (span / step) * 64 <= width) ?? STEPS[STEPS.length - 1];
    const zone = new Date(this.to * 1000).getTimezoneOffset() * 60;
    made.beginPath();
    made.moveTo(SIDE, bottom);
    made.lineTo(width - SIDE, bottom);
    for (let at = Math.ceil((this.from - zone) / every) * every + zone; at <= this.to; at += every) {
      made.moveTo(this.x(at), 14);
      made.lineTo(this.x(at), bottom + 3);
      const half = made.measureText(clock(at, every >= 60)).width / 2;
      made.fillText(clock(at, every >= 60), Math.min(Math.max(this.x(at), half), width - half), bottom + 13);
    }
    made.stroke();
    made.textAlign = "left";
  }

  stroke(made, y, colour) {
    made.lineWidth = 1.8;
    this.lines.forEach(([, points], n) => {
      made.strokeStyle = colour(COLOURS[n % COLOURS.length]);
      made.beginPath();
      let before = null; // when the last point that was drawn was
      points.forEach((value, i) => {
        if (value === null) { before = null; return; }
        const at = this.times[i];
        const gap = before === null || at - before > 2.5 * this.step;
        gap ? made.moveTo(this.x(at), y(value)) : made.lineTo(this.x(at), y(value));
        if (gap) made.lineTo(this.x(at) + 1, y(value)); // a point alone is seen, too
        before = at;
      });
      made.stroke();
    });
    made.lineWidth = 1;
  }

  fill(made, y, colour) {
    this.times.forEach((at, i) => {
      const next = this.times[i + 1]; // a row that is missing is no gap, as for lines
      const wide = this.x(next - at <= 2.5 * this.step ? next : at + this.step) - this.x(at) + 0.5;
      let under = 0;
      this.lines.forEach(([, points], n) => {
        const over = under + (points[i] || 0);
        made.fillStyle = colour(["--one", "--two", "--line"][n]);
        made.fillRect(this.x(at), y(over), wide, y(under) - y(over));
        under = over;
      });
    });
  }

  names(made, height, colour) {
    let at = SIDE;
    this.lines.forEach(([name], n) => {
      made.fillStyle = colour(this.stacked ? ["--one", "--two", "--line"][n] : COLOURS[n % COLOURS.length]);
      made.fillRect(at, height - 10, 8, 8);
      made.fillStyle = colour("--quiet");
      made.fillText(name, at + 11, height - 3);
      at += made.measureText(name).width + 22;
    });
  }

  mark(made, bottom, colour) {
    if (pointed === null || pointed < this.from || pointed > this.to) return;
    made.strokeStyle = colour("--quiet");
    made.beginPath();
    made.moveTo(this.x(pointed), 0);
    made.lineTo(this.x(pointed), bottom);
    made.stroke();
  }

  // What was at the moment that is pointed at: the row that holds it, or the nearest within two.
  tell() {
    let nearest = -1;
    this.times.forEach((at, i) => { if (nearest < 0 || Math.abs(at - pointed) < Math.abs(this.times[nearest] - pointed)) nearest = i; });
    if (nearest < 0 || Math.abs(this.times[nearest] - pointed) > 2 * this.step) return "";
    const values = this.lines.map(([name, points]) => `${name} ${this.told(points[nearest])}`);
    return [clock(this.times[nearest], this.step >= 60), ...values].join("\n");
  }
}

function point(at, chart) {
  pointed = at;
  for (const one of charts) one.draw();
  const text = at === null ? "" : chart.tell();
  chart.tip.hidden = !text;
  chart.tip.textContent = text;
  const x = at === null ? 0 : chart.x(at);
  const wide = chart.canvas.clientWidth;
  chart.tip.style.left = x < wide / 2 ? `${x + 8}px` : "auto";
  chart.tip.style.right = x < wide / 2 ? "auto" : `${wide - x + 8}px`;
}
