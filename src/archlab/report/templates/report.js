const read = (id) => JSON.parse(document.getElementById(id).textContent);
const specs = read("specs");
const themes = read("themes");
const dark = matchMedia("(prefers-color-scheme: dark)");
const printed = matchMedia("print");
let views = {};
let chosen = null;

const isFolded = (place) => place.closest("details:not([open])") !== null;

async function draw() {
  const config = themes[dark.matches && !printed.matches ? "dark" : "light"];
  for (const [name, spec] of Object.entries(specs)) {
    const place = document.getElementById("chart-" + name);
    if (isFolded(place)) continue; // it has no width yet
    if (views[name]) views[name].finalize();
    const { below = 0, ...changed } = spec.usermeta?.narrow ?? {};
    const fitting = place.clientWidth < below ? { ...spec, ...changed } : spec;
    views[name] = await vegaEmbed(place, fitting, { config, renderer: "svg", actions: false, logLevel: 1 });  // errors alone
    // A layer without data would be announced as a picture without a name.
    for (const empty of place.querySelectorAll("[role=graphics-symbol]:not([aria-label])")) empty.removeAttribute("role");
  }
  choose(chosen);
}

function choose(arm) {
  chosen = arm;
  for (const button of document.querySelectorAll(".legend button")) {
    button.setAttribute("aria-pressed", String(button.dataset.arm === arm));
  }
  for (const [name, { view }] of Object.entries(views)) {
    if (specs[name].params?.some((param) => param.name === "chosen" && "value" in param)) view.signal("chosen", arm).runAsync();
  }
}

function addSaver(name) {
  const button = document.createElement("button");
  button.className = "save";
  button.type = "button";
  button.textContent = "SVG";
  button.title = "Save this chart as an SVG file";
  button.addEventListener("click", async () => {
    const svg = await views[name].view.background(getComputedStyle(document.documentElement).getPropertyValue("--paper")).toSVG();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
    link.download = name + ".svg";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  document.getElementById("chart-" + name).closest("figure").append(button);
}

for (const name of Object.keys(specs)) addSaver(name);

for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => choose(button.dataset.arm === chosen ? null : button.dataset.arm));
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  });
}
function addFilter(form) {
  const bodies = [...document.getElementById(form.dataset.filters).tBodies];
  const field = form.querySelector("input");
  const apply = () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const body of bodies) {
      const text = (body.textContent + " " + body.dataset.words).toLowerCase();
      body.hidden = !words.every((word) => text.includes(word));
    }
    const shown = bodies.filter((body) => !body.hidden).length;
    form.querySelector("output").textContent = shown + " of " + bodies.length + " models";
  };
  const reveal = () => {
    const target = bodies.find((body) => "#" + body.id === location.hash);
    if (!target) return;
    if (target.hidden) field.value = "", apply();
    target.querySelector("details").open = true;
    target.scrollIntoView({ block: "center" });
  };
  field.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", reveal);
  form.hidden = false;
  reveal();
}

function addSorting(table, form) {
  const headings = [...table.tHead.rows[0].cells];
  const menu = form.querySelector("select"); // for phones, which show no headings
  const key = (body, column) => {
    const cell = body.rows[0].cells[column];
    return cell.dataset.number === undefined ? cell.textContent.trim() : Number(cell.dataset.number);
  };
  const compare = (a, b) => (typeof a === typeof b && typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
  const sort = (column) => {
    const turn = headings[column].getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of headings) other.removeAttribute("aria-sort");
    headings[column].setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
    const known = [], unknown = [];
    for (const body of table.tBodies) (["", "-"].includes(key(body, column)) ? unknown : known).push(body);
    known.sort((a, b) => turn * compare(key(a, column), key(b, column)));
    table.append(...known, ...unknown);
    menu.value = column;
  };
  for (const [column, heading] of headings.entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sort(column));
    menu.add(new Option(heading.textContent, column));
  }
  menu.selectedIndex = -1;
  menu.addEventListener("change", () => sort(menu.value));
  form.querySelector("button").addEventListener("click", () => menu.value && sort(menu.value));
}

for (const form of document.querySelectorAll("form[data-filters]")) {
  addFilter(form);
  addSorting(document.getElementById(form.dataset.filters), form);
}
addEventListener("beforeprint", () => {
  for (const hidden of document.querySelectorAll("details:not([open])")) {
    hidden.open = true;
    addEventListener("afterprint", () => (hidden.open = false), { once: true });
  }
});
for (const folded of document.querySelectorAll("details:has(.chart)")) {
  folded.addEventListener("toggle", () => folded.open && draw());
}
dark.addEventListener("change", draw);
printed.addEventListener("change", draw);
draw();
