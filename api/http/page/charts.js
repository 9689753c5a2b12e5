// A line chart over the last two minutes, on a canvas; and what Prometheus text says, as numbers.

const KEPT = 120; // points, one a second
const COLOURS = ["--one", "--two", "--line"]; // of bands

export class Chart {
  // names: a line each; colours are the page's own variables
  constructor(canvas, names, format) {
    this.canvas = canvas;
    this.lines = names.map((name) => ({ name, points: [] }));
    this.format = format;
  }

  push(values) {
    this.lines.forEach((line, i) => {
      line.points.push(values[i]);
      if (line.points.length > KEPT) line.points.shift();
    });
    this.draw();
  }

  // Lines that come and go (tenants): what is not named any more falls to zero.
  pushNamed(values) {
    for (const name of Object.keys(values)) {
      if (!this.lines.some((line) => line.name === name)) {
        const length = this.lines.length ? this.lines[0].points.length : 0;
        this.lines.push({ name, points: Array(length).fill(0) });
      }
    }
    this.push(this.lines.map((line) => values[line.name] ?? 0));
  }

  draw() {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name);
    const top = Math.max(1e-9, ...this.lines.flatMap((l) => l.points.filter((p) => p !== null))) * 1.15;
    const [left, bottom] = [4, height - 16];
    const x = (i) => left + (i * (width - left - 4)) / (KEPT - 1);
    const y = (v) => bottom - (v / top) * (bottom - 14);
    pen.strokeStyle = colour("--line");
    pen.beginPath();
    pen.moveTo(left, bottom);
    pen.lineTo(width - 4, bottom);
    pen.stroke();
    pen.fillStyle = colour("--quiet");
    pen.font = "11px system-ui, sans-serif";
    pen.fillText(this.format(top / 1.15), left, 11);
    let at = left;
    this.lines.forEach((line, n) => {
      pen.strokeStyle = pen.fillStyle = colour(["--one", "--two", "--three", "--four"][n % 4]);
      pen.lineWidth = 1.8;
      pen.beginPath();
      let drawn = false;
      const shift = KEPT - line.points.length;
      line.points.forEach((value, i) => {
        if (value === null) { drawn = false; return; }
        drawn ? pen.lineTo(x(i + shift), y(value)) : pen.moveTo(x(i + shift), y(value));
        drawn = true;
      });
      pen.stroke();
      pen.fillText(line.name, at, height - 3);
      at += pen.measureText(line.name).width + 12;
    });
  }
}

// Shares of one whole over time, one above the other; `rows` of sizes, the newest last.
export function bands(canvas, names, rows) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width || !rows.length) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  const style = getComputedStyle(document.documentElement);
  const bottom = height - 16;
  const top = Math.max(1, ...rows.map((row) => row.reduce((a, b) => a + b, 0)));
  const step = (width - 8) / KEPT;
  rows.forEach((row, i) => {
    let under = bottom;
    row.forEach((size, n) => {
      pen.fillStyle = style.getPropertyValue(COLOURS[n]);
      const tall = (size / top) * (bottom - 4);
      pen.fillRect(4 + (KEPT - rows.length + i) * step, under - tall, step + 0.5, tall);
      under -= tall;
    });
  });
  let at = 4;
  names.forEach((name, n) => {
    pen.fillStyle = style.getPropertyValue(COLOURS[n]);
    pen.fillRect(at, height - 11, 8, 8);
    pen.fillStyle = style.getPropertyValue("--quiet");
    pen.fillText(name, at + 12, height - 3);
    at += pen.measureText(name).width + 26;
  });
}

// Pairs (predicted, actual) of several series, in seconds, on one logarithmic scale: some answers are one token, others
// hundreds. The line is where both are equal. The scale's ends are the canvas's label, for who does not see it.
export function scatter(canvas, series, format) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const values = Object.values(series).flat(2).filter((v) => v > 0);
  if (!width || !values.length) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  const style = getComputedStyle(document.documentElement);
  const [least, most] = [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
  canvas.ariaLabel = `seconds predicted (across) and actual (up), from ${format(least)} to ${format(most)}`;
  const [left, right, top, bottom] = [48, width - 8, 6, height - 18];
  const part = (v) => Math.log(Math.max(v, least) / least) / Math.log(most / least);
  const x = (v) => left + part(v) * (right - left);
  const y = (v) => bottom - part(v) * (bottom - top);
  const line = (...points) => {
    pen.beginPath();
    points.forEach(([across, up]) => pen.lineTo(across, up));
    pen.stroke();
  };
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.fillStyle = style.getPropertyValue("--quiet");
  const ticks = [-3, -2, -1, 0, 1, 2, 3].flatMap((n) => [10 ** n, 3 * 10 ** n]).filter((v) => v > least && v < most);
  for (const tick of ticks) {
    line([x(tick), top], [x(tick), bottom]);
    line([left, y(tick)], [right, y(tick)]);
    pen.textAlign = "center";
    pen.fillText(format(tick), x(tick), height - 4);
    pen.textAlign = "right";
    pen.fillText(format(tick), left - 5, y(tick) + 4);
  }
  pen.strokeStyle = pen.fillStyle;
  line([x(least), y(least)], [x(most), y(most)]);
  pen.fillText("predicted →", right - 4, bottom - 5);
  pen.textAlign = "left";
  pen.fillText("↑ actual", left + 5, top + 10);
  let at = left + 64;
  Object.entries(series).forEach(([name, points], n) => {
    pen.fillStyle = style.getPropertyValue(["--one", "--two"][n]);
    pen.fillText(name, at, top + 10);
    at += pen.measureText(name).width + 12;
    pen.globalAlpha = 0.6;
    for (const [predicted, actual] of points) {
      pen.beginPath();
      pen.arc(x(predicted), y(actual), 2.5, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
  });
}

// {name: [{labels, value}]}
export function parse(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const pair of (match[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[pair[1]] = pair[2];
    (found[match[1]] ||= []).push({ labels, value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return found;
}

export const sum = (samples) => (samples || []).reduce((total, s) => total + s.value, 0);

// Counts by upper bound, over all models.
export function buckets(samples) {
  const counts = new Map();
  for (const { labels, value } of samples || []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    counts.set(bound, (counts.get(bound) || 0) + value);
  }
  return [...counts].sort((a, b) => a[0] - b[0]);
}

// The value below which `share` of what came between two looks lies; null when nothing came.
export function quantile(before, after, share) {
  const old = new Map(before);
  const grown = after.map(([bound, count]) => [bound, count - (old.get(bound) || 0)]);
  const total = grown.length ? grown[grown.length - 1][1] : 0;
  if (total <= 0) return null;
  let [low, under] = [0, 0];
  for (const [bound, count] of grown) {
    if (count >= share * total) {
      if (bound === Infinity) return low;
      return low + ((bound - low) * (share * total - under)) / Math.max(1e-9, count - under);
    }
    [low, under] = [bound, count];
  }
  return low;
}
