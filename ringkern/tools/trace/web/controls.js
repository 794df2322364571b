// The page: what is shown, and what the reader does.
const trace = JSON.parse($("trace").textContent);
const steps = trace.schedule[0].length;
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const PLAY_MS = 1100;

const shown = { channel: 0, loop: 0, step: 0, view: trace.loops > 1 ? "loop" : "call", folded: true };
let states = [];
let timer = 0;

const ring = new RingView($("ring"));
const timeline = new TimelineView($("timeline"), $("tip"), trace, (loop, step) =>
  show({ loop, step }));

const clamp = (value, last) => Math.min(Math.max(0, Math.trunc(value) || 0), last);

// Shows a channel, loop and step, whichever are given, and says so in the address.
function show(wanted, moving = false) {
  const before = { ...shown };
  shown.channel = clamp(wanted.channel ?? shown.channel, trace.channels - 1);
  shown.loop = clamp(wanted.loop ?? shown.loop, trace.loops - 1);
  shown.step = clamp(wanted.step ?? shown.step, steps - 1);
  shown.view = wanted.view ?? shown.view;
  shown.folded = wanted.folded ?? shown.folded;
  if (shown.channel !== before.channel || !states.length) {
    states = statesOf(trace.orders[shown.channel], trace.schedule);
    timeline.states = states;
    ring.setRing(trace.orders[shown.channel]);
  }
  const matters = { call: [], loop: ["loop"], step: ["loop", "step"] }[shown.view];
  const changed = ["channel", "view", "folded", ...matters].some((key) => shown[key] !== before[key]);
  if (changed || !timeline.span) drawTimeline();
  const state = states[shown.step];
  ring.show(state, moving && !calm.matches);
  timeline.show(shown.loop, shown.step);
  tell(state);
  const place = { step: shown.step };
  if (trace.loops > 1) place.loop = shown.loop;
  if (trace.channels > 1) place.channel = shown.channel;
  history.replaceState(null, "", `#${new URLSearchParams(place)}`);
}

function drawTimeline() {
  const { channel, loop, step, view } = shown;
  const all = trace.times[channel].map((_, number) => number);
  const span = spanOf(trace, channel, view === "call" ? all : [loop],
    view === "step" ? step : undefined);
  // In the time of a step, ranks that are ahead or behind are in a loop before or after.
  const loops = { call: all, loop: [loop], step: all.slice(Math.max(0, loop - 2), loop + 3) }[view];
  const lulls = lullsOf(trace, channel, loops, span);
  const width = Math.max(360, $("timeline-box").clientWidth);
  timeline.setView(channel, loops, span, width, shown.folded ? lulls : []);
  $("fold").hidden = !lulls.length;
  $("fold").setAttribute("aria-pressed", shown.folded);
}

// The step in words, and in the controls.
function tell({ deeds }) {
  const k = trace.ranks;
  const times = timesOf(trace, shown.channel, shown.loop, shown.step);
  $("phase").textContent = `Step ${shown.step}, of 0 to ${steps - 1}: ${sayPhase(shown.step, k)}`;
  $("waiting").textContent = sayLongest(deeds, times);
  const rows = deeds.map((deed, position) => {
    const { start, end } = times[position];
    const chunk = html("span", { class: `key ${chunkClass(deed.owner)}` });
    const row = html(
      "tr", { "data-rank": deed.rank },
      html("th", { scope: "row" }, String(deed.rank)),
      html("td", {}, chunk, sayDeed(deed, k)),
      html("td", { class: "number" }, sayTime(end - start)),
      html("td", { class: "waited" }, sayWaits(deed, times[position]) || "nothing"),
    );
    return [deed.rank, row];
  });
  $("deeds").tBodies[0].replaceChildren(...rows.sort((a, b) => a[0] - b[0]).map(([, row]) => row));
  $("step").value = shown.step;
  $("step").setAttribute("aria-valuetext", `step ${shown.step}: ${sayPhase(shown.step, k)}`);
  $("step-word").textContent = `step ${shown.step}`;
  $("loop").value = shown.loop;
  $("channel").value = shown.channel;
  for (const view of ["step", "loop", "call"])
    $(`view-${view}`).setAttribute("aria-pressed", shown.view === view);
}

