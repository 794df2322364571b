// The ranks on a circle, in the order of the ring; what each has; what is on its way.
class RingView {
  constructor(svg) {
    this.svg = svg;
    this.frame = 0;
  }

  // Draws what does not change from step to step.
  setRing(order) {
    const k = order.length;
    this.order = order;
    this.block = k <= 4 ? 34 : k <= 8 ? 17 : Math.max(5, Math.floor(128 / k));
    this.gap = k <= 8 ? 3 : 1;
    const strip = k * (this.block + this.gap) - this.gap;
    this.card = { width: Math.max(150, strip + 24), height: 92, strip };
    // Room between two ranks for what travels there.
    const chord = this.card.width + (k > 8 ? 52 : 76);
    this.radius = Math.max(k === 2 ? 150 : 178, chord / (2 * Math.sin(Math.PI / k)));
    const x = this.radius + this.card.width / 2 + 8;
    const y = (k === 2 ? this.radius : this.radius + this.card.height / 2) + 30;
    this.svg.setAttribute("viewBox", `${-x} ${-y} ${2 * x} ${2 * y}`);
    this.track = element("g", { class: "track" }, element("circle", { r: this.radius }));
    // Just ahead of what travels.
    const ahead = (32 / this.radius) * (k / (2 * Math.PI));
    order.forEach((_, position) => this.track.append(this.arrow(position + 0.5 + ahead)));
    this.tokens = element("g", { class: "tokens" });
    this.cards = order.map((rank, position) => this.makeCard(rank, position));
    this.svg.replaceChildren(this.track, this.tokens, ...this.cards.map((card) => card.group));
  }

  // Positions count clockwise from the top; with two ranks, from the left.
  place(position) {
    const k = this.order.length;
    const angle = (2 * Math.PI * position) / k - (k === 2 ? Math.PI : Math.PI / 2);
    return { x: this.radius * Math.cos(angle), y: this.radius * Math.sin(angle), angle };
  }

  arrow(position) {
    const { x, y, angle } = this.place(position);
    const degrees = (angle * 180) / Math.PI + 90;
    return element("path", {
      d: "M-5 -7L7 0L-5 7z",
      transform: `translate(${x} ${y}) rotate(${degrees})`,
    });
  }

  makeCard(rank, position) {
    const { width, height, strip } = this.card;
    const { x, y } = this.place(position);
    const group = element("g", { class: "rank", transform: `translate(${x} ${y})` });
    group.dataset.rank = rank;
    const name = element("text", { class: "name", y: -height / 2 + 20 }, `rank ${rank}`);
    const verb = element("text", { class: "verb", y: height / 2 - 10 });
    const blocks = this.order.map((_, chunk) => {
      const left = -strip / 2 + chunk * (this.block + this.gap);
      const block = this.makeBlock(this.block, 34, chunk);
      block.group.setAttribute("transform", `translate(${left} -17)`);
      return block;
    });
    group.append(
      element("rect", {
        class: "card", x: -width / 2, y: -height / 2, width, height, rx: 10,
      }),
      name, ...blocks.map((block) => block.group), verb,
    );
    return { group, verb, blocks };
  }

  // A chunk: as full as ranks have contributed to it, with a line between two contributions.
  makeBlock(width, height, chunk) {
    const k = this.order.length;
    const fill = element("rect", { class: "fill", width, rx: 2 });
    const group = element(
      "g", { class: `block ${chunkClass(chunk)}` },
      element("rect", { class: "ground", width, height, rx: 2 }), fill,
    );
    for (let part = 1; part < k && k <= 8; ++part) {
      const y = (height * part) / k;
      group.append(element("path", { class: "seam", d: `M0 ${y}h${width}` }));
    }
    group.append(element("rect", { class: "frame", width, height, rx: 2 }));
    if (width >= 12)
      group.append(
        element("text", { class: "number", x: width / 2, y: height / 2 + 4.5 }, String(chunk)),
      );
    group.append(element("title"));
    group.dataset.chunk = chunk;
    return { group, fill, height };
  }

  fillBlock(block, sum) {
    const k = this.order.length;
    const filled = (block.height * sum.length) / k;
    block.fill.setAttribute("y", block.height - filled);
    block.fill.setAttribute("height", filled);
    block.group.dataset.sum = sum.join(" ");
    block.group.classList.toggle("complete", sum.length === k);
    block.group.querySelector("title").textContent =
      `chunk ${block.group.dataset.chunk}: ` +
      (sum.length === k ? "complete" : `has the part of ${sayRanks(sum)}`);
  }

  // Shows a step; `moving`: what it sends is seen to go.
  show(state, moving) {
    state.deeds.forEach(({ rank, verb, owner }, position) => {
      const card = this.cards[position];
      Object.assign(card.group.dataset, { rank, verb, owner });
      card.verb.textContent = verb;
      card.blocks.forEach((block, chunk) => {
        this.fillBlock(block, state.held[position][chunk]);
        block.group.classList.toggle("busy", chunk === owner);
      });
    });
    this.tokens.replaceChildren();
    const travellers = [];
    state.links.forEach((link, position) => {
      if (!link) return;
      const token = this.makeToken(link, position);
      this.tokens.append(token);
      travellers.push({ token, position });
    });
    cancelAnimationFrame(this.frame);
    this.travel(travellers, moving ? performance.now() : -Infinity);
  }

  makeToken(link, position) {
    const k = this.order.length;
    const width = k > 8 ? 22 : 36;
    const block = this.makeBlock(width, 34, link.chunk);
    this.fillBlock(block, link.sum);
    block.group.setAttribute("transform", `translate(${-width / 2} -17)`);
    const token = element("g", { class: "token" }, block.group);
    token.dataset.from = this.order[position];
    token.dataset.to = this.order[(position + 1) % k];
    token.dataset.chunk = link.chunk;
    token.dataset.sum = link.sum.join(" ");
    return token;
  }

  travel(travellers, since) {
    const passed = Math.min(1, (performance.now() - since) / 450);
    const way = 0.5 * passed * (2 - passed);
    for (const { token, position } of travellers) {
      const { x, y } = this.place(position + way);
      token.setAttribute("transform", `translate(${x} ${y})`);
    }
    if (passed < 1) this.frame = requestAnimationFrame(() => this.travel(travellers, since));
  }
}
