// A schedule run with a clock: the same links, compiled once more, so that calls without a trace
// are not slower.
#pragma once

#include "core/timeline.h"
#include "cpu/link.h"

namespace ringkern::cpu {

// Runs the schedule over the link of the plan's protocol, with a row of `timeline` for each verb.
// Times are of CLOCK_MONOTONIC, which all processes of a machine share.
Verdict run_timed(const LinkContext& context, const Plan& plan, int rank, const Timeline& timeline);

}  // namespace ringkern::cpu
