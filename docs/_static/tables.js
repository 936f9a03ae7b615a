// Wide tables of values with intervals become a list per row on a phone: "column: value".
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    const names = [...table.querySelectorAll("thead tr:last-child th")].map((cell) => cell.textContent.trim());
    const cells = [...table.querySelectorAll("tbody td")];
    if (names.length < 5 || !cells.some((cell) => /\d [[(][-\d]/.test(cell.textContent))) continue;
    table.classList.add("stacked");
    for (const cell of cells) if (cell.textContent.trim()) cell.dataset.column = names[cell.cellIndex];
  }
});
