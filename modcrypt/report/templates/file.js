"use strict";
// Draws the parts of a file: a strip of the whole, a grid of row groups by columns, one chunk.
// Text from the file is only ever inserted as text: textContent, never innerHTML.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const tip = at("tip"), grid = at("grid"), detail = at("detail"), whole = at("file");

const NARROW = 3;            // pixels below which a part is joined with an equal neighbour
const MAX_TABLE_COLUMNS = 64, MAX_TABLE_CELLS = 1000;  // beyond, a chunk is a square
const MAX_RANGES = 8;        // ranges of one chunk that are framed and listed
const MAX_FLAGS = 2000;
const MAX_LISTED = 200;      // parts in the table of one chunk

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  return element;
}

// --- numbers and names ---------------------------------------------------------------------------

const exact = (n) => n.toLocaleString("en");
const plural = (n, word) => `${exact(n)} ${word}${n === 1 ? "" : "s"}`;

function human(size) {
  if (size < 1024) return `${size} B`;
  let value = size, unit;
  for (unit of ["KiB", "MiB", "GiB", "TiB", "PiB"]) {
    value /= 1024;
    if (value < 999.95) break;
  }
  return `${value.toLocaleString("en", {minimumFractionDigits: 1, maximumFractionDigits: 1})} ${unit}`;
}

const both = (size) => size < 1024 ? plural(size, "byte") : `${human(size)} (${plural(size, "byte")})`;

const letter = (key) => data.letters[key];

const keyName = (key) =>
  key === -1 ? "none" : key === -2 ? "several" : `${letter(key)} · ${data.keys[key]}`;

function band(name, number, step, count) {
  const last = Math.min(count, (number + 1) * step) - 1, first = number * step;
  return first === last ? `${name} ${first}` : `${name}s ${first}–${last}`;
}
const rowName = (r) => band("row group", r, data.rowStep, data.rowGroups);

function columnName(c) {
  const first = c * data.columnStep;
  const last = Math.min(data.columns.length, first + data.columnStep) - 1;
  return data.columns[first] + (last > first ? ` … ${data.columns[last]}` : "");
}

// --- parts ---------------------------------------------------------------------------------------

function part([start, end, size, kind, state, key, count, row, column, page, lastPage, mixed]) {
  return {start, end, size, kinds: [data.kinds[kind]], state, key, count, row, column, page, lastPage,
          bytes: mixed ? byState(mixed) : {[data.states[state]]: size}};
}

const byState = (sizes) =>
  Object.fromEntries(data.states.map((state, n) => [state, sizes[n]]).filter(([, size]) => size));

// Similar parts are joined while the first of them is too narrow to be visible.
function joined(parts, width) {
  const total = parts.reduce((sum, one) => sum + one.size, 0) || 1;
  const narrow = (one) => one.size / total * width < NARROW;
  const out = [];
  parts.forEach((one, number) => {
    const last = out.at(-1);
    const alike = last && last.state === one.state && last.key === one.key && last.row === one.row
      && last.end === one.start && data.states[one.state] !== "fault";
    const leftOver = alike && narrow(one) && number === parts.length - 1;
    if (alike && (narrow(last) || leftOver)) join(last, one);
    else out.push({...one, kinds: [...one.kinds], bytes: {...one.bytes}});
  });
  return out;
}

function join(into, one) {
  into.end = one.end;
  into.size += one.size;
  into.count += one.count;
  into.kinds = [...new Set([...into.kinds, ...one.kinds])];
  if (into.column !== one.column) into.column = null;
  into.page = into.page ?? one.page;
  into.lastPage = one.lastPage ?? into.lastPage;
  add(into.bytes, one.bytes);
}

function add(sums, bytes) {
  for (const state in bytes) sums[state] = (sums[state] || 0) + bytes[state];
}

function address(one) {
  const words = [];
  if (one.row !== null && one.row !== undefined) words.push(`row group ${one.row}`);
  if (one.column !== null && one.column !== undefined) {
    words.push(`column ${data.columns[one.column] ?? one.column}`);
  }
  if (one.page !== null && one.page !== undefined && one.column !== null) {
    words.push(one.page === one.lastPage ? `page ${one.page}` : `pages ${one.page}–${one.lastPage}`);
  }
  return words.join(", ");
}

const stateWords = (bytes) => data.states.filter((state) => state in bytes)
  .map((state) => Object.keys(bytes).length > 1 ? `${state} ${human(bytes[state])}` : state).join(", ");

