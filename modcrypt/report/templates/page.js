"use strict";
// What all pages share: a theme button, sortable tables, and buttons that copy digests. Without it,
// a page is complete, and follows the theme of the system.
(() => {
function makeButton(className, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = className;
  button.textContent = text;
  return button;
}

// --- light and dark: the choice lasts as long as the page, because files may not store it ---------

const theme = document.getElementById("theme"), root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

function chooseTheme(choice) {
  if (choice) root.dataset.theme = choice;
  else delete root.dataset.theme;
  theme.textContent = `Theme: ${choice || "as system"}`;
}

theme.addEventListener("click", () => {
  const order = dark.matches ? ["", "light", "dark"] : ["", "dark", "light"];
  chooseTheme(order[(order.indexOf(root.dataset.theme || "") + 1) % order.length]);
});
chooseTheme("");
theme.hidden = false;

// --- tables: rows are sorted inside their group ---------------------------------------------------

const compareTexts = new Intl.Collator("en", {numeric: true}).compare;

function readNumber(cell) {
  const given = cell.dataset.value ?? cell.querySelector("data")?.value ?? cell.textContent;
  return given.trim() ? Number(given.replaceAll(",", "")) : -Infinity;
}

function sortTable(table, head) {
  const column = head.cellIndex, isNumber = head.classList.contains("n");
  const up = head.ariaSort === "descending" || (!head.ariaSort && !isNumber);
  for (const one of head.parentNode.cells) one.ariaSort = null;
  head.ariaSort = up ? "ascending" : "descending";
  const read = isNumber ? readNumber : (cell) => cell.textContent.trim();
  const compare = isNumber ? (a, b) => (a > b) - (a < b) : compareTexts;
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.matches(".group, .more"));
    const keyed = rows.map((row) => [read(row.cells[column]), row]);
    keyed.sort(([a], [b]) => (up ? 1 : -1) * compare(a, b));
    const before = body.querySelector(":scope > .group");
    const sorted = keyed.map(([, row]) => row);
    if (before) before.after(...sorted);
    else body.prepend(...sorted);
  }
}

for (const table of document.querySelectorAll(".sortable")) {
  if (![...table.tBodies].some((body) => body.rows.length > 1)) continue;
  for (const head of table.tHead.rows[0].cells) {
    if (!head.textContent.trim()) continue;
    const button = makeButton("", head.textContent.trim());
    button.addEventListener("click", () => sortTable(table, head));
    head.replaceChildren(button);
  }
}

// --- digests: a click on their text selects all of it, a button copies it -------------------------

for (const code of document.querySelectorAll(".hash")) {
  const button = makeButton("copy", "");
  button.title = "Copy the whole value";
  button.setAttribute("aria-label", `Copy ${code.textContent.slice(0, 12)}…`);
  code.after(button);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.(".copy");
  if (!button) return;
  const text = button.previousElementSibling.textContent;
  getSelection().selectAllChildren(button.previousElementSibling);  // to copy by hand if need be
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    return;
  }
  button.classList.add("done");
  document.getElementById("said").textContent = `Copied ${text.slice(0, 12)}…`;
  setTimeout(() => button.classList.remove("done"), 2000);
});
})();
