const filters = document.querySelector(".filters");
const claims = [...document.querySelectorAll("details.one")];

filters.addEventListener("click", ({ target: button }) => {
  if (button.id === "open-all") {
    const opens = claims.some((claim) => !claim.hidden && !claim.open);
    for (const claim of claims) claim.open = opens && !claim.hidden;
    button.textContent = opens ? "close all" : "open all";
  } else if (button.matches("[data-verdict]")) {
    for (const other of filters.querySelectorAll("[data-verdict]")) other.ariaPressed = String(other === button);
    for (const claim of claims) claim.hidden = ![claim.dataset.verdict, ""].includes(button.dataset.verdict);
  }
});
filters.hidden = false;

// A link to a claim opens it, also from another page.
function openLinked() {
  const linked = document.getElementById(location.hash.slice(1));
  if (!linked?.matches("details.one")) return;
  linked.hidden = false;
  linked.open = true;
  linked.scrollIntoView();
}
addEventListener("hashchange", openLinked);
openLinked();