function facts(one) {
  const rows = [
    ["Bytes", span(one)],
    ["Size", both(one.size)],
    ["State", stateWords(one.bytes)],
    ["Key", keyName(one.key)],
  ];
  if (one.count > 1) rows.unshift(["Parts", `${exact(one.count)}, drawn as one`]);
  return rows;
}

// Joined parts need not be adjacent.
const span = (one) => (one.end - one.start > one.size ? "within " : "") + formatRanges([one]);

const title = (one) => one.kinds.slice(0, 3).join(", ") + (one.kinds.length > 3 ? ", …" : "");

function partElement(one, pixels) {
  const apart = pixels > 6 ? " apart" : "";
  const states = data.states.filter((state) => state in one.bytes);
  const fill = states.length > 1 ? "mixed" : `s-${states[0]}`;
  const element = make("i", `part ${fill} ${one.key >= 0 ? `k${one.key % 24}` : ""}${apart}`);
  for (const state of states.length > 1 ? states : []) {  // one layer for each state
    const layer = make("i", `s-${state}`);
    layer.style.flex = `${one.bytes[state]} 0 0`;
    element.append(layer);
  }
  element.shown = one;
  element.dataset.start = one.start;
  element.dataset.end = one.end;
  return element;
}

function flag(finding, position) {
  const mark = make("b", `mark flag ${finding.fault ? "fault" : "warning"}`);
  mark.style.left = `${position * 100}%`;
  return mark;
}

// Return the position of a byte along parts drawn side by side, from 0 to 1.
function position(parts, byte) {
  const total = parts.reduce((sum, one) => sum + one.size, 0) || 1;
  let passed = 0;
  for (const one of parts) {
    if (byte >= one.start && byte < one.end) {
      return (passed + (byte - one.start) / (one.end - one.start) * one.size) / total;
    }
    passed += one.size;
  }
  return null;
}

const marksIn = (r, c) => inCell.get(`${r},${c}`) || [];
const findings = data.findings.map(([fault, start, end, row, column]) => ({fault, start, end, row, column}));
const cells = data.rows.map((row) => row.map((parts) => parts.map(part)));

// Flags mark findings, and faulty parts without a finding.
const touch = (one, other) => one.start !== null
  && one.start < Math.max(other.end, other.start + 1) && Math.max(one.end, one.start + 1) > other.start;
const flagged = [...findings];
for (const one of [...cells.flat(2), ...data.file.map(part)]) {
  if (data.states[one.state] !== "fault" || flagged.length > MAX_FLAGS) continue;
  if (!flagged.some((other) => touch(other, one))) flagged.push({...one, fault: true});
}
const inCell = new Map();
for (const finding of flagged) {
  if (typeof finding.row !== "number" || typeof finding.column !== "number") continue;
  const place = `${Math.floor(finding.row / data.rowStep)},${Math.floor(finding.column / data.columnStep)}`;
  inCell.set(place, [...(inCell.get(place) || []), finding]);
}

// --- the strip of the whole file -----------------------------------------------------------------

// Clamp offsets, so that forged ones do not draw beyond the end of the file.
const share = (byte) => Math.min(1, byte / (data.size || 1)) * 100;

function place(element, {start, end}) {
  element.style.left = `${share(start)}%`;
  element.style.width = `${share(end) - share(start)}%`;
}

function section(one) {
  if (one.row !== null && one.row !== undefined) {
    return /index|bloom/.test(one.kinds[0]) ? "indexes" : `row group ${one.row}`;
  }
  return (/footer|crypto/.test(one.kinds[0]) && "footer") || (one.kinds[0] === "modules" && "modules");
}

function drawFile() {
  const width = whole.clientWidth - 40;
  const strip = make("div", "strip"), names = make("div", "sections"), axis = make("div", "axis");
  const parts = joined(data.file.map(part), width);
  const sections = [];
  let last = null;
  for (const one of parts) {
    const pixels = (one.end - one.start) / (data.size || 1) * width;
    const element = partElement(one, pixels);
    place(element, one);
    element.tabIndex = one === parts[0] ? 0 : -1;
    strip.append(element);
    const name = section(one);
    if (name && last?.name === name) last.end = one.end;
    else if (name) sections.push(last = {name, start: one.start, end: one.end});
  }
  for (const {name, start, end} of sections) {
    const label = make("span", "", name);
    if ((end - start) / (data.size || 1) * width < name.length * 7 + 8) continue;
    place(label, {start, end});
    names.append(label);
  }
  for (const one of flagged) {
    if (one.start !== null) strip.append(flag(one, share(one.start) / 100));
  }
  const step = tickStep();
  const ticks = Array.from({length: Math.floor(data.size * .92 / step) + 1}, (_, n) => n * step);
  for (const byte of [...ticks, data.size]) {
    const tick = make("span", "", human(byte).replace(".0 ", " "));
    tick.style.left = `${share(byte)}%`;
    axis.append(tick);
  }
  strip.setAttribute("role", "group");
  strip.setAttribute("aria-label", "Parts of the file; the arrow keys go from one to the next");
  whole.replaceChildren(names, strip, axis);
}

