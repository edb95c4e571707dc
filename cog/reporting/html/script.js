"use strict";
// Tables are sorted by a click on a column title. Without this script they are shown as they are.
document.documentElement.classList.add("scripted");
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function value(row, column) {
  const cell = row.cells[column];
  return column === 0 ? cell.textContent : cell.dataset.v === undefined ? null : Number(cell.dataset.v);
}

function sort(table, column, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  const rows = Array.from(table.tBodies[0].rows, (row) => [value(row, column), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what is missing stays last
    return sign * (column === 0 ? collator.compare(a, b) : a - b);
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
  Array.from(table.tHead.rows[0].cells, (cell, index) =>
    cell.setAttribute("aria-sort", index === column ? direction : "none"));
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const [column, head] of Array.from(table.tHead.rows[0].cells).entries()) {
    const button = head.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => {
      const first = column === 0 ? "ascending" : "descending"; // the best first
      const other = first === "ascending" ? "descending" : "ascending";
      sort(table, column, head.getAttribute("aria-sort") === first ? other : first);
    });
  }
}
