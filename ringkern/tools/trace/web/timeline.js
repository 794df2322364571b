// The recorded times: a row for each rank, in the order of the ring, and the step that is shown.
const FOLD_PX = 26;

class TimelineView {
  constructor(svg, tip, trace, pick) {
    Object.assign(this, { svg, tip, trace, pick });
    svg.addEventListener("pointermove", (event) => this.point(event));
    svg.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    svg.addEventListener("click", (event) => {
      const found = this.at(event);
      if (found) this.pick(found.loop, found.step);
    });
  }

  // Draws the bars of the loops, in a span of time; `width`: CSS pixels that there are; `folds`:
  // stretches of the span that are as narrow as can be.
  setView(channel, loops, span, width, folds) {
    this.channel = channel;
    this.loops = loops;
    this.folds = folds;
    this.order = this.trace.orders[channel];
    this.span = span;
    const rowHeight = this.order.length > 8 ? 22 : 34;
    Object.assign(this, { left: 64, right: 14, top: 12, rowHeight, width });
    this.height = this.top + rowHeight * this.order.length + 34;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    this.now = element("g", { class: "now" });
    this.svg.replaceChildren(this.patterns(), this.axis(), this.names(), ...this.bars(), this.creases(),
      this.now);
  }

  patterns() {
    const lines = { width: 6, height: 6, patternUnits: "userSpaceOnUse" };
    return element(
      "defs", {},
      element("pattern", { id: "prev", ...lines }, element("path", {
        class: "hatch", d: "M-1 7L7 -1M-1 1L1 -1M5 7L7 5",
      })),
      element("pattern", { id: "late", ...lines }, element("path", {
        class: "hatch", d: "M0 3H6",
      })),
      element("pattern", { id: "next", ...lines }, element("circle", {
        class: "dot", cx: 3, cy: 3, r: 1.1,
      })),
    );
  }

  // CSS pixels of a nanosecond, outside of folds.
  scale() {
    const folded = this.folds.reduce((sum, { start, end }) => sum + end - start, 0);
    const { start, end } = this.span;
    return (this.inner() - FOLD_PX * this.folds.length) / Math.max(1, end - start - folded);
  }

  x(ns) {
    let x = this.left, from = this.span.start;
    const scale = this.scale();
    for (const { start, end } of this.folds) {
      if (ns <= start) break;
      x += (start - from) * scale;
      if (ns < end) return x + (FOLD_PX * (ns - start)) / (end - start);
      x += FOLD_PX;
      from = end;
    }
    return x + (ns - from) * scale;
  }

  // The time at a place: the other way round.
  ns(x) {
    let at = this.left, from = this.span.start;
    const scale = this.scale();
    for (const { start, end } of this.folds) {
      if (x <= at + (start - from) * scale) break;
      at += (start - from) * scale;
      if (x < at + FOLD_PX) return start + ((x - at) * (end - start)) / FOLD_PX;
      at += FOLD_PX;
      from = end;
    }
    return from + (x - at) / scale;
  }

  // Cut off where the span ends.
  within(ns) {
    return this.x(Math.min(Math.max(ns, this.span.start), this.span.end));
  }

  inner() {
    return this.width - this.left - this.right;
  }

  y(position) {
    return this.top + position * this.rowHeight;
  }

  axis() {
    const { start, end } = this.span;
    const rough = 90 / this.scale();
    const power = 10 ** Math.floor(Math.log10(Math.max(1, rough)));
    const each = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const bottom = this.y(this.order.length) + 2;
    const group = element("g", { class: "axis" });
    for (let tick = Math.ceil(start / each) * each; tick <= end; tick += each) {
      const x = this.x(tick);
      if (this.folds.some((fold) => x > this.x(fold.start) - 30 && x < this.x(fold.end) + 30)) continue;
      group.append(
        element("path", { d: `M${x} ${this.top - 6}V${bottom}` }),
        element("text", { x, y: bottom + 17 }, sayTick(tick, each)),
      );
    }
    return group;
  }

  // Over each fold, how long it is.
  creases() {
    const bottom = this.y(this.order.length) + 2;
    const group = element("g", { class: "folds" });
    for (const { start, end } of this.folds) {
      const x = this.x(start), y = this.top - 6;
      const title = `${sayTime(end - start)} in which a rank was late, and none worked`;
      group.append(
        element("rect", { x, y, width: FOLD_PX, height: bottom - y }, element("title", {}, title)),
        element("text", { x: x + FOLD_PX / 2, y: bottom + 17 }, `+ ${sayTime(end - start)}`),
      );
    }
    return group;
  }

