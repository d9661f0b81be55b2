// Elements, numbers and links. Recorded text enters the page through text nodes only; nothing here knows the data.
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** An element. `kind` is "tag.class.class"; attributes starting with "on" are listeners, `style` an object. */
function el(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  return furnish(node, attributes, children);
}

/** The same for SVG. */
function svg(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElementNS(SVG_NAMESPACE, tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  return furnish(node, attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A number with fixed decimals; a dash where it is missing. */
function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === "inf") return "∞";
  if (value === "-inf") return "−∞";
  return value.toFixed(digits).replace("-", "−");
}

/** A number with its sign. */
function signed(value, digits = 3) {
  return typeof value === "number" && value > 0 ? `+${num(value, digits)}` : num(value, digits);
}

/** A count with thousands separated. */
function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

/** "1 round", "2 rounds". */
function plural(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

/** A link within the page: a view and its parameters. */
function link(view, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null));
  return `#/${view}${query.size ? `?${query}` : ""}`;
}

function agentName(index) {
  return index < 0 ? "the group" : `Agent ${index + 1}`;
}

function optionColour(index) {
  return `var(--option-${index % 8})`;
}

/** A labelled select; `options` are [value, text] pairs. */
function choice(label, options, value, onchange) {
  const select = el("select", { "aria-label": label, onchange: (event) => onchange(event.target.value) });
  for (const [key, text] of options) select.append(el("option", { value: key, selected: key === value }, text));
  return el("label.choice", {}, el("span", {}, label), select);
}

/** A button that stays pressed. */
function toggle(label, key, pressed, onchange) {
  return el("button.toggle", {
    type: "button",
    "aria-pressed": String(pressed),
    title: `Keyboard: ${key}`,
    onclick: () => onchange(!pressed),
  }, label);
}

function section(title, intro, ...children) {
  return el("section.block", {}, el("h2", {}, title), intro && el("p.intro", {}, intro), ...children);
}
