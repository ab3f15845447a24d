const read = (id) => JSON.parse(document.getElementById(id).textContent);
const specs = read("specs");
const themes = read("themes");
const dark = matchMedia("(prefers-color-scheme: dark)");
let views = {};
let chosen = null;

async function draw() {
  const config = themes[dark.matches ? "dark" : "light"];
  for (const [name, spec] of Object.entries(specs)) {
    const place = document.getElementById("chart-" + name);
    if (views[name]) views[name].finalize();
    views[name] = await vegaEmbed(place, spec, { config, renderer: "svg", actions: false });
  }
  choose(chosen);
}

function choose(arm) {
  chosen = arm;
  for (const button of document.querySelectorAll(".legend button")) {
    button.setAttribute("aria-pressed", String(button.dataset.arm === arm));
  }
  if (views.curves) views.curves.view.signal("chosen", arm).runAsync();
}

for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => choose(button.dataset.arm === chosen ? null : button.dataset.arm));
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  });
}
dark.addEventListener("change", draw);
draw();
