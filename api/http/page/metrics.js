// What Prometheus text says, as numbers.

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