  names() {
    const group = element("g", { class: "names" });
    this.order.forEach((rank, position) => {
      const y = this.y(position) + this.rowHeight / 2 + 4;
      group.append(element("text", { x: this.left - 10, y }, `rank ${rank}`));
    });
    return group;
  }

  // One path for all bars of a kind: a long trace has a hundred thousand of them. A text where
  // there is room for it.
  bars() {
    const paths = new Map();
    const labels = element("g", { class: "labels" });
    const add = (kind, start, end, position, text) => {
      const x = this.within(start);
      const room = this.within(end) - x;
      if (room <= 0) return;
      const y = this.y(position) + this.rowHeight / 2 + 4.2;
      if (room > 12 + 6 * text.length) labels.append(element("text", { x: x + room / 2, y }, text));
      const bar = `M${x.toFixed(2)} ${this.y(position) + 4}h${Math.max(0.3, room - 0.8).toFixed(2)}v${this.rowHeight - 8}H${x.toFixed(2)}z`;
      paths.set(kind, (paths.get(kind) ?? "") + bar);
    };
    for (const loop of this.loops) {
      this.order.forEach((rank, position) => {
        this.trace.times[this.channel][loop][rank].forEach(([start, end, prev, late, next], step) => {
          const { owner, from, to } = this.states[step].deeds[position];
          const there = start + prev, slot = there + late, work = slot + next;
          add("wait prev", start, there, position, `for ${from}`);
          add("wait late", there, slot, position, "late");
          add("wait next", slot, work, position, `for ${to}`);
          add(`work ${chunkClass(owner)}`, work, end, position, String(owner));
        });
      });
    }
    const drawn = [...paths].map(([kind, d]) => element("path", { class: kind, d }));
    return [...drawn, labels];
  }

  // The cursor: what the ranks did in this step, and a line through where they ended it.
  show(loop, step) {
    const times = timesOf(this.trace, this.channel, loop, step);
    this.now.replaceChildren();
    if (!this.loops.includes(loop)) return;
    const points = [];
    times.forEach(({ start, end }, position) => {
      const x = this.x(start), top = this.y(position);
      this.now.append(element("rect", {
        x: x - 0.5, y: top + 2.5, width: Math.max(2, this.x(end) - x), height: this.rowHeight - 5,
        rx: 2, "data-rank": this.order[position], "data-start": start, "data-end": end,
      }));
      points.push([this.x(end), top], [this.x(end), top + this.rowHeight]);
    });
    const line = points.map(([x, y]) => `${x.toFixed(2)},${y}`).join(" ");
    this.now.append(element("polyline", { id: "cursor", points: line }));
    Object.assign(this.now.dataset, { loop, step });
  }

  // The verb under the pointer.
  at(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.width / box.width;
    const position = Math.floor(((event.clientY - box.top) * scale - this.top) / this.rowHeight);
    const rank = this.order[position];
    const ns = this.ns((event.clientX - box.left) * scale);
    if (rank === undefined || ns < this.span.start || ns > this.span.end) return null;
    for (const loop of this.loops) {
      const steps = this.trace.times[this.channel][loop][rank];
      if (ns > steps[steps.length - 1][1]) continue;
      const step = steps.findIndex(([from, to]) => from <= ns && ns <= to);
      return step < 0 ? null : { loop, step, position };
    }
    return null;
  }

  point(event) {
    const found = this.at(event);
    this.tip.hidden = !found;
    if (!found) return;
    const { loop, step, position } = found;
    const deed = this.states[step].deeds[position];
    const time = timesOf(this.trace, this.channel, loop, step)[position];
    const waited = sayWaits(deed, time);
    this.tip.replaceChildren(
      html("b", {}, `rank ${deed.rank}, ${deed.verb}`), html("br"),
      `chunk ${deed.owner}, ${this.trace.loops > 1 ? `loop ${loop}, ` : ""}step ${step}: ` +
      `${sayTime(time.end - time.start)}`,
      ...(waited ? [html("br"), `waited ${waited}`] : []),
    );
    const box = this.svg.getBoundingClientRect();
    const x = event.clientX - box.left;
    const left = x > box.width / 2 ? x - this.tip.offsetWidth - 12 : x + 14;
    this.tip.style.transform = `translate(${left}px, ${event.clientY - box.top + 16}px)`;
  }
}

function sayTick(ns, each) {
  const [unit, size] = each >= 1e4 ? ["ms", 1e6] : each >= 10 ? ["us", 1e3] : ["ns", 1];
  return `${(ns / size).toLocaleString("en", { maximumFractionDigits: 2 })} ${unit}`;
}
