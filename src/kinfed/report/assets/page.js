// Unpacks plotly, draws the figures in the light or dark look of the reader, and sorts tables.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");

function look() {
  const [ink, line] = dark.matches ? ["#e2e2e2", "#3a3d42"] : ["#222", "#e6e6e6"];
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, title: { standoff: 8 } };
  const clear = "rgba(0,0,0,0)";
  return { layout: {
    paper_bgcolor: clear, plot_bgcolor: clear, xaxis: axis, yaxis: axis,
    font: { family: "system-ui, -apple-system, 'Segoe UI', sans-serif", size: 13, color: ink },
    modebar: { bgcolor: clear, color: line, activecolor: ink },
    hoverlabel: { bgcolor: dark.matches ? "#2a2d32" : "#fff", font: { color: ink } },
  } };
}

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// A method that is hidden in one panel of a section is hidden in the others that have it.
function together(figure) {
  const others = [...figure.closest(".panels").querySelectorAll(".figure")].filter((other) => other !== figure);
  figure.on("plotly_restyle", ([change, traces]) => {
    if (!("visible" in change) || figure.silent) return;
    const values = [change.visible].flat();
    const shown = new Map(traces.map((at, i) => [figure.data[at].legendgroup, values[i % values.length]]));
    for (const other of others) {
      for (const [group, visible] of shown) {
        const own = other.data.flatMap((trace, at) => (group && trace.legendgroup === group ? [at] : []));
        if (!own.length) continue;
        other.silent = true;
        Plotly.restyle(other, { visible }, own).then(() => { other.silent = false; });
      }
    }
  });
}

function draw(figure) {
  const { data, layout } = JSON.parse(figure.querySelector("script").textContent);
  figure.style.height = `${layout.height ?? 400}px`;
  Plotly.newPlot(figure, data, { ...layout, template: look() }, { displaylogo: false, responsive: true });
  together(figure);
}

function sortBy(heading) {
  const ascending = heading.getAttribute("aria-sort") !== "ascending";
  const at = heading.cellIndex, body = heading.closest("table").tBodies[0];
  const key = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent;
  const compare = (a, b) => {
    const [x, y] = [parseFloat(key(a)), parseFloat(key(b))];
    if (Number.isNaN(x) && Number.isNaN(y)) return key(a).localeCompare(key(b), undefined, { numeric: true });
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || 0; // unknown ones are last
    return ascending ? x - y : y - x;
  };
  body.append(...[...body.rows].sort(compare));
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}
addEventListener("beforeprint", () => { for (const folded of document.querySelectorAll("details.meanings")) folded.open = true; });

unpacked("plotly").then((code) => {
  const script = document.createElement("script");
  script.textContent = code;
  document.head.append(script);
  const figures = [...document.querySelectorAll(".figure")];
  figures.forEach(draw);
  dark.addEventListener("change", () => figures.forEach((figure) => Plotly.relayout(figure, { template: look() })));
});
