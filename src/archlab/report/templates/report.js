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
    views[name] = await vegaEmbed(place, fitting, { config, renderer: "svg", actions: false });
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
