// The work of a program, split over processes: each has a machine of its own, and a fault in a
// kernel must not lose the reports of the others.
#pragma once

#include <functional>
#include <string>

namespace simt {

// Runs `work(0)` .. `work(jobs - 1)`, each in a process of its own, and passes each result to
// `result`, in order of the jobs. Returns the number of jobs whose process failed. A single job
// runs in this process.
int run_jobs(int jobs, const std::function<std::string(int job)>& work,
             const std::function<void(int job, const std::string&)>& result);

}  // namespace simt
