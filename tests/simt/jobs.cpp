#include "jobs.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace simt {

int run_jobs(int jobs, const std::function<std::string(int)>& work,
             const std::function<void(int, const std::string&)>& result) {
  if (jobs == 1) {
    result(0, work(0));
    return 0;
  }
  struct Child {
    pid_t pid;
    int from;
  };
  std::vector<Child> children;
  std::fflush(stdout);
  for (int job = 0; job < jobs; ++job) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    const pid_t pid = fork();
    if (pid < 0) std::abort();
    if (pid == 0) {
      close(ends[0]);
      const std::string text = work(job);
      size_t done = 0;
      while (done < text.size()) {
        const ssize_t n = write(ends[1], text.data() + done, text.size() - done);
        if (n <= 0) std::_Exit(3);
        done += size_t(n);
      }
      std::fflush(stdout);
      std::_Exit(0);
    }
    close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  int failed = 0;
  for (int job = 0; job < jobs; ++job) {
    const Child& child = children[size_t(job)];
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(child.from, buffer, sizeof buffer)) > 0;)
      text.append(buffer, size_t(n));
    close(child.from);
    int status = 0;
    waitpid(child.pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
    else result(job, text);
  }
  return failed;
}

}  // namespace simt
