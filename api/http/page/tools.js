// What the parts of the page share: making nodes, and numbers as people read them.

export const $ = (id) => document.getElementById(id);

export const node = (tag, attributes = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
};

// What a figure of the page says: all places that are marked with its name.
export const show = (name, text) => document.querySelectorAll(`[data-of=${name}]`).forEach((place) => (place.textContent = text));

export const bytes = (n) => {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024 || unit === "GiB") return `${n >= 100 || unit === "B" || Number.isInteger(n) ? Math.round(n) : n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
};

export const seconds = (n) => (n < 1 ? `${Math.round(n * 1000)} ms` : `${n.toFixed(1)} s`);
