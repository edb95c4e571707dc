"use strict";
// Sorting, filtering, and the choice of a table. Without this script all tables are shown as they are.
(() => {
  const $ = (id) => document.getElementById(id);
  document.documentElement.classList.add("scripted");

  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const said = $("said");

  function value(row, column) {
    const cell = row.cells[column];
    if (column === 0) return cell.querySelector(".name").textContent;
    return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  }

  function sort(table, column, direction) {
    const sign = direction === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => [value(row, column), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // what is missing stays last
      return sign * (column === 0 ? collator.compare(a, b) : a - b);
    });
    body.append(...rows.map(([, row]) => row));
    Array.from(table.tHead.rows[0].cells).forEach((head, index) => {
      head.setAttribute("aria-sort", index === column ? direction : "none");
    });
    const title = table.tHead.rows[0].cells[column].textContent;
    if (said) said.textContent = `Sorted by ${title}, ${direction}`;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      const button = head.querySelector("button");
      button.disabled = false;
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const first = column === 0 ? "ascending" : "descending";
        const other = column === 0 ? "descending" : "ascending";
        sort(table, column, now === first ? other : first);
      });
    });
  }

  // Cells keep the accuracy in data-v; a baseline only changes what they show, so the order stays valid.
  const minus = (text) => text.replace("-", "\u2212");
  function show(baseline) {
    for (const table of document.querySelectorAll("table.sortable:not(.experiments)")) {
      const base = Array.from(table.tBodies[0].rows).find((row) => row.dataset.key === baseline);
      for (const row of table.tBodies[0].rows) {
        Array.from(row.cells).forEach((cell, column) => {
          const mean = column && cell.querySelector("b");
          if (!mean) return;
          // They belong to the accuracy, not to the difference.
          for (const part of cell.querySelectorAll("i, .sd")) part.hidden = Boolean(baseline);
          const own = Number(cell.dataset.v);
          if (!baseline) {
            mean.textContent = own.toFixed(1);
          } else if (!base || base.cells[column].dataset.v === undefined) {
            mean.textContent = "?";
          } else {
            const points = own - Number(base.cells[column].dataset.v);
            const text = points.toFixed(1);
            mean.textContent = Number(text) > 0 ? `+${text}` : Number(text) < 0 ? minus(text) : "0.0";
          }
        });
      }
    }
  }

  const view = $("view");
  const filter = $("filter");
  const shown = $("shown");

  function apply() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const section of document.querySelectorAll(".view")) {
      const chosen = section.id === `view-${view.value}`;
      section.hidden = !chosen;
      let count = 0;
      const rows = section.querySelectorAll("tbody tr");
      for (const row of rows) {
        const text = row.cells[0].textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        count += !row.hidden;
      }
      if (chosen) {
        const models = rows.length === 1 ? "model" : "models";
        shown.textContent = words.length ? `${count} of ${rows.length} ${models}` : `${rows.length} ${models}`;
      }
    }
  }

  if (view) {
    view.addEventListener("change", apply);
    filter.addEventListener("input", apply);
    view.form.addEventListener("submit", (event) => event.preventDefault());
    $("baseline").addEventListener("change", (event) => show(event.target.value));
    view.form.reset(); // browsers restore choices on reload
    apply();
  }

  // A link to something inside closed details opens them; printing opens those of the class "print".
  function reveal() {
    let target = null;
    try {
      target = location.hash ? $(decodeURIComponent(location.hash.slice(1))) : null;
    } catch {
      return;
    }
    for (let node = target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
    }
    if (target) target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  let closed = []; // until printing is over
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details.print:not([open])")) {
      details.open = true;
      closed.push(details);
    }
  });
  addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
    closed = [];
  });
})();