function tickStep() {
  for (let unit = 1; ; unit *= 1024) {
    for (const n of [1, 2, 5, 10, 20, 50, 100, 200, 500]) {
      if (n * unit * 7 > data.size) return n * unit;
    }
  }
}

// Frames bytes in the strip of the whole file.
function frame(ranges, className) {
  for (const old of whole.querySelectorAll(`.range.${className}`)) old.remove();
  for (const {start, end} of ranges) {
    if (start === null) continue;
    const range = make("b", `range ${className}`);
    place(range, {start, end});
    whole.querySelector(".strip").append(range);
  }
}

// Return the byte ranges of parts; adjacent parts form one range.
function extents(parts) {
  const ranges = [];
  for (const {start, end} of parts) {
    if (ranges.length && ranges.at(-1).end === start) ranges.at(-1).end = end;
    else ranges.push({start, end});
  }
  return ranges.slice(0, MAX_RANGES);
}

const formatRanges = (ranges) => ranges.map(({start, end}) => `${exact(start)}–${exact(end)}`).join(", ");

// --- the grid ------------------------------------------------------------------------------------

const height = cells.length, width = height ? cells[0].length : 0;
const dense = width > MAX_TABLE_COLUMNS || width * height > MAX_TABLE_CELLS;
const bytesOf = (parts) => parts.reduce((sum, one) => sum + one.size, 0);
const largest = Math.max(1, ...cells.map((row) => Math.max(...row.map(bytesOf))));
const cellAt = (r, c) => grid.querySelector(`[data-cell="${r},${c}"]`);

function chips(keys) {
  const box = make("span");
  for (const key of keys.slice(0, 4)) box.append(make("span", `key k${key % 24}`, letter(key)), " ");
  if (keys.length > 4) box.append(`+${keys.length - 4}`);
  if (!keys.length) box.append(make("span", "key", "no key"));
  return box;
}

const keysOf = (parts) => [...new Set(parts.map((one) => one.key))].filter((key) => key >= 0);

function rowHead(tag, r) {
  const bytes = cells[r].reduce((sum, parts) => sum + bytesOf(parts), 0);
  const head = make(tag, "", rowName(r)[0].toUpperCase() + rowName(r).slice(1));
  const size = make("small", "", human(bytes));
  size.title = plural(bytes, "byte");
  head.append(size);
  const marks = [...Array(width).keys()].flatMap((c) => marksIn(r, c));
  if (marks.length) {
    const marked = make("small", "", exact(marks.length));
    marked.prepend(make("b", `flag ${marks.some((one) => one.fault) ? "" : "warning"}`));
    marked.title = `${exact(marks.length)} flagged in this row`;
    head.append(marked);
  }
  return head;
}

function fillBand(box, parts, marks, pixels) {
  for (const one of joined(parts, pixels)) {
    const element = partElement(one, one.size / (bytesOf(parts) || 1) * pixels);
    element.style.flex = `${one.size} 0 0`;
    box.append(element);
  }
  for (const one of marks) {
    const where = one.start === null ? 0 : position(parts, one.start);
    if (where !== null) box.append(flag(one, where));
  }
}

function tableCell(r, c, pixels) {
  const parts = cells[r][c], cell = make("td", parts.length ? "cell" : "cell empty");
  if (!parts.length) {
    cell.append(make("div", "amount", "–"));
  } else {
    const box = make("div", "band"), amount = make("div", "amount", human(bytesOf(parts)));
    if (marksIn(r, c).some((one) => one.fault)) cell.classList.add("faulty");
    fillBand(box, parts, marksIn(r, c), pixels);
    const bar = make("i");
    bar.style.width = `${bytesOf(parts) / largest * 100}%`;
    amount.append(bar);
    cell.append(box, amount);
  }
  cell.setAttribute("role", "gridcell");
  return cell;
}

