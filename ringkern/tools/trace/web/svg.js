// A few lines for what is drawn.
const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Chunks beyond the eighth take the colours again; their numbers tell them apart.
const CHUNK_COLORS = 8;
const chunkClass = (chunk) => `chunk-${chunk % CHUNK_COLORS}`;
