// Making nodes. Text only ever becomes a text node: nothing here, or anywhere in the page, parses
// HTML.

/** element("p", {class: "a", onclick: f, "aria-label": "b"}, child, "text", ...) */
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  set(node, properties);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function set(node, properties) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
}

const kSvg = "http://www.w3.org/2000/svg";

// Paths of 24 x 24 icons, drawn as lines.
const kIcons = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 12.5l4.5 4.5L19 7.5",
  retry: "M19 12a7 7 0 1 1-2-4.9M19 4v4h-4",
  edit: "M5 19l.8-3.6L16 5.2l2.8 2.8L8.6 18.2zM14 7.2l2.8 2.8",
  trash: "M5 7h14M10 7V5h4v2M7 7l.8 12h8.4L17 7",
  settings: "M4 8h9M17 8h3M15 6v4M4 16h3M11 16h9M9 14v4",
  pulse: "M3 12h4l2.5-6 4 12L16 12h5",
  close: "M6 6l12 12M18 6L6 18",
  down: "M12 5v14M6 13l6 6 6-6",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
};

export function icon(name) {
  const svg = document.createElementNS(kSvg, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(kSvg, "path");
  path.setAttribute("d", kIcons[name]);
  svg.append(path);
  return svg;
}

export function iconButton(name, label, onclick, properties = {}) {
  return element(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...properties },
    icon(name),
  );
}

export function byId(id) {
  return document.getElementById(id);
}

/** What a colour of the style sheet is now ("rgb(1, 2, 3)"), for canvases. */
export function colorOf(name) {
  const probe = element("i", { hidden: true });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
