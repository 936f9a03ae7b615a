// On a phone, tables that do not fit, and those of values with intervals, become a list per row: "column: value".
function arrange() {
  for (const table of document.querySelectorAll("article table")) {
    const names = [...table.querySelectorAll("thead tr:last-child th")].map((cell) => cell.textContent.trim());
    const cells = [...table.querySelectorAll("tbody td")];
    table.classList.remove("stacked");
    const fits = table.offsetWidth <= table.parentElement.clientWidth;
    if (fits && !(names.length > 4 && cells.some((cell) => /\d [[(][-\d]/.test(cell.textContent)))) continue;
    table.classList.add("stacked");
    for (const cell of cells) {
      const text = cell.textContent.trim();
      if (text) cell.dataset.column = names[cell.cellIndex];
      cell.classList.toggle("prose", cell.cellIndex > 0 && text.length > 40);
    }
  }
}
window.addEventListener("load", arrange);
window.addEventListener("resize", arrange);
