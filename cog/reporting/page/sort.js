"use strict";
// Tables are sorted by a click on a column title. Without this script they are shown as they are.
function sort(table, column, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  const rows = Array.from(table.tBodies[0].rows, (row) => [row.cells[column].textContent.trim(), row]);
  const number = (text) => parseFloat(text);
  rows.sort(([a], [b]) => {
    if (column === 0) return sign * a.localeCompare(b, "en", { numeric: true });
    if (isNaN(number(a)) || isNaN(number(b))) return isNaN(number(a)) - isNaN(number(b)); // missing ones last
    return sign * (number(a) - number(b));
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
      const first = column === 0 || head.dataset.first === "low" ? "ascending" : "descending"; // the best first
      const other = first === "ascending" ? "descending" : "ascending";
      sort(table, column, head.getAttribute("aria-sort") === first ? other : first);
    });
  }
}
