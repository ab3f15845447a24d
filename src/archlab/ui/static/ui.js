// Behavior that HTML alone cannot give: numbers of the box under the pointer, keys of the search, undo, copy, sliders,
// and pages that change while something trains.
"use strict";

// Return the row of numbers of a box. Boxes of two kinds of layers have the same part, so the frame around the box
// tells them apart.
function rowOf(box) {
  const shape = box.querySelector("rect"), y = +shape.getAttribute("y"), x = +shape.getAttribute("x");
  const frames = [...box.closest("svg").querySelectorAll("rect.frame")];
  const frame = frames.find((f) => {
    const left = +f.getAttribute("x"), top = +f.getAttribute("y");
    return x >= left && x <= left + +f.getAttribute("width") && y >= top && y <= top + +f.getAttribute("height");
  });
  const part = box.dataset.part ?? shape.dataset.part;
  const keys = frame ? [`${frame.dataset.part}/${part}`, part] : [part];
  return [...document.querySelectorAll("tr[data-key]")].find((row) => keys.includes(row.dataset.key));
}

function showPart(event) {
  const box = event.target.closest?.(".diagram .box, .diagram .inside"), place = document.getElementById("part");
  if (!box || !place) return;
  const row = rowOf(box);
  const title = box.querySelector("text")?.textContent ?? "";
  if (!row) { place.textContent = `${title}: no parameters`; return; }
  const cells = [...row.querySelectorAll("td")].filter((cell) => cell.textContent);
  place.textContent = `${row.querySelector("th").textContent}: ` + cells.map((cell) =>
    `${cell.dataset.label.toLowerCase()} ${cell.textContent}`).join(" · ");
}

function prepare() {
  for (const box of document.querySelectorAll(".diagram .box")) {
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", [...box.querySelectorAll("text")].map((text) => text.textContent).join(", "));
  }
  // The picture as a whole is a group of boxes that can be focused.
  document.querySelector(".diagram svg")?.setAttribute("role", "group");
}

// Addresses of the configs before each change, in this tab. The browser's history cannot hold them, because htmx
// replaces its states.
const address = () => location.pathname + location.search;
const earlier = () => JSON.parse(sessionStorage.getItem("earlier") ?? "[]");
const keep = (addresses) => sessionStorage.setItem("earlier", JSON.stringify(addresses.slice(-100)));
let here = address();
function remember() {
  keep([...earlier(), here]);
  here = address();
}
document.addEventListener("htmx:pushedIntoHistory", remember);
window.addEventListener("popstate", () => { here = address(); });

// Return to the config before the latest change. A refused value has changed no config.
function undo() {
  if (document.getElementById("problem").textContent) return location.reload();
  const others = earlier().filter((one) => one.split("?")[0] === location.pathname);
  while (others.at(-1) === address()) others.pop();
  const previous = others.pop();
  keep(others);
  if (previous) location.assign(previous);
}

