// An answer's Markdown as nodes. marked reads it; raw HTML in it is shown as text, pictures as links; then DOMPurify takes away all
// that is not formatting. Nothing of an answer runs, loads or restyles the page, and the page's policy would not let it.

import { Marked } from "./marked.js";
import "./purify.js"; // sets DOMPurify

const TAGS = "a b blockquote br code del em h1 h2 h3 h4 h5 h6 hr i li ol p pre s strong table tbody td th thead tr ul".split(" ");
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text) => text.replace(/[&<>"']/g, (letter) => ENTITIES[letter]);

const reader = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escape(text),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});
const { DOMPurify } = globalThis;
DOMPurify.addHook("afterSanitizeAttributes", (element) => {
  if (element.tagName === "A") Object.assign(element, { target: "_blank", rel: "noopener noreferrer nofollow" });
});

export const markdown = (text) => DOMPurify.sanitize(reader.parse(text), {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["href", "title", "start", "align"],
  ADD_URI_SAFE_ATTR: ["start", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
});
