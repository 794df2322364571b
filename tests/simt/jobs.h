// The work of a program, split over processes: the machine is one of each, and a fault in a kernel
// must not take the report of the others with it.
#pragma once

#include <functional>
#include <string>

namespace simt {

// Runs `work(0)` .. `work(jobs - 1)`, each in a process of its own, and gives what it returned to
// `result`, in order of the jobs. Returns how many failed: their process ended otherwise. With one
// job, in this process.
int run_jobs(int jobs, const std::function<std::string(int job)>& work,
             const std::function<void(int job, const std::string&)>& result);

}  // namespace simt
