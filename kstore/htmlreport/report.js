"use strict";
// Draws the page from the facts in it, and redraws it when a filter changes. Text from the facts is never HTML: it goes
// into elements as text, and into plotly's labels, which understand some tags, only through `plain`.
(() => {
  const FACTS = JSON.parse(document.getElementById("facts").textContent);
  const GROWN = 8, SLOW = 15, ROWS = 200;
  const NARROW = window.matchMedia("(max-width: 760px)"), DARK = window.matchMedia("(prefers-color-scheme: dark)");
  const CONFIG = { responsive: true, displayModeBar: false, displaylogo: false };
  const find = (id) => document.getElementById(id);
  const sum = (values) => values.reduce((one, other) => one + other, 0);
  const shelf = (item) => `${item.gpu} ${item.key}`;
  const name = (scope) => `${shelf(scope)} ${scope.environment}`;

  // ---- Words

  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const shorten = (text, width) => {
    if (text.length <= width) return text;
    const tail = Math.ceil((width - 1) / 2);
    return `${text.slice(0, width - 1 - tail)}…${text.slice(text.length - tail)}`;
  };
  function size(bytes) {
    let unit = 0;
    while (bytes >= 999.5 && unit < 5) { bytes /= 1000; unit += 1; }
    return `${unit && bytes < 9.95 ? bytes.toFixed(1) : bytes.toFixed(0)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
  }
  function duration(seconds) {
    if (seconds < 0.01) return `${(seconds * 1000).toFixed(0)} ms`;
    if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
    return seconds < 3600 ? `${Math.floor(seconds / 60)} min` : `${Number((seconds / 3600).toFixed(1))} h`;
  }
  const moment = (seconds) => {
    const date = new Date(seconds * 1000);
    return Number.isNaN(date.getTime()) ? "?" : date.toISOString().slice(0, 16).replace("T", " ");
  };
  // "a100" is enough for "nvidia-a100-sxm4-40gb-sm80", unless another GPU is called that too.
  const word = (gpu) => gpu.replace(/^(nvidia|amd|intel)-/, "").split("-")[0];
  const gpus = [...new Set(FACTS.scopes.map((scope) => scope.gpu))].sort();
  const short = (gpu) => (gpus.filter((other) => word(other) === word(gpu)).length > 1 ? gpu : word(gpu));
  function titled(item, several, width) {
    const tail = several ? ` · ${shorten(short(item.gpu), 14)}` : "";
    return plain(shorten(item.key, Math.max(8, width - tail.length)) + tail);
  }
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

  // ---- What is chosen

  const filters = () => ({
    gpu: find("gpu").value, component: find("component").value, key: find("key").value.trim().toLowerCase(),
  });
  const newest = (scope) => scope.generations[scope.generations.length - 1];
  const fits = (item, chosen) =>
    (!chosen.gpu || item.gpu === chosen.gpu) && (!chosen.key || item.key.toLowerCase().includes(chosen.key));
  const has = (generation, component) => Object.hasOwn(generation.components, component);
  const bytesOf = (generation, component) =>
    component ? (has(generation, component) ? generation.components[component][1] : 0) : sum(Object.values(generation.components).map((c) => c[1]));
  function choose() {
    const chosen = filters();
    const holds = (scope) => scope.generations.some((generation) => has(generation, chosen.component));
    const scopes = FACTS.scopes.filter((scope) => fits(scope, chosen) && (!chosen.component || holds(scope)));
    return { ...chosen, scopes, names: new Set(scopes.map(name)), shelves: new Set(scopes.map(shelf)) };
  }

  // ---- How it looks

  function style() {
    const values = getComputedStyle(document.documentElement);
    const get = (variable) => values.getPropertyValue(variable).trim();
    return { text: get("--text"), quiet: get("--quiet"), line: get("--line"), card: get("--card"), low: get("--low"),
      high: get("--high"), accent: get("--accent"), series: get("--series").split(/\s+/) };
  }
  function layout(look, more) {
    return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 8, t: 8, b: 8 },
      font: { color: look.text, size: NARROW.matches ? 11 : 12, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: look.card, bordercolor: look.line, font: { color: look.text } }, ...more };
  }
  const axis = (look, more) => ({ gridcolor: look.line, zerolinecolor: look.line, linecolor: look.line, automargin: true,
    fixedrange: true, ...more });
  function draw(id, traces, shape, empty) {
    const place = find(id);
    place.classList.toggle("empty", traces.length === 0);
    if (traces.length) {
      if (!place.classList.contains("js-plotly-plot")) place.textContent = "";
      Plotly.react(place, traces, shape, CONFIG);
    } else {
      Plotly.purge(place);
      place.textContent = empty;
    }
  }
  function table(id, columns, rows, empty) {
    const place = find(id);
    place.textContent = "";
    place.classList.toggle("empty", rows.length === 0);
    if (!rows.length) { place.textContent = empty; return; }
    const whole = place.appendChild(document.createElement("table"));
    const line = (parent, tag, cells) => {
      const row = parent.appendChild(document.createElement("tr"));
      cells.forEach((text, column) => {
        const cell = row.appendChild(document.createElement(tag));
        cell.textContent = text;
        if (text.length > 24) cell.title = text;
        if (columns[column].startsWith(">")) cell.className = "right";
      });
    };
    line(whole.createTHead(), "th", columns.map((column) => column.replace(">", "")));
    const body = whole.createTBody();
    rows.slice(0, ROWS).forEach((row) => line(body, "td", row.map(String)));
    if (rows.length > ROWS) {
      place.appendChild(document.createElement("p")).textContent = `and ${rows.length - ROWS} more; choose fewer above`;
    }
  }

  // ---- The parts of the page

  function saved(bytes, means) {
    return [size(Math.abs(bytes)), bytes < 0 ? `more, for all ${means}` : `saved by ${means}`];
  }

  function drawNumbers(chosen) {
    const keys = FACTS.keys.filter((key) => (chosen.component ? chosen.shelves.has(shelf(key)) : fits(key, chosen)));
    const all = !chosen.gpu && !chosen.key && !chosen.component, total = FACTS.total;
    const hits = sum(keys.map((key) => key.hits)), misses = sum(keys.map((key) => key.misses));
    const restores = hits + misses + sum(keys.map((key) => key.seeded));
    const live = chosen.scopes.filter((scope) => scope.generations.some((one) => one.state === "live"));
    const numbers = [
      [String(new Set(live.map((scope) => scope.key)).size), `keys, ${plural(live.length, "scope")}`],
      [size(sum(chosen.scopes.map((scope) => bytesOf(newest(scope), chosen.component)))), "in newest generations"],
      [restores ? `${(100 * hits / restores).toFixed(1)} %` : "–", `hits of ${plural(restores, "restore")}`],
      [String(misses), "misses"],
    ];
    if (all) {
      numbers.push(saved(total.deduplicated, "deduplication"), saved(total.compressed, "compression"),
        [size(total.stored), "stored and needed"]);
    } else {
      numbers.push([size(sum(keys.map((key) => key.alone))), "needed by only one of these keys"]);
    }
    const place = find("numbers");
    place.textContent = "";
    for (const [value, text] of numbers) {
      const box = place.appendChild(document.createElement("div"));
      box.className = "number";
      box.appendChild(document.createElement("b")).textContent = value;
      box.appendChild(document.createElement("span")).textContent = text;
    }
  }

  function drawTreemap(chosen, look) {
    const nodes = new Map();
    const add = (path, bytes) => {
      const id = path.join("\n");
      if (!nodes.has(id)) nodes.set(id, { path, bytes: 0 });
      nodes.get(id).bytes += bytes;
    };
    for (const scope of chosen.scopes) {
      for (const [component, [, bytes]] of Object.entries(newest(scope).components)) {
        if (chosen.component && component !== chosen.component) continue;
        const path = [scope.gpu, scope.key, component];
        path.forEach((_, depth) => bytes && add(path.slice(0, depth + 1), bytes));
      }
    }
    const items = [...nodes.entries()];
    const parent = (path) => path.slice(0, -1).join("\n");
    const trace = {
      type: "treemap", branchvalues: "total", ids: items.map(([id]) => id), labels: items.map(([, n]) => plain(n.path.at(-1))),
      parents: items.map(([, n]) => parent(n.path)), values: items.map(([, n]) => n.bytes),
      text: items.map(([, n]) => size(n.bytes)), textinfo: "label+text", pathbar: { visible: true, thickness: 22 },
      hovertext: items.map(([, n]) => `${plain(n.path.join(" · "))}<br>${size(n.bytes)}`), hoverinfo: "text",
      marker: { colors: items.map(([, n]) => look.series[gpus.indexOf(n.path[0]) % look.series.length]),
        line: { width: 1, color: look.card }, pad: { t: 20, l: 3, r: 3, b: 3 } },
      opacity: 0.9, maxdepth: NARROW.matches ? 2 : 3, sort: true,
    };
    const shape = layout(look, { margin: { l: 0, r: 0, t: 0, b: 0 } });
    draw("treemap", items.length ? [trace] : [], shape, "The newest generations hold nothing of this selection.");
  }

  function drawSharing(chosen, look) {
    const keys = FACTS.sharing.keys;
    const bytes = keys.map(() => keys.map(() => 0));
    for (const [row, column, component, size] of FACTS.sharing.pairs) {
      if (chosen.component && component !== chosen.component) continue;
      bytes[row][column] += size;
      if (row !== column) bytes[column][row] += size;
    }
    const shown = keys.map((_, i) => i).filter((i) => chosen.shelves.has(shelf(keys[i])) && bytes[i][i] > 0);
    shown.sort((a, b) => (shelf(keys[a]) < shelf(keys[b]) ? -1 : 1));
    const several = new Set(shown.map((i) => keys[i].gpu)).size > 1;
    const label = (i) => (several ? `${keys[i].key}, ${keys[i].gpu}` : keys[i].key);
    const ticks = { tickmode: "array", tickvals: shown.map((_, place) => place),
      ticktext: shown.map((i) => titled(keys[i], several, NARROW.matches ? 18 : 28)), ticks: "", showgrid: false,
      zeroline: false, tickfont: { size: shown.length > 24 ? 9 : 11 } };
    const isCrowded = NARROW.matches && shown.length > 6;
    const share = (i, j) => 100 * bytes[i][j] / bytes[i][i];
    const trace = {
      type: "heatmap", z: shown.map((i) => shown.map((j) => share(i, j))), zmin: 0, zmax: 100, xgap: 1, ygap: 1,
      colorscale: [[0, look.low], [1, look.high]], hoverinfo: "text",
      text: shown.map((i) => shown.map((j) =>
        `${plain(label(i))}<br>of its ${size(bytes[i][i])}, ${size(bytes[i][j])} (${share(i, j).toFixed(0)} %)<br>` +
        `are also in ${plain(label(j))}`)),
      colorbar: { ticksuffix: " %", thickness: 10, outlinewidth: 0, len: 0.9 }, showscale: !NARROW.matches,
    };
    const shape = layout(look, { xaxis: axis(look, { ...ticks, tickangle: -40, showticklabels: !isCrowded }),
      yaxis: axis(look, { ...ticks, autorange: "reversed" }) });
    draw("sharing", shown.length ? [trace] : [], shape, "Nothing matches this selection.");
    const rest = chosen.shelves.size - shown.length;
    find("sharing-note").textContent = "How much of a row's bytes the column has as well, over all generations." +
      (isCrowded ? " Columns are in the order of the rows." : "") +
      (rest > 0 && shown.length ? ` ${plural(rest, "smaller one")} not shown.` : "");
  }

  function drawGrowth(chosen, look) {
    const series = chosen.scopes.map((scope) => ({ scope, bytes: bytesOf(newest(scope), chosen.component) }));
    series.sort((one, other) => other.bytes - one.bytes);
    const scopes = series.slice(0, GROWN).map((one) => one.scope);
    const several = new Set(scopes.map((scope) => scope.gpu)).size > 1;
    const traces = scopes.map((scope, number) => ({
      type: "scatter", mode: "lines+markers", line: { color: look.series[number % look.series.length], width: 2 },
      marker: { size: 7 }, name: titled(scope, several, NARROW.matches ? 26 : 40),
      x: scope.generations.map((generation) => generation.number),
      y: scope.generations.map((generation) => bytesOf(generation, chosen.component)),
      hoverinfo: "text",
      text: scope.generations.map((generation) => {
        const effort = generation.effort;
        const more = effort ? `<br>${plural(effort.new_files, "new file")}, ${size(effort.uploaded)} uploaded in ${duration(effort.seconds)}` : "";
        return `${plain(scope.key)} ${generation.number}, ${plain(scope.gpu)}<br>${size(bytesOf(generation, chosen.component))}, ` +
          `${moment(generation.created)}${more}`;
      }),
    }));
    const most = Math.max(1, ...traces.flatMap((trace) => trace.y));
    const step = niceStep(most);
    const values = Array.from({ length: Math.floor(most / step) + 2 }, (_, i) => i * step);
    const shape = layout(look, {
      xaxis: axis(look, { tickformat: "d", dtick: dtick(traces) }),
      yaxis: axis(look, { tickmode: "array", tickvals: values, ticktext: values.map(size), range: [0, most * 1.08] }),
      legend: { orientation: "h", y: -0.14, yanchor: "top", font: { size: 11 } }, showlegend: traces.length > 1,
    });
    draw("growth", traces, shape, "Nothing matches this selection.");
    find("growth-note").textContent = "Artifacts of the generations that are kept, by their numbers." +
      (series.length > GROWN ? ` The ${GROWN} largest of ${plural(series.length, "scope")}.` : "");
  }
  function dtick(traces) {
    const numbers = traces.flatMap((trace) => trace.x);
    return Math.max(1, Math.ceil((Math.max(...numbers) - Math.min(...numbers)) / 8));
  }
  function niceStep(most) {
    const power = 10 ** Math.floor(Math.log10(most / 4));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => most / step <= 5);
  }

  function drawSlowest(chosen, look) {
    const found = FACTS.restores.filter((restore) => chosen.names.has(name(restore))).slice(0, SLOW);
    const several = new Set(found.map((restore) => restore.gpu)).size > 1;
    const labels = found.map((restore) => titled(restore, several, NARROW.matches ? 18 : 40));
    const trace = {
      type: "bar", orientation: "h", x: found.map((restore) => restore.seconds), y: found.map((_, place) => place),
      marker: { color: look.accent }, hoverinfo: "text", textposition: "none",
      text: found.map((restore) => `${plain(restore.key)} ${restore.generation}, ${plain(restore.gpu)}<br>` +
        `${duration(restore.seconds)}, ${size(restore.bytes)}, ${plain(restore.link_mode || "nothing to place")}<br>${plain(restore.worker)}`),
    };
    const shape = layout(look, { bargap: 0.35, xaxis: axis(look, { ticksuffix: " s", rangemode: "tozero" }),
      yaxis: axis(look, { tickmode: "array", tickvals: trace.y, ticktext: labels, autorange: "reversed", showgrid: false }) });
    draw("slowest", found.length ? [trace] : [], shape, "No restore has been counted.");
    table("slowest-table", ["KEY", ">GENERATION", "GPU", ">TIME", ">WAITED", ">SIZE", "BY", "WHEN", "WORKER"],
      found.map((restore) => [restore.key, restore.generation, restore.gpu, duration(restore.seconds),
        duration(restore.waited), size(restore.bytes), restore.link_mode, moment(restore.at), restore.worker]), "");
    find("slowest-table").hidden = !found.length;
  }

  function drawEnvironments(chosen) {
    const facts = ["torch", "triton", "cuda", "python"];
    table("environments",
      ["KEY", "GPU", "ENVIRONMENT", ...facts.map((fact) => fact.toUpperCase()), ">GENERATIONS", ">SIZE", ">HOSTS", "NEWEST", "BY", "NOTE"],
      chosen.scopes.map((scope) => {
        const last = newest(scope);
        const pinned = scope.generations.filter((generation) => generation.pinned).map((generation) => generation.number);
        const notes = [last.state === "live" ? "" : last.state, pinned.length ? `pinned: ${pinned.join(", ")}` : ""];
        return [scope.key, scope.gpu, scope.environment, ...facts.map((fact) => scope.facts[fact] || ""),
          scope.generations.length, size(bytesOf(last, chosen.component)), scope.hosts || "any", moment(last.created),
          last.creator, notes.filter(Boolean).join("; ")];
      }), "Nothing matches this selection.");
  }

  function drawCandidates(chosen) {
    if (!FACTS.gc) {
      find("gc-note").textContent = "Not known: gc needs to write to the store and to list every key, and the worker that wrote this page could not.";
      find("candidates").hidden = true;
      return;
    }
    find("gc-note").textContent = `A gc that keeps two generations, run when this page was written. In the whole store it would delete ` +
      `${size(FACTS.gc.deleted)} and condemn ${size(FACTS.gc.condemned)}, to be deleted ${duration(FACTS.gc.grace)} later; ` +
      `${size(FACTS.gc.waiting)} were condemned before.`;
    const generations = new Map(chosen.scopes.flatMap((scope) =>
      scope.generations.map((generation) => [`${name(scope)} ${generation.number}`, generation])));
    const rows = FACTS.gc.rows.filter((row) => chosen.names.has(name(row)));
    table("candidates", ["KEY", "GPU", "ENVIRONMENT", ">GENERATION", ">SIZE", "CREATED", "WHY"], rows.map((row) => {
      const generation = generations.get(`${name(row)} ${row.number}`);
      return [row.key, row.gpu, row.environment, row.number, generation ? size(bytesOf(generation, chosen.component)) : "?",
        generation ? moment(generation.created) : "?", row.why];
    }), "No generation would be removed.");
  }

  // ---- Everything

  function drawAll() {
    const chosen = choose(), look = style();
    find("matching").textContent = `${chosen.scopes.length} of ${plural(FACTS.scopes.length, "scope")}`;
    drawNumbers(chosen);
    drawTreemap(chosen, look);
    drawSharing(chosen, look);
    drawGrowth(chosen, look);
    drawSlowest(chosen, look);
    drawEnvironments(chosen);
    drawCandidates(chosen);
  }
  function offer(id, values) {
    for (const value of [...new Set(values)].sort()) find(id).add(new Option(value, value));
  }
  find("about").textContent = `${FACTS.store}, ${moment(FACTS.made)} UTC, kstore ${FACTS.version}` +
    (FACTS.unreadable.length ? "; generations or packs cannot be read and are not counted: `kstore du` names them" : "");
  offer("gpu", gpus);
  offer("component", FACTS.scopes.flatMap((scope) => scope.generations.flatMap((one) => Object.keys(one.components))));
  find("filters").addEventListener("input", drawAll);
  find("filters").addEventListener("submit", (event) => event.preventDefault());
  find("filters").addEventListener("reset", () => setTimeout(drawAll));
  for (const media of [NARROW, DARK]) media.addEventListener("change", drawAll);
  drawAll();
})();
