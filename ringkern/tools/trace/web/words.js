// A step in words.
function sayTime(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
    if (ns >= size) {
      const number = ns / size;
      return `${number >= 100 ? number.toFixed(0) : number.toPrecision(3)} ${unit}`;
    }
  }
  return `${ns} ns`;
}

function sayRanks(ranks) {
  const sorted = ranks.slice().sort((a, b) => a - b);
  if (sorted.length === 1) return `rank ${sorted[0]}`;
  return `ranks ${sorted.slice(0, -1).join(", ")} and ${sorted[sorted.length - 1]}`;
}

function ordinal(n) {
  const teen = Math.trunc(n / 10) % 10 === 1;
  return `${n}${teen ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] ?? "th"}`;
}

// What happens everywhere in step `step` of a ring of k ranks.
function sayPhase(step, k) {
  if (step === 0) return "Scatter-reduce begins: every rank sends its part of one chunk to the next.";
  if (step < k - 1)
    return `Scatter-reduce: every chunk goes one rank on and takes its part in, the ` +
      `${ordinal(step + 1)} of ${k}.`;
  if (step === k - 1)
    return "Complete: every chunk comes to its owner, who adds the last part and keeps the sum.";
  if (step < 2 * k - 2)
    return `All-gather: complete chunks go one rank on and are copied; every rank now has ` +
      `${step - k + 2} of ${k}.`;
  return `The end: the last copies arrive, and every rank has all ${k} chunks.`;
}

// What one rank does, as in "gets chunk 2 from rank 1, adds its part, sends it on to rank 3".
function sayDeed(deed, k) {
  const { verb, owner, from, to, sum } = deed;
  if (verb === "send") return `sends its part of chunk ${owner} to rank ${to}`;
  const whole = sum.length === k || !verb.includes("reduce");
  const words = [`gets chunk ${owner}${whole && !verb.includes("reduce") ? ", complete," : ""} ` +
    `from rank ${from}`];
  if (verb.includes("reduce"))
    words.push(`adds its part (${sum.length} of ${k}${whole ? ": complete" : ""})`);
  if (copies(verb)) words.push("keeps it");
  if (sends(verb)) words.push(`sends it on to rank ${to}`);
  return words.join(", ");
}

function sayWaits(deed, time) {
  const words = [];
  if (time.prev) words.push(`${sayTime(time.prev)} for data from rank ${deed.from}`);
  if (time.late) words.push(`${sayTime(time.late)} late`);
  if (time.next) words.push(`${sayTime(time.next)} for a free slot at rank ${deed.to}`);
  return words.join(", ");
}

// Who waited longest in a step, and for whom.
function sayLongest(deeds, times) {
  let most = 0, words = "";
  deeds.forEach((deed, position) => {
    const { prev, late, next } = times[position];
    if (prev > most) {
      most = prev;
      words = `rank ${deed.rank}, ${sayTime(prev)} for data from rank ${deed.from}`;
    }
    if (late > most) {
      most = late;
      words = `rank ${deed.rank}, ${sayTime(late)} late, its data being there`;
    }
    if (next > most) {
      most = next;
      words = `rank ${deed.rank}, ${sayTime(next)} for a free slot at rank ${deed.to}`;
    }
  });
  return words ? `Waited longest in this step: ${words}.` : "Nobody waited in this step.";
}