function drawTable() {
  const table = make("table"), head = make("thead"), body = make("tbody"), names = make("tr");
  const pixels = Math.max(56, (grid.clientWidth - 136) / width - 12);
  table.setAttribute("role", "grid");
  table.setAttribute("aria-labelledby", "grid-title");
  table.style.setProperty("--columns", width);
  names.append(make("th"));
  for (let c = 0; c < width; c++) {
    const name = make("th");
    name.scope = "col";
    const text = make("bdi", "name", columnName(c));
    text.title = columnName(c);
    name.append(text, chips(keysOf(cells.flatMap((row) => row[c]))));
    names.append(name);
  }
  for (let r = 0; r < height; r++) {
    const row = make("tr"), name = rowHead("th", r);
    name.scope = "row";
    row.append(name);
    for (let c = 0; c < width; c++) row.append(asCell(tableCell(r, c, pixels), r, c));
    body.append(row);
  }
  head.append(names);
  table.append(head, body);
  grid.replaceChildren(table);
}

function asCell(cell, r, c) {
  cell.dataset.cell = `${r},${c}`;
  cell.tabIndex = r || c ? -1 : 0;
  return cell;
}

function square(r, c) {
  const parts = cells[r][c], marks = marksIn(r, c);
  const keys = keysOf(parts);
  const state = Math.min(...parts.map((one) => one.state));
  const cell = make("i", parts.length
    ? `cell part s-${data.states[state]} ${keys.length ? `k${keys[0] % 24}` : ""}` : "cell part empty");
  if (marks.length) cell.classList.add("marked", marks.some((one) => one.fault) ? "faulty" : "warned");
  cell.setAttribute("role", "gridcell");
  return cell;
}

function drawSquares() {
  const blocks = cells.map((row, r) => {
    const block = make("div", "block"), squares = make("div", "squares");
    block.setAttribute("role", "row");
    const name = rowHead("div", r);
    name.setAttribute("role", "rowheader");
    squares.append(...row.map((_, c) => asCell(square(r, c), r, c)));
    squares.setAttribute("role", "presentation");
    block.append(name, squares);
    return block;
  });
  grid.setAttribute("role", "grid");
  grid.setAttribute("aria-labelledby", "grid-title");
  grid.replaceChildren(...blocks);
}

function drawGrid() {
  if (!height) {
    at("grid-title").hidden = grid.hidden = true;
    return;
  }
  at("how").textContent = dense
    ? "Each square is one chunk, in column order, and shows its worst state. Choose one to see its parts."
    : "In each cell, the parts of one chunk lie side by side, pages first, their widths to scale; the line below compares the chunk with the largest. Parts too narrow to draw are joined with equal neighbours. Choose a cell to see it enlarged.";
  if (dense) drawSquares();
  else drawTable();
}

// --- one chunk, enlarged -------------------------------------------------------------------------

let chosen = null;

function openChunk(r, c) {
  const parts = cells[r][c];
  chosen = [r, c];
  detail.hidden = false;
  const close = make("button", "close", "Close");
  close.type = "button";
  close.onclick = closeChunk;
  const name = make("h3", "", rowName(r) + ", column" + (data.columnStep > 1 ? "s " : " "));
  name.append(make("bdi", "", columnName(c)), `: ${both(bytesOf(parts))}`);
  const box = make("div", "band");
  detail.replaceChildren(name, close, box, listing(parts));
  fillBand(box, parts, marksIn(r, c), box.clientWidth);
  box.querySelectorAll(".part").forEach((one, number) => { one.tabIndex = number ? -1 : 0; });
}

function listing(parts) {
  const table = make("table"), head = make("tr"), body = make("tbody");
  for (const name of ["Part", "Page", "Bytes", "Size", "State", "Key"]) {
    const cell = make("th", /Page|Bytes|Size/.test(name) ? "n" : "", name);
    cell.scope = "col";
    head.append(cell);
  }
  for (const one of parts.slice(0, MAX_LISTED)) {
    const row = make("tr"), state = make("td"), size = make("td", "n", human(one.size));
    size.title = plural(one.size, "byte");
    state.append(make("span", `swatch s-${data.states[one.state]}`), stateWords(one.bytes));
    const pages = one.page ?? "";
    row.append(
      make("td", "", title(one) + (one.count > 1 ? ` (${exact(one.count)} parts)` : "")),
      make("td", "n", pages !== "" && one.lastPage !== one.page ? `${pages}–${one.lastPage}` : `${pages}`),
      make("td", "n", span(one)), size, state,
      make("td", "", keyName(one.key)));
    row.shown = one;
    row.dataset.start = one.start;
    body.append(row);
  }
  if (parts.length > MAX_LISTED) {
    const row = make("tr", "more"), cell = make("td", "", `and ${exact(parts.length - MAX_LISTED)} more`);
    cell.colSpan = 6;
    row.append(cell);
    body.append(row);
  }
  const top = make("thead");
  top.append(head);
  table.append(top, body);
  return table;
}

