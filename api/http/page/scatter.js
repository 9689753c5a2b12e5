// Points of predicted against actual, on a canvas.

import { onShade, pen } from "./charts.js";

let again = () => {}; // what is shown now
onShade(() => again());

// Pairs (predicted, actual) of several series, in seconds, on one logarithmic scale: some answers are one token, others
// hundreds. The line is where both are equal. The scale's ends are the canvas's label, for who does not see it.
export function scatter(canvas, series, format) {
  const values = Object.values(series).flat(2).filter((v) => v > 0);
  const drawing = values.length ? pen(canvas) : null;
  if (!drawing) return;
  again = () => scatter(canvas, series, format);
  const { made, width, height, colour } = drawing;
  const [least, most] = [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
  canvas.ariaLabel = `seconds predicted (across) and actual (up), from ${format(least)} to ${format(most)}`;
  const [left, right, top, bottom] = [48, width - 8, 6, height - 18];
  const part = (v) => Math.log(Math.max(v, least) / least) / Math.log(most / least);
  const x = (v) => left + part(v) * (right - left);
  const y = (v) => bottom - part(v) * (bottom - top);
  const line = (...points) => {
    made.beginPath();
    points.forEach(([across, up]) => made.lineTo(across, up));
    made.stroke();
  };
  made.strokeStyle = colour("--line");
  made.fillStyle = colour("--quiet");
  const ticks = [-3, -2, -1, 0, 1, 2, 3].flatMap((n) => [10 ** n, 3 * 10 ** n]).filter((v) => v > least && v < most);
  for (const tick of ticks) {
    line([x(tick), top], [x(tick), bottom]);
    line([left, y(tick)], [right, y(tick)]);
    made.textAlign = "center";
    made.fillText(format(tick), x(tick), height - 4);
    made.textAlign = "right";
    made.fillText(format(tick), left - 5, y(tick) + 4);
  }
  made.strokeStyle = made.fillStyle;
  line([x(least), y(least)], [x(most), y(most)]);
  made.fillText("predicted →", right - 4, bottom - 5);
  made.textAlign = "left";
  made.fillText("↑ actual", left + 5, top + 10);
  let at = left + 64;
  Object.entries(series).forEach(([name, points], n) => {
    made.fillStyle = colour(["--one", "--two"][n]);
    made.fillText(name, at, top + 10);
    at += made.measureText(name).width + 12;
    made.globalAlpha = 0.6;
    for (const [predicted, actual] of points) {
      made.beginPath();
      made.arc(x(predicted), y(actual), 2.5, 0, 7);
      made.fill();
    }
    made.globalAlpha = 1;
  });
}
