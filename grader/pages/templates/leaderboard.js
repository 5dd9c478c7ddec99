"use strict";
(() => {
  const compare = (kind) => (a, b) =>
    kind === "number" ? Number(a) - Number(b) : a < b ? -1 : a > b ? 1 : 0;

  const sort = (table, column, kind, direction) => {
    const body = table.tBodies[0];
    // The row of an entry's shapes travels with the entry.
    const groups = [];
    for (const row of body.rows) {
      if (row.classList.contains("shapes")) groups[groups.length - 1].push(row);
      else groups.push([row]);
    }
    const order = compare(kind);
    const value = (group) => group[0].cells[column].dataset.value;
    const rank = (group) => Number(group[0].cells[0].dataset.value);
    groups.sort((a, b) => direction * order(value(a), value(b)) || rank(a) - rank(b));
    body.append(...groups.flat());
  };

  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      button.addEventListener("click", () => {
        const ascending = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(table, column, button.dataset.kind, ascending ? 1 : -1);
      });
    });
  }

  const select = document.getElementById("profile");
  if (!select) return;
  const shown = document.getElementById("shown");
  const filter = () => {
    let count = 0;
    for (const part of document.querySelectorAll("[data-profile]")) {
      const visible = !select.value || part.dataset.profile === select.value;
      part.toggleAttribute("hidden", !visible);
      if (visible && part.classList.contains("board")) count += 1;
    }
    shown.textContent = count === 1 ? "1 table" : `${count} tables`;
  };
  select.addEventListener("change", filter);
  filter();
})();
