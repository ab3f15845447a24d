const side = document.querySelector(".side");
const field = document.getElementById("find");
const list = document.getElementById("found");
const status = document.getElementById("n-found");
const menu = side.querySelector(".menu");
const { pages, kinds, entries } = JSON.parse(document.getElementById("search-index").textContent);
const MOST = 12;
let chosen = -1;

const plain = (text) => text.toLowerCase().normalize("NFKC").replace(/[^\p{L}\p{N}]+/gu, "");
const words = (text) => text.toLowerCase().normalize("NFKC").split(/[^\p{L}\p{N}]+/u).filter(Boolean);
// A field is also found by the last part of its path.
const last = (title) => (/^[\w.]+$/.test(title) && title.includes(".") ? [title.split(".").pop()] : []);
const spellings = entries.map(([title, , , , others]) => [title, ...last(title), ...others].map((text) => ({ text, plain: plain(text), words: words(text) })));

// 0 for the spelling itself, 1 for its beginning, 2 for the beginnings of its words, 3 for a part of it.
function rank(spelling, typed, parts) {
  if (spelling.plain === typed) return 0;
  if (spelling.plain.startsWith(typed)) return 1;
  if (parts.length && parts.every((part) => spelling.words.some((word) => word.startsWith(part)))) return 2;
  return typed.length > 2 && spelling.plain.includes(typed) ? 3 : Infinity;
}

function search(text) {
  const typed = plain(text);
  if (!typed) return [];
  const parts = words(text);
  const found = entries.map((entry, i) => {
    const ranks = spellings[i].map((spelling) => rank(spelling, typed, parts));
    const best = Math.min(...ranks);
    return { entry, best, spelled: spellings[i][ranks.indexOf(best)]?.text };
  });
  return found.filter(({ best }) => best < Infinity).sort((a, b) => a.best - b.best || a.entry[3] - b.entry[3]);
}

function show() {
  const found = search(field.value);
  const shown = found.slice(0, MOST).map(({ entry: [title, page, anchor, kind], spelled }, i) => {
    const item = document.createElement("li");
    item.id = "found-" + i;
    item.role = "option";
    item.ariaSelected = "false";
    const link = document.createElement("a");
    link.href = pages[page] + (anchor && "#" + anchor);
    link.tabIndex = -1;
    link.textContent = title;
    const about = document.createElement("small");
    about.textContent = (title.endsWith(spelled) ? "" : spelled + ", ") + kinds[kind];
    link.append(about);
    item.append(link);
    return item;
  });
  list.replaceChildren(...shown);
  list.hidden = !shown.length;
  field.ariaExpanded = String(shown.length > 0);
  status.textContent = !field.value.trim() ? "" : found.length > MOST ? `${MOST} of ${found.length} results` : found.length ? "" : "nothing found";
  choose(shown.length ? 0 : -1);
}

function choose(i) {
  chosen = i;
  [...list.children].forEach((item, place) => (item.ariaSelected = String(place === i)));
  if (i < 0) field.removeAttribute("aria-activedescendant");
  else field.setAttribute("aria-activedescendant", "found-" + i);
  list.children[i]?.scrollIntoView({ block: "nearest" });
}

function clear() {
  field.value = "";
  show();
}

field.addEventListener("input", show);
field.addEventListener("keydown", (event) => {
  const n = list.children.length;
  if (event.key === "Escape") clear();
  else if (event.key === "Enter" && chosen >= 0) list.children[chosen].querySelector("a").click();
  else if (event.key === "ArrowDown" && n) choose((chosen + 1) % n);
  else if (event.key === "ArrowUp" && n) choose((chosen + n - 1) % n);
  else return;
  event.preventDefault();
});
list.addEventListener("click", clear);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  field.focus();
});
menu.addEventListener("click", () => {
  menu.ariaExpanded = String(side.classList.toggle("open"));
});
side.querySelector(".find").hidden = menu.hidden = false;
side.classList.add("folded");
side.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
