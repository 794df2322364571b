// What is where after each step of a loop: follows from the schedule alone, without any time.
//
// A verb's name says what it does, as in csrc/core/schedule.h.
const receives = (verb) => verb.startsWith("recv");
const sends = (verb) => verb.endsWith("send");
const readsInput = (verb) => verb.includes("reduce") || !receives(verb);
const copies = (verb) => verb.includes("copy") || verb === "recv";

// One entry for each step:
//   deeds[position]: {rank, verb, owner, from, to, sum}  `sum`: ranks whose contributions it has
//   held[position][chunk]: ranks whose contributions that rank's tensor has there
//   links[position]: {chunk, sum} that is on its way from there to the next position, or null
function statesOf(order, schedule) {
  const k = order.length;
  let held = order.map((rank) => Array.from({ length: k }, () => [rank]));
  let links = Array(k).fill(null);
  const states = [];
  for (let step = 0; step < schedule[0].length; ++step) {
    const sent = Array(k).fill(null);
    held = held.map((chunks) => chunks.slice());
    const deeds = order.map((rank, position) => {
      const [verb, owner] = schedule[position][step];
      const prev = (position + k - 1) % k;
      const came = receives(verb) ? links[prev] : null;
      if (came && came.chunk !== owner)
        throw new Error(`step ${step}: rank ${rank} is sent chunk ${came.chunk}, not ${owner}`);
      const sum = [...(came ? came.sum : []), ...(readsInput(verb) ? [rank] : [])];
      if (copies(verb)) held[position][owner] = sum;
      if (sends(verb)) sent[position] = { chunk: owner, sum };
      return { rank, verb, owner, from: order[prev], to: order[(position + 1) % k], sum };
    });
    links = sent;
    states.push({ deeds, held, links });
  }
  return states;
}

// Times of what each position did in a step of a loop.
function timesOf(trace, channel, loop, step) {
  return trace.orders[channel].map((rank) => {
    const [start, end, prev, late, next] = trace.times[channel][loop][rank][step];
    return { start, end, prev, late, next };
  });
}

// Stretches of a span in which a rank is late and none works, where they are a tenth of it or more:
// drawn as they are, they leave no room for what the ranks did.
function lullsOf(trace, channel, loops, { start, end }) {
  const work = [], late = [];
  for (const loop of loops) {
    for (const steps of trace.times[channel][loop]) {
      for (const [begin, done, prev, behind, next] of steps) {
        work.push([begin + prev + behind + next, done]);
        if (behind) late.push([begin + prev, begin + prev + behind]);
      }
    }
  }
  const lulls = [];
  let idle = start;
  for (const [from, to] of work.sort((a, b) => a[0] - b[0])) {
    const upto = Math.min(from, end);
    if (upto - idle >= (end - start) / 10 &&
        late.some(([since, until]) => since < upto && until > idle))
      lulls.push({ start: idle, end: upto });
    idle = Math.max(idle, to);
  }
  return lulls;
}

// From the first start to the last end of a step, on all ranks; without a step, of whole loops.
function spanOf(trace, channel, loops, step) {
  let start = Infinity, end = -Infinity;
  for (const loop of loops) {
    for (const steps of trace.times[channel][loop]) {
      start = Math.min(start, steps[step ?? 0][0]);
      end = Math.max(end, steps[step ?? steps.length - 1][1]);
    }
  }
  return { start, end };
}