// A step on, into the next loop after the last; false: there is none.
function forth() {
  if (shown.step < steps - 1) show({ step: shown.step + 1 }, true);
  else if (shown.loop < trace.loops - 1) show({ loop: shown.loop + 1, step: 0 }, true);
  else return false;
  return true;
}

function back() {
  if (shown.step > 0) show({ step: shown.step - 1 });
  else if (shown.loop > 0) show({ loop: shown.loop - 1, step: steps - 1 });
}

function setPlaying(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => forth() || setPlaying(false), PLAY_MS) : 0;
  $("play").setAttribute("aria-pressed", on);
  $("play-word").textContent = on ? "Pause" : "Play";
  $("play-sign").setAttribute("d", on ? "M3 2h4v12H3zM9 2h4v12H9z" : "M4 2v12l9-6z");
}

function play() {
  if (!timer && !forth()) show({ loop: 0, step: 0 }, true);
  setPlaying(!timer);
}

function fromAddress() {
  const place = new URLSearchParams(location.hash.slice(1));
  const given = ["channel", "loop", "step"].filter((key) => place.has(key));
  return Object.fromEntries(given.map((key) => [key, Number(place.get(key))]));
}

function describe() {
  document.body.classList.toggle("many", trace.ranks > 6);
  $("circumstances").append(trace.circumstances, html("br"), html("code", {}, trace.command));
  $("summary").textContent = trace.summary;
  $("ranks").append(...trace.rank_texts.map((text) => html("li", {}, text)));
  $("left-out").textContent = trace.left_out;
  $("step").max = steps - 1;
  $("steps").append(...states[0].deeds.length ? states.map((_, step) =>
    html("option", { value: step })) : []);
  $("loop").max = trace.loops - 1;
  $("loop-last").textContent = `of 0 to ${trace.loops - 1}`;
  $("loop-choice").hidden = trace.loops === 1;
  $("view-loop").hidden = trace.loops === 1;
  $("channel-choice").hidden = trace.channels === 1;
  for (let channel = 0; channel < trace.channels; ++channel)
    $("channel").append(html("option", { value: channel }, String(channel)));
  const keys = trace.orders[0].slice(0, CHUNK_COLORS).map((_, chunk) => {
    const same = trace.ranks > CHUNK_COLORS + chunk ? `, ${CHUNK_COLORS + chunk}` : "";
    const more = trace.ranks > 2 * CHUNK_COLORS + chunk ? ", ..." : "";
    return [chunkClass(chunk), `chunk ${chunk}${same}${more}`];
  });
  keys.push(["wait-prev", "waits for data from prev"], ["wait-late", "late: its data is there"],
    ["wait-next", "waits for a slot at next"]);
  $("legend").append(...keys.map(([kind, text]) =>
    html("li", {}, html("span", { class: `key ${kind}` }), text)));
}

function listen() {
  const on = (id, kind, does) => $(id).addEventListener(kind, does);
  on("step", "input", () => show({ step: $("step").valueAsNumber }, true));
  on("loop", "change", () => show({ loop: $("loop").valueAsNumber }));
  on("channel", "change", () => show({ channel: Number($("channel").value) }));
  on("first", "click", () => show({ loop: 0, step: 0 }));
  on("back", "click", back);
  on("forth", "click", forth);
  on("play", "click", play);
  on("fold", "click", () => show({ folded: !shown.folded }));
  for (const view of ["step", "loop", "call"]) on(`view-${view}`, "click", () => show({ view }));
  addEventListener("hashchange", () => show(fromAddress()));
  addEventListener("resize", () => { drawTimeline(); timeline.show(shown.loop, shown.step); });
  const keys = {
    ArrowRight: forth, ArrowLeft: back, " ": play, Home: () => show({ loop: 0, step: 0 }),
    End: () => show({ loop: trace.loops - 1, step: steps - 1 }),
  };
  addEventListener("keydown", (event) => {
    // Which have keys of their own.
    const own = event.target.closest(event.key === " " ? "input, select, button" : "input, select");
    if (!keys[event.key] || own || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
}

show(fromAddress());
describe();
show({});
listen();
