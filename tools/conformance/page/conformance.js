"use strict";
// Shows the cases of a cell. Text is only ever inserted as text: textContent, never innerHTML.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const detail = document.getElementById("detail"), list = document.getElementById("cases");
let opener = null;

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  return element;
}

const LINK = /https:\/\/github\.com\/[\w./#-]+/;

// A text whose link, if it has one to an issue, can be followed.
function linked(text) {
  const element = make("dd"), found = LINK.exec(text);
  if (!found) {
    element.textContent = text;
    return element;
  }
  const link = make("a", "", found[0]);
  link.href = found[0];
  element.append(text.slice(0, found.index), link, text.slice(found.index + found[0].length));
  return element;
}

function entry(terms, label, value) {
  if (value) terms.append(make("dt", "", label), typeof value === "string" ? linked(value) : value);
}

function preformatted(text) {
  const element = make("dd");
  element.append(make("pre", "", text));
  return element;
}

// A verdict is [kind, detail, reason].
function describe(id, [kind, told, reason], about) {
  const element = make("details"), summary = make("summary"), terms = make("dl");
  summary.append(make("i", `swatch v-${kind.replace(" ", "-")}`), `${id}: ${kind}`);
  if (reason) summary.append(make("span", "tag", "expected"));
  entry(terms, "Case", about.comment);
  entry(terms, "Demanded", about.demands);
  entry(terms, "Reader said", told);
  entry(terms, "Expected", reason);
  for (const number of about.sentences) {
    const sentence = data.sentences[number];
    entry(terms, sentence.id, `“${sentence.quote}”`);
  }
  if (about.bytes) entry(terms, "Bytes", preformatted(about.bytes));
  element.append(summary, terms);
  return element;
}

const WORST = ["fail-open", "crash", "timeout", "wrong rows", "fail-closed", "pass", "not declared"];

function show(button) {
  const [kind, name, client] = button.dataset.open.split("/");
  const verdicts = kind === "g" ? data.verdicts[client] : data.matrix[name][client];
  const ids = kind === "g" ? data.groups[name].cases : Object.keys(verdicts);
  const known = ids.filter((id) => verdicts[id]);
  known.sort((a, b) => WORST.indexOf(verdicts[a][0]) - WORST.indexOf(verdicts[b][0]));
  const title = kind === "g" ? data.groups[name].title : `written by ${data.titles[name]}`;
  detail.querySelector("h3").textContent = `${data.clients[client]}: ${title}`;
  list.replaceChildren(...known.map((id) => describe(id, verdicts[id], data.cases[id])));
  detail.hidden = false;
  opener = button;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-open]");
  if (button) show(button);
  else if (event.target.closest(".close")) close();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close();
});

function close() {
  detail.hidden = true;
  if (opener) opener.focus();
}
})();