// "/" moves to the search, Escape closes its results, and the arrow keys move through them.
document.addEventListener("keydown", (event) => {
  const search = document.getElementById("search"), found = document.getElementById("found");
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  if (event.key === "/" && !typing) { event.preventDefault(); search.focus(); }
  if (event.key === "Escape") found.replaceChildren();
  const stops = [search, ...found.querySelectorAll("a")], at = stops.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (at < 0 || !stops[at + step]) return;
  event.preventDefault();
  stops[at + step].focus();
});
// htmx listens when the page is complete. What was typed before is searched then.
document.addEventListener("DOMContentLoaded", () => {
  const search = document.getElementById("search");
  if (search.value) search.dispatchEvent(new Event("input"));
});
document.addEventListener("pointerover", showPart);
document.addEventListener("focusin", showPart);
document.addEventListener("click", async (event) => {
  if (event.target.id === "undo") undo();
  if (event.target.id === "reset") remember();
  const link = event.target.closest?.("[data-copy]");
  if (!link) return;
  event.preventDefault();
  await navigator.clipboard.writeText(await (await fetch(link.href)).text());
  link.textContent = "Copied";
});
document.addEventListener("input", (event) => {
  const { power, follows } = event.target.dataset ?? {};
  if (power === undefined) return;
  const output = event.target.parentElement.querySelector("output");
  const isBack = follows !== undefined && event.target.value === event.target.defaultValue;
  output.value = isBack ? output.defaultValue : `${(2 ** event.target.value).toLocaleString("en")} ${power}`.trim();
  event.target.setAttribute("aria-valuetext", output.value);
});
// A number and the slider beside it follow each other. A logarithmic slider is at the power of ten.
document.addEventListener("input", ({ target }) => {
  const slider = target.dataset.number ? target : document.querySelector(`[data-number="${target.id}"]`);
  if (!slider) return;
  const number = document.getElementById(slider.dataset.number), isLog = "log" in slider.dataset;
  if (target !== slider) slider.value = isLog ? Math.log10(number.value) : number.value;
  else number.value = isLog ? Number((10 ** slider.value).toPrecision(3)) : slider.value;
});
// The name of a field and its value are sent together.
document.addEventListener("change", (event) => {
  const { add, value } = event.target.form?.elements ?? {};
  const isOne = add && value && [add, value].includes(event.target);
  if (isOne && !(add.value && value.value)) event.stopPropagation();
}, true);
// A slider that was never moved follows the model, so its value does not belong in the link.
document.addEventListener("htmx:configRequest", (event) => {
  for (const slider of document.querySelectorAll("input[data-follows]"))
    if (slider.value === slider.defaultValue) delete event.detail.parameters[slider.name];
});
// A newer change replaces the request of an older one. htmx logs everything that has an `error`; this is none.
document.addEventListener("htmx:beforeRequest", ({ detail }) => {
  const { xhr } = detail, { onabort } = xhr;
  xhr.onabort = (event) => { detail.error = ""; onabort.call(xhr, event); };
});
// A screen that takes longer than a moment shows that it is being computed.
let waiting;
function showWaiting(event) {
  const link = event.target.closest?.("a[href]");
  const address = link && new URL(link.getAttribute("href"), location).href;  // `href` of a link in a chart is no string
  const leaves = event.type === "submit" ? !event.target.matches("[hx-get]")
    : link && !link.matches("[download], [data-copy], [target]") && address.split("#")[0] !== location.href.split("#")[0];
  if (event.defaultPrevented || !leaves || event.ctrlKey || event.metaKey || event.shiftKey) return;
  waiting = setTimeout(() => { document.getElementById("waiting").textContent = "Computing …"; }, 300);
}
document.addEventListener("click", showWaiting);
document.addEventListener("submit", showWaiting);
addEventListener("pageshow", () => { clearTimeout(waiting); document.getElementById("waiting").textContent = ""; });
// Details that are open stay open when the screen changes.
let opened = [];
document.addEventListener("htmx:beforeSwap", () => {
  opened = [...document.querySelectorAll("#main details[open] > summary")].map((summary) => summary.textContent);
});
document.addEventListener("htmx:afterSwap", () => {
  for (const summary of document.querySelectorAll("#main summary"))
    if (opened.includes(summary.textContent)) summary.parentElement.open = true;
});
document.addEventListener("htmx:afterSettle", prepare);
document.addEventListener("DOMContentLoaded", prepare);
// A study or a run: the server sends its whole state again whenever it changes.
document.addEventListener("DOMContentLoaded", () => {
  const live = document.querySelector("[data-source]");
  if (!live) return;
  const source = new EventSource(live.dataset.source);
  source.onmessage = (event) => {
    const open = [...live.querySelectorAll("details")].map((details) => details.open);
    live.innerHTML = event.data;
    live.querySelectorAll("details").forEach((details, i) => { details.open = open[i] ?? details.open; });
  };
  source.onerror = () => {
    for (const button of live.querySelectorAll("button")) button.disabled = true;
    document.getElementById("waiting").textContent = "The server does not answer, so this page is old.";
  };
  source.onopen = () => { document.getElementById("waiting").textContent = ""; };  // the state follows
  addEventListener("pagehide", () => source.close());
});