function closeChunk() {
  const cell = chosen && cellAt(...chosen);
  if (detail.contains(document.activeElement)) cell?.focus();
  detail.hidden = true;
  chosen = null;
  clear();
}

// --- choosing ------------------------------------------------------------------------------------

function clear() {
  for (const one of document.querySelectorAll(".hit, .across, .chosen")) {
    one.classList.remove("hit", "across", "chosen");
  }
  frame([], "fixed");
}

function hit(box, {start, end}) {
  if (start === null) return;
  for (const one of box.querySelectorAll(".part[data-start], tr[data-start]")) {
    if (touch({start, end}, one.shown)) one.classList.add("hit");
  }
}

function choose(r, c, range = null) {
  clear();
  const parts = cells[r]?.[c];
  if (!parts?.length) return;
  const cell = cellAt(r, c);
  cell.classList.add("hit");
  openChunk(r, c);
  frame(range && range.start !== null ? [range] : extents(parts), "fixed");
  if (range) {
    hit(cell, range);
    hit(detail, range);
  }
  showCell();
}

// Scroll margins keep the cell clear of the chunk's panel and of the table's headings.
function showCell() {
  grid.querySelector(".cell.hit")?.scrollIntoView({block: "nearest", inline: "nearest"});
}

function chooseFinding(number) {
  const one = findings[number];
  if (one.row !== null && one.column !== null && cells.length) {
    choose(Math.floor(one.row / data.rowStep), Math.floor(one.column / data.columnStep), one);
  } else {
    closeChunk();
    frame([one], "fixed");
  }
  hit(whole, one);
  const row = document.querySelector(`[data-finding="${number}"]`);
  row.classList.add("chosen");
  at("drawing").scrollIntoView();
  showCell();
  at("said").textContent = one.start === null
    ? "This finding has no place in the file."
    : `Bytes ${exact(one.start)} to ${exact(one.end)} are marked in the drawing.`;
}

function chooseColumn(column) {
  clear();
  const c = Math.floor(column / data.columnStep);
  for (let r = 0; r < height; r++) cellAt(r, c).classList.add("across");
  cellAt(0, c)?.scrollIntoView({block: "center", inline: "center"});
  cellAt(0, c)?.focus({preventScroll: true});
}

// --- the tooltip ---------------------------------------------------------------------------------

function cellFacts(r, c) {
  const parts = cells[r][c], bytes = {};
  if (!parts.length) return [["Bytes", "nothing is known about this chunk"]];
  for (const one of parts) add(bytes, one.bytes);
  const found = marksIn(r, c).filter((one) => findings.includes(one)).length;
  const count = parts.reduce((sum, one) => sum + one.count, 0);
  return [
    ["Bytes", formatRanges(extents(parts))],
    ["Size", both(bytesOf(parts))],
    ["Parts", exact(count)],
    ["State", stateWords(bytes)],
    ["Key", keysOf(parts).slice(0, 4).map(keyName).join(", ") || "none"],
    ...(found ? [["Findings", exact(found)]] : []),
  ];
}

function describe(element) {
  if (element.shown) {
    return [title(element.shown), address(element.shown), facts(element.shown)];
  }
  const [r, c] = element.dataset.cell.split(",").map(Number);
  return [columnName(c), rowName(r), cellFacts(r, c)];
}

