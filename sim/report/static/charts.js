// Small charts in SVG and plain boxes. They take numbers and draw; they know nothing of runs.

/** Scale from a data interval to a pixel interval. */
function scale(domain, range) {
  const factor = (range[1] - range[0]) / (domain[1] - domain[0] || 1);
  return (value) => range[0] + (value - domain[0]) * factor;
}

function ticks(low, high, wanted = 5) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9; value += step) found.push(value);
  return { values: found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
}

/** Axes of a chart by round: a frame, scales, and a node to draw into. */
function roundFrame({ width, height, rounds, low, high, label, axis = "round" }) {
  const box = { left: 40, right: width - 10, top: 10, bottom: height - 30 };
  const x = scale([Math.min(...rounds) - 0.5, Math.max(...rounds) + 0.5], [box.left, box.right]);
  const y = scale([low, high], [box.bottom, box.top]);
  const root = svg("svg.chart", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const marks = ticks(low, high, height > 220 ? 6 : 4);
  for (const value of marks.values) {
    root.append(
      svg("line.grid", { x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
      svg("text.tick", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end" }, num(value, marks.digits)),
    );
  }
  const every = Math.ceil(rounds.length / 16);
  for (const round of rounds.filter((_, i) => i % every === 0))
    root.append(svg("text.tick", { x: x(round), y: box.bottom + 15, "text-anchor": "middle" }, String(round)));
  root.append(svg("text.tick", { x: (box.left + box.right) / 2, y: height - 2, "text-anchor": "middle" }, axis));
  return { root, x, y, box };
}

function polyline(points, colour, attributes = {}) {
  const path = points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  return svg("path.line", { d: path, stroke: colour, fill: "none", ...attributes });
}

/** A marker by number, so that series differ in shape as well as in colour. */
function marker(kind, x, y, colour, title) {
  const r = 4;
  const shapes = [
    `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
    `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    `M${x} ${y - r - 1}L${x + r + 1} ${y}L${x} ${y + r + 1}L${x - r - 1} ${y}z`,
    `M${x} ${y - r - 1}L${x + r + 1} ${y + r}L${x - r - 1} ${y + r}z`,
  ];
  return svg("path", { d: shapes[kind % shapes.length], fill: colour }, svg("title", {}, title));
}

/** Lines by round with intervals: series are {name, points: [{round, value, low, high}]}. */
function lineChart(series, { width, height, label, axis = "round" }) {
  const all = series.flatMap((one) => one.points);
  const rounds = [...new Set(all.map((point) => point.round))].sort((a, b) => a - b);
  const high = Math.max(...all.map((point) => Number(point.high) || point.value), 1e-3);
  const frame = roundFrame({ width, height, rounds, low: 0, high: high * 1.05, label, axis });
  series.forEach((one, i) => {
    const colour = `var(--series-${i % 8})`;
    const nudge = (i - (series.length - 1) / 2) * Math.min(5, 40 / series.length);
    const place = (point) => [frame.x(point.round) + nudge, frame.y(point.value)];
    for (const point of one.points) {
      if (typeof point.low !== "number" || typeof point.high !== "number") continue;
      const [x] = place(point);
      const ends = { x1: x, x2: x, y1: frame.y(Math.max(0, point.low)), y2: frame.y(point.high) };
      frame.root.append(svg("line.whisker", { ...ends, stroke: colour }));
    }
    frame.root.append(polyline(one.points.map(place), colour));
    for (const point of one.points)
      frame.root.append(marker(i, ...place(point), colour, `${one.name}, ${axis} ${point.round}: ${num(point.value)}`));
  });
  return frame.root;
}

/** A legend for a line chart. */
function legend(names) {
  return el("ul.legend", {}, names.map((name, i) => el("li", {},
    svg("svg", { viewBox: "0 0 14 14", width: 14, height: 14 }, marker(i, 7, 7, `var(--series-${i % 8})`, name)),
    name)));
}

/** Coverage by round against its exact band. */
function coverageChart(rows, { width, height, label, low }) {
  const rounds = rows.map((row) => row.round);
  const frame = roundFrame({ width, height, rounds, low, high: 1.0, label });
  const half = frame.x(1.5) - frame.x(1);
  for (const row of rows) {
    if (row.band_low === null) continue;
    const top = frame.y(row.band_high);
    const title = `round ${row.round}: 99.9% band ${num(row.band_low)} to ${num(row.band_high)}`;
    frame.root.append(svg("rect.band", {
      x: frame.x(row.round) - half, y: top, width: 2 * half, height: frame.y(row.band_low) - top,
    }, svg("title", {}, title)));
  }
  const nominal = frame.y(rows[0].nominal);
  frame.root.append(svg("line.nominal", { x1: frame.box.left, x2: frame.box.right, y1: nominal, y2: nominal }));
  const measured = rows.filter((row) => row.coverage !== null);
  const place = (row) => [frame.x(row.round), frame.y(row.coverage)];
  frame.root.append(polyline(measured.map(place), "var(--series-0)"));
  for (const row of measured) {
    const colour = row.inside === false ? "var(--bad)" : "var(--series-0)";
    const title = `round ${row.round}: ${row.covered} of ${row.n} covered (${num(row.coverage)})`;
    frame.root.append(marker(0, ...place(row), colour, title));
    if (row.coverage_tied !== null && row.coverage_tied !== row.coverage) frame.root.append(tiedCross(frame, row));
  }
  return frame.root;
}

/** Coverage with ties broken at random, where it differs: what the two-sided test looks at. */
function tiedCross(frame, row) {
  const [x, y] = [frame.x(row.round), frame.y(row.coverage_tied)];
  const title = `round ${row.round}, ties broken at random: ${num(row.coverage_tied)}`;
  return svg("path.cross", { d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` }, svg("title", {}, title));
}

/** A track from 0 to 1 with an interval and a dot. */
function intervalTrack({ value, low, high, kind, marks = [] }) {
  const percent = (x) => `${100 * Math.min(1, Math.max(0, x))}%`;
  const start = typeof low === "number" ? Math.max(0, low) : 0;
  const end = typeof high === "number" ? Math.min(1, high) : 1;
  return el(`div.track.of-${kind}`, {},
    marks.map((at) => el("i.mark", { style: { left: percent(at) } })),
    el("i.whisker", { style: { left: percent(start), width: percent(end - start) } }),
    el("i.dot", { style: { left: percent(value) } }));
}

/** A bar cut into parts; parts are {value, kind, title}. */
function stackedBar(parts, total) {
  return el("div.stack", {}, parts.map(({ value, kind, title }) =>
    el(`i.${kind}`, { title, style: { width: `${(100 * value) / total}%` } })));
}

function chartWidth(most) {
  return Math.max(280, Math.min(most, document.documentElement.clientWidth - 48));
}