function showTip(element, x, y) {
  const [name, where, rows] = describe(element), list = make("dl");
  for (const [term, text] of rows) list.append(make("dt", "", term), make("dd", "", text));
  tip.replaceChildren(make("strong", "", name), ...(where ? [make("div", "", where)] : []), list);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const below = y + 18 + box.height < innerHeight;
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 12))}px`;
  tip.style.top = `${Math.max(8, below ? y + 18 : y - box.height - 12)}px`;
  const [r, c] = (element.dataset.cell || "").split(",").map(Number);
  frame(extents(element.shown ? [element.shown] : cells[r][c]), "hover");
}

function hideTip() {
  tip.hidden = true;
  frame([], "hover");
}

const drawn = (event) => event.target.closest?.(".part[data-start], .cell");
const partOf = (event) => event.target.closest(".part")?.shown || null;

document.addEventListener("pointermove", (event) => {
  const element = drawn(event);
  if (element) showTip(element, event.clientX, event.clientY);
  else if (!tip.hidden && event.pointerType === "mouse") hideTip();
});
document.addEventListener("focusin", (event) => {
  const element = drawn(event);
  if (!element) return hideTip();
  const [name, where, rows] = describe(element);
  element.setAttribute("aria-label", [name, where, ...rows.map((row) => row.join(" "))].join("; "));
  if (!element.matches(":focus-visible")) return;
  const box = element.getBoundingClientRect();
  showTip(element, box.left, box.bottom - 8);
});
document.addEventListener("focusout", hideTip);
document.addEventListener("scroll", hideTip, {capture: true, passive: true});

// --- keyboard and clicks -------------------------------------------------------------------------

function goTo(from, to) {
  if (!to) return;
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

function keyInGrid(event, cell) {
  const [r, c] = cell.dataset.cell.split(",").map(Number);
  const to = {
    ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1], ArrowUp: [r - 1, c], ArrowDown: [r + 1, c],
    Home: [r, 0], End: [r, width - 1],
  }[event.key];
  if (to) goTo(cell, cellAt(...to));
  else if (event.key === "Enter" || event.key === " ") choose(r, c);
  else return;
  event.preventDefault();
}

function keyInStrip(event, element) {
  const parts = [...element.parentNode.querySelectorAll(".part")];
  const number = parts.indexOf(element);
  const to = {
    ArrowLeft: number - 1, ArrowRight: number + 1, Home: 0, End: parts.length - 1,
  }[event.key];
  if (to === undefined) return;
  goTo(element, parts[to]);
  event.preventDefault();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (!tip.hidden) hideTip();
    else if (!detail.hidden) closeChunk();
  } else if (event.target.dataset?.cell) keyInGrid(event, event.target);
  else if (event.target.shown) keyInStrip(event, event.target);
});
grid.addEventListener("click", (event) => {
  const cell = event.target.closest(".cell");
  if (cell) choose(...cell.dataset.cell.split(",").map(Number), partOf(event));
});
whole.addEventListener("click", (event) => {
  const one = partOf(event);
  if (!one || one.row === null || one.row === undefined || one.column === null) return;
  choose(Math.floor(one.row / data.rowStep), Math.floor(one.column / data.columnStep), one);
});
at("findings").addEventListener("click", (event) => {
  const row = event.target.closest("[data-finding]");
  if (row && !getSelection().toString()) chooseFinding(Number(row.dataset.finding));
});
at("columns").addEventListener("click", (event) => {
  const button = event.target.closest("[data-column]");
  if (button && height) chooseColumn(Number(button.dataset.column));
});

// --- finding a column ----------------------------------------------------------------------------

const filter = at("filter"), columnRows = [...document.querySelectorAll("#columns tbody tr")];
filter.closest("p").hidden = columnRows.length < 16;
filter.addEventListener("input", () => {
  const wanted = filter.value.toLowerCase();
  let found = 0;
  for (const row of columnRows) {
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
    found += !row.hidden;
  }
  at("found").textContent = wanted ? `${exact(found)} of ${exact(columnRows.length)}` : "";
});

// --- begin ---------------------------------------------------------------------------------------

const coverage = at("coverage");
for (const row of document.querySelectorAll(".states tbody tr")) {
  const bytes = Number(row.cells[3].dataset.value), swatch = row.querySelector(".swatch");
  if (!bytes) continue;
  const piece = make("i", swatch.className.replace("swatch", ""));
  piece.style.flex = `${bytes} 0 0`;
  piece.title = `${swatch.parentNode.textContent}: ${both(bytes)}`;
  coverage.append(piece);
}

function draw() {
  whole.hidden = !data.file.length;
  if (data.file.length) drawFile();
  drawGrid();
}

draw();
let drawnWidth = innerWidth, timer;
addEventListener("resize", () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    if (innerWidth === drawnWidth) return;
    drawnWidth = innerWidth;
    const was = chosen;
    if (dense) drawFile();
    else draw();
    if (was) choose(...was);
  }, 150);
});
})();
